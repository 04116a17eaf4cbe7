"""An audit that runs beside a workload: one topic's events as they come, what is wrong as soon as it is
known.

The rules are those of docs/pipeline-audit.md. What is different: a message is called lost once time has
passed its due time by `settle_ms`; if it comes after all, it is `recovered`. Time is that of the events, and
goes on by the clock while none come.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from geminga.pipeline.audit.events import PUBLISHED, Events, chosen, where_is
from geminga.pipeline.audit.ledger import Part, Repeats, parts_in
from geminga.pipeline.audit.order import LANE_COLUMNS, Resume
from geminga.pipeline.audit.packing import CODE_BITS, CODE_MASK, bitmaps
from geminga.pipeline.audit.partials import parts_of, second_look
from geminga.pipeline.audit.sessions import codes_of, session_ends
from geminga.pipeline.audit.settings import MINUTE_MS, AuditSettings, Facts, facts_of, scan

SLICE_MS: Final = 1_000
"""How finely due times are kept apart until they have passed."""
DELTAS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("minute", pa.timestamp("us", "UTC")),
        ("what", pa.string()),
        ("count", pa.int64()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("batch_index", pa.int32()),
    ]
)
"""`count` more of `what` in this minute, with the first position of them if `what` is a fault. Totals are the
sums of these rows.
"""
_COUNTED: Final = ("dispatched", "redelivered", "acked")
_WRONG: Final = ("early", "late", "reordered")

SlabKey = tuple[int, int]
"""Ledger and slab of codes."""


class Delta(NamedTuple):
    subscription: str
    minute: int
    what: str
    more: int
    ledger_id: int = -1
    code: int = -1


class _Subscription:
    def __init__(self) -> None:
        self.repeats: dict[SlabKey, Repeats] = defaultdict(Repeats)
        self.delivered: dict[SlabKey, BitMap] = defaultdict(BitMap)
        self.lost: dict[SlabKey, BitMap] = defaultdict(BitMap)
        self.lanes: dict[int, SlabKey] = {}
        """The latest position of each lane: ledger and whole code."""


class TopicAudit:
    """The state of one topic; `to_bytes` and `from_bytes` keep it between batches."""

    def __init__(self, settings: AuditSettings, batch_bits: int) -> None:
        self._settings = settings
        self._batch_bits = batch_bits
        self._subscriptions: dict[str, _Subscription] = {}
        self._open: dict[int, dict[tuple[SlabKey, int], BitMap]] = {}
        """By the slice of time in which it is due what was published, by slab and minute of publishing."""
        self._published: dict[SlabKey, BitMap] = defaultdict(BitMap)
        self._event_ms = 0
        self._heard_ms = 0
        self.starts = 0
        """Number of the broker's starts that this topic has taken. Its name is in the pickled states of old
        checkpoints.
        """

    def to_bytes(self) -> bytes:
        return pickle.dumps(self)

    @staticmethod
    def from_bytes(data: bytes) -> TopicAudit:
        found = pickle.loads(data)
        assert isinstance(found, TopicAudit)
        return found

    @property
    def has_open(self) -> bool:
        """Whether anything is still to come: then `pass_time` has to be called now and then."""
        return bool(self._open)

    def new_starts(self, starts_ms: tuple[int, ...]) -> tuple[int, ...]:
        """Of all starts of the broker, those since the last call; the caller puts them among the events that
        it passes to `take` next.
        """
        new = starts_ms[self.starts :]
        self.starts = len(starts_ms)
        return new

    def take(self, events: Events, now_ms: int) -> list[Delta]:
        """The next events of the topic, in the order in which they happened, and starts of the broker between
        them; `now_ms` is the clock's.
        """
        found = facts_of(self._settings, [scan(events, 0)])
        bits = self._batch_bits
        facts = found._replace(batch_bits=bits, until_ms=1 << 62, by_entry=not bits)
        parts = parts_in(parts_of(events, facts, 0))
        deltas = list(self._take_published(events, facts))
        deltas += [Delta("", one.minute, one.what, one.events) for one in parts if one.what == "deduplicated"]
        by_subscription: dict[str, list[Part]] = defaultdict(list)
        for part in parts:
            if part.subscription:
                by_subscription[part.subscription].append(part)
        for control in facts.controls:
            for name in [control.subscription] if control.topic else self._subscriptions:
                by_subscription.setdefault(name, [])
        for name, own in by_subscription.items():
            subscription = self._subscriptions.setdefault(name, _Subscription())
            deltas += self._take_deliveries(name, subscription, own, facts, events.topics[0])
            deltas += self._take_order(name, subscription, own, events, facts)
        self._heard_ms = now_ms
        if events.length:
            self._event_ms = max(self._event_ms, int(events.time_ms.max()))
        return deltas + list(self._close(self._event_ms))

    def pass_time(self, now_ms: int) -> list[Delta]:
        """No events came up to now: what is overdue is lost."""
        return list(self._close(self._event_ms + max(0, now_ms - self._heard_ms)))

    def _take_published(self, events: Events, facts: Facts) -> Iterator[Delta]:
        events = chosen(events, where_is(events.kind, PUBLISHED))
        codes = codes_of(events, facts)
        due_ms = np.maximum(events.time_ms, events.deliver_at_ms)
        minutes = events.time_ms // MINUTE_MS
        columns = (due_ms // SLICE_MS, minutes, events.ledger_id, codes >> CODE_BITS)
        for group in bitmaps(columns, codes & CODE_MASK):
            due, minute, ledger_id, slab = group.of
            slab_key = ledger_id, slab
            waiting = self._open.setdefault(due, {})
            key = slab_key, minute
            waiting[key] = waiting[key] | group.codes if key in waiting else group.codes
            self._published[slab_key] |= group.codes
            yield Delta("", minute, "published", len(group.codes))

    def _take_deliveries(
        self, name: str, own: _Subscription, parts: list[Part], facts: Facts, topic: str
    ) -> Iterator[Delta]:
        # What came again is told as that alone; what was told of its first delivery is not taken back.
        ends = list(session_ends(facts, topic, name))
        by_slab: dict[SlabKey, list[Part]] = defaultdict(list)
        for part in parts:
            if part.ledger_id >= 0:
                by_slab[part.ledger_id, part.slab].append(part)
        for slab_key in {*by_slab, *(own.repeats if ends else ())}:
            some = by_slab.get(slab_key, [])
            again = BitMap()
            for minute, wrong, excused in own.repeats[slab_key].take(some, ends):
                again |= wrong | excused
                yield from _delta(name, minute, "duplicated", slab_key, wrong)
                yield from _delta(name, minute, "repeated", slab_key, excused)
            for part in some:
                if part.what in _COUNTED:
                    yield Delta(name, part.minute, part.what, part.events)
                if part.what == "doubled":
                    yield Delta(name, part.minute, "duplicated", part.events, slab_key[0], part.codes.min())
                if part.what in _WRONG:
                    yield from _delta(name, part.minute, part.what, slab_key, part.codes - again)
                if part.what in ("dispatched", "redelivered"):
                    codes = part.codes
                    yield from _delta(name, part.minute, "recovered", slab_key, codes & own.lost[slab_key])
                    own.lost[slab_key] -= codes
                    own.delivered[slab_key] |= codes

    def _take_order(
        self, name: str, own: _Subscription, parts: list[Part], events: Events, facts: Facts
    ) -> Iterator[Delta]:
        lanes = [part for part in parts if part.what == "lanes"]
        topic = events.topics[0]
        sessions = len(list(session_ends(facts, topic, name)))
        if lanes and own.lanes:
            known = list(own.lanes.items())
            resume = Resume(
                topic,
                name,
                0,
                np.array([lane for lane, _ in known]),
                np.zeros(len(known), np.int64),
                np.array([slab_key[0] for _, slab_key in known]),
                np.array([slab_key[1] for _, slab_key in known]),
            )
            for part in parts_in(second_look(events, facts, 0, [resume])):
                slab_key = part.ledger_id, part.slab
                yield from _delta(name, part.minute, "reordered", slab_key, part.codes)
        if sessions:
            own.lanes.clear()
        for part in lanes:
            table = np.frombuffer(part.data, "<i8")[1:].reshape(-1, LANE_COLUMNS)
            for lane, session, _, _, ledger_id, code, _, _ in table.tolist():
                if session == sessions:
                    own.lanes[lane] = max(own.lanes.get(lane, (-1, -1)), (ledger_id, code))

    def _close(self, until_ms: int) -> Iterator[Delta]:
        """What was due so long before has been delivered, or is lost."""
        last = (until_ms - self._settings.settle_ms) // SLICE_MS
        for due in sorted(due for due in self._open if due < last):
            for (slab_key, minute), codes in self._open.pop(due).items():
                for name, own in self._subscriptions.items():
                    lost = codes - own.delivered[slab_key]
                    own.lost[slab_key] |= lost
                    yield from _delta(name, minute, "lost", slab_key, lost)


def _delta(subscription: str, minute: int, what: str, slab_key: SlabKey, codes: BitMap) -> Iterator[Delta]:
    if codes:
        ledger_id, slab = slab_key
        yield Delta(subscription, minute, what, len(codes), ledger_id, slab << CODE_BITS | codes.min())


def delta_table(topic: str, deltas: list[Delta], batch_bits: int) -> pa.Table:
    """As rows of `DELTAS`."""
    rows = []
    for delta in deltas:
        entry_id, index = delta.code, -1
        if delta.code >= 0 and batch_bits:
            entry_id, index = delta.code >> batch_bits, delta.code & ((1 << batch_bits) - 1)
        minute_us = delta.minute * MINUTE_MS * 1000
        rows.append(
            (topic, delta.subscription, minute_us, delta.what, delta.more, delta.ledger_id, entry_id, index)
        )
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(DELTAS)
    return pa.Table.from_pydict(dict(zip(DELTAS.names, columns, strict=True)), DELTAS)
