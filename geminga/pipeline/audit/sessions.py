"""What a delivery belongs to: its position's code, and the session of its subscription.

A session ends where an entry may be redelivered with a redelivery count of 0: the broker restarted (it keeps
the counts in memory only), a cursor was reset, a consumer left or gave back all its pending entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from geminga.pipeline.audit.events import (
    DISPATCHED,
    KINDS,
    Events,
    chosen,
    constant,
    is_constant,
    where_is,
)
from geminga.pipeline.audit.settings import Control, Facts

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

RELEASED: Final = KINDS["released"]
SESSION_ENDS: Final = (KINDS["opened"], KINDS["sought"], RELEASED)


def codes_of(events: Events, facts: Facts) -> Integers:
    """A position's code: its entry id, and below it as many bits as the largest batch index of all logs
    needs.
    """
    if not facts.batch_bits:
        return events.entry_id
    codes: Integers = (events.entry_id << facts.batch_bits) | np.maximum(events.batch_index, 0)
    return codes


def deliveries(events: Events, facts: Facts) -> tuple[Mask, Mask]:
    """Which rows are deliveries that the broker calls the first, and which it calls a redelivery.

    Where entries are counted, what is left of a batch is one delivery, though it has an event for each
    message.
    """
    given = where_is(events.kind, DISPATCHED)
    if not facts.batch_bits and events.length and not _no_batches(events):
        more = events.batch_index[1:] >= 0
        for column in (events.kind, events.topic, events.subscription, events.client, events.ledger_id):
            more &= column[1:] == column[:-1]
        more &= (events.entry_id[1:] == events.entry_id[:-1]) & (events.time_ms[1:] == events.time_ms[:-1])
        more &= events.batch_index[1:] > events.batch_index[:-1]
        given = given.copy()
        given[1:] &= ~more
    again = ~where_is(events.redelivery_count, 0)
    return given & ~again, given & again


def _no_batches(events: Events) -> bool:
    return is_constant(events.batch_index) and bool(events.batch_index[0] < 0)


def is_delayed(events: Events) -> Mask:
    """Whether each row's message has a delivery time that it could not be delivered at once for."""
    delayed: Mask = events.deliver_at_ms > events.publish_time_ms
    return delayed


class Chosen(NamedTuple):
    """Some events of a piece."""

    events: Events
    codes: Integers
    rows: Integers | None
    """Their row numbers in the piece; None if no session ends within it, since nothing needs them then."""


def choose(events: Events, mask: Mask, facts: Facts, piece: int) -> Chosen:
    """Of a whole piece."""
    inside = any(control.piece == piece and control.kind in SESSION_ENDS for control in facts.controls)
    some = chosen(events, mask)
    return Chosen(some, codes_of(some, facts), np.flatnonzero(mask) if inside else None)


def sessions_of(some: Chosen, facts: Facts, piece: int) -> tuple[Integers, Integers]:
    """For each event how many session ends of its subscription were before it, and its client if that matters
    (-1: it does not).
    """
    events, count = some.events, some.events.length
    sessions, clients = constant(0, count), constant(-1, count)
    ends = [control for control in facts.controls if control.kind in SESSION_ENDS]
    if not ends or not count:
        return sessions, clients
    anywhere = [control for control in ends if not control.topic]
    if anywhere:
        sessions = _ends_before(anywhere, events.time_ms, some.rows, piece)
    for (topic, subscription), own in _by_subscription(ends).items():
        if topic not in events.topics or subscription not in events.subscriptions:
            continue
        mine = where_is(events.topic, events.topics.index(topic))
        mine = mine & where_is(events.subscription, events.subscriptions.index(subscription))
        rows = None if some.rows is None else some.rows[mine]
        sessions, clients = np.array(sessions), np.array(clients)
        sessions[mine] += _ends_before(own, events.time_ms[mine], rows, piece)
        if any(control.kind == RELEASED for control in own):
            clients[mine] = events.client[mine]
    return sessions, clients


def _by_subscription(ends: list[Control]) -> dict[tuple[str, str], list[Control]]:
    found: dict[tuple[str, str], list[Control]] = defaultdict(list)
    for control in ends:
        if control.topic:
            found[control.topic, control.subscription].append(control)
    return found


def _ends_before(ends: list[Control], times_ms: Integers, rows: Integers | None, piece: int) -> Integers:
    """How many are before each row: by row number in the same piece, else by time."""
    others = np.sort(np.array([control.time_ms for control in ends if control.piece != piece], np.int64))
    before = np.searchsorted(others, times_ms, side="right")
    if rows is not None:
        here = np.sort(np.array([control.row for control in ends if control.piece == piece], np.int64))
        before += np.searchsorted(here, rows)
    return before


def session_ends(facts: Facts, topic: str, subscription: str) -> Iterator[Control]:
    """Session `n` begins after the n-th of these."""
    for control in facts.controls:
        own = not control.topic or (control.topic, control.subscription) == (topic, subscription)
        if own and control.kind in SESSION_ENDS:
            yield control
