"""What a delivery belongs to: its position's code, and the session of its subscription.

A session ends where what was delivered may come again with a redelivery count of 0: a broker began anew (it
has forgotten the counts), a cursor was moved, a consumer left or gave back all that it had.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geminga.pipeline.audit_events import DISPATCHED, KINDS, Events
from geminga.pipeline.audit_settings import Control, Facts

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


def deliveries(events: Events, facts: Facts, *, again: bool) -> Integers:
    """Rows of deliveries that the broker calls a redelivery, or not.

    Where entries are counted, what is left of a batch is one delivery, though it has an event for each
    message.
    """
    chosen = (events.kind == DISPATCHED) & ((events.redelivery_count > 0) == again)
    if not facts.batch_bits and events.length:
        more = events.batch_index[1:] >= 0
        for column in (events.kind, events.topic, events.subscription, events.client, events.ledger_id):
            more &= column[1:] == column[:-1]
        more &= (events.entry_id[1:] == events.entry_id[:-1]) & (events.time_ms[1:] == events.time_ms[:-1])
        more &= events.batch_index[1:] > events.batch_index[:-1]
        chosen[1:] &= ~more
    return np.flatnonzero(chosen)


def is_delayed(events: Events, rows: Integers) -> Mask:
    """Whether each row's message has a delivery time that it could not be delivered at once for."""
    delayed: Mask = events.deliver_at_ms[rows] > events.publish_time_ms[rows]
    return delayed


def sessions_of(events: Events, rows: Integers, facts: Facts, piece: int) -> tuple[Integers, Integers]:
    """For each row how many session ends of its subscription were before it, and its client if that matters
    (-1: it does not).
    """
    sessions = np.zeros(len(rows), np.int64)
    clients = np.full(len(rows), -1, np.int64)
    ends = [control for control in facts.controls if control.kind in SESSION_ENDS]
    for control in ends:
        if not control.topic:
            sessions += _after(control, events, rows, piece)
    for topic, subscription in sorted({(c.topic, c.subscription) for c in ends if c.topic}):
        if topic not in events.topics or subscription not in events.subscriptions:
            continue
        mine = (events.topic[rows] == events.topics.index(topic)) & (
            events.subscription[rows] == events.subscriptions.index(subscription)
        )
        chosen = rows[mine]
        own = [control for control in ends if (control.topic, control.subscription) == (topic, subscription)]
        for control in own:
            sessions[mine] += _after(control, events, chosen, piece)
        if any(control.kind == RELEASED for control in own):
            clients[mine] = events.client[chosen]
    return sessions, clients


def _after(control: Control, events: Events, rows: Integers, piece: int) -> Mask:
    """Whether each row comes after the control: by its place in the same piece, else by time."""
    after: Mask = rows > control.row if control.piece == piece else events.time_ms[rows] >= control.time_ms
    return after


def session_ends(facts: Facts, topic: str, subscription: str) -> Iterator[Control]:
    """Session `n` begins after the n-th of these."""
    for control in facts.controls:
        own = not control.topic or (control.topic, control.subscription) == (topic, subscription)
        if own and control.kind in SESSION_ENDS:
            yield control
