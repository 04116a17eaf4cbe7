"""Many topics audited side by side as a stream, with what concerns all of them: a start of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from geminga.pipeline.audit.events import (
    KINDS,
    MALFORMED,
    SCHEMA,
    Events,
    chosen,
    constant,
    joined,
    taken,
    where_is,
)
from geminga.pipeline.audit.settings import MINUTE_MS, AuditSettings
from geminga.pipeline.audit.stream import Delta, TopicAudit

OPENED = KINDS["opened"]
MISSED = KINDS["missed"]


class TopicStates(Protocol):
    """Where the states of topics are kept."""

    def get(self, topic: str) -> bytes | None: ...

    def put(self, topic: str, state: bytes) -> None: ...


class Shared(NamedTuple):
    """What is kept beside the states of topics."""

    starts_ms: tuple[int, ...] = ()
    """All starts of the broker, in the order in which they became known."""
    open: frozenset[str] = frozenset()
    """Topics with something that is still to come."""


class TopicsAudit:
    """A share of all topics. A start reaches a topic with its next events: until then nothing depends on
    it.
    """

    def __init__(self, settings: AuditSettings, batch_bits: int, shared: Shared, states: TopicStates) -> None:
        self._settings = settings
        self._batch_bits = batch_bits
        self._states = states
        self.shared = shared
        """Has to be kept, once all deltas were taken."""

    def take(self, events: Events, now_ms: int) -> Iterator[tuple[str, list[Delta]]]:
        """What the next events tell of each topic; of none in particular by the name "".

        Events are in the order of time, as far as they are of one broker; `now_ms` is the clock's time.
        """
        starts = events.time_ms[where_is(events.kind, OPENED)].tolist()
        self.shared = self.shared._replace(starts_ms=(*self.shared.starts_ms, *starts))
        malformed = where_is(events.kind, MALFORMED)
        if malformed.any():
            count = int(np.count_nonzero(malformed))
            yield "", [Delta("", now_ms // MINUTE_MS, "malformed", count)]
            events = chosen(events, ~malformed)
        missed = chosen(events, where_is(events.kind, MISSED))
        if missed.length:
            sizes = zip(missed.time_ms.tolist(), missed.batch_size.tolist(), strict=True)
            yield "", [Delta("", time_ms // MINUTE_MS, "missed", size) for time_ms, size in sizes]
        for number in np.unique(events.topic[events.topic >= 0]).tolist():
            topic = events.topics[number]
            own = chosen(events, where_is(events.topic, number))
            audit = self._audit(topic)
            own = self._with_starts(own._replace(topics=[topic], topic=constant(0, own.length)), audit)
            yield topic, audit.take(own, now_ms)
            self._keep(topic, audit)

    def pass_time(self, now_ms: int) -> Iterator[tuple[str, list[Delta]]]:
        """No events came up to now: what is overdue is lost."""
        for topic in sorted(self.shared.open):
            audit = self._audit(topic)
            yield topic, audit.pass_time(now_ms)
            self._keep(topic, audit)

    def _with_starts(self, own: Events, audit: TopicAudit) -> Events:
        """The events of a topic and the starts that it does not know yet, in the order of time."""
        new = audit.new_starts(self.shared.starts_ms)
        if not new:
            return own
        both = joined([_opened(new), own])
        return taken(both, np.argsort(both.time_ms, kind="stable"))

    def _audit(self, topic: str) -> TopicAudit:
        state = self._states.get(topic)
        if state is not None:
            return TopicAudit.from_bytes(state)
        return TopicAudit(self._settings, self._batch_bits)

    def _keep(self, topic: str, audit: TopicAudit) -> None:
        self._states.put(topic, audit.to_bytes())
        is_open = self.shared.open | {topic} if audit.has_open else self.shared.open - {topic}
        self.shared = self.shared._replace(open=is_open)


def _opened(times_ms: tuple[int, ...]) -> Events:
    absent = {name: constant(-1, len(times_ms)) for name in SCHEMA.names}
    columns = absent | {"kind": constant(OPENED, len(times_ms)), "time_ms": np.array(times_ms, np.int64)}
    return Events(**columns, topics=[], subscriptions=[], clients=[], keys=[])
