"""What one piece of the logs says, by ledger and minute, in bitmaps: the part of an audit that runs side by
side.

A part is a row of `PARTS`. `ledger_id` and `slab` (the codes' upper bits) say which positions its bitmap has;
parts about a whole subscription have `NO_LEDGER`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from geminga.pipeline.audit_events import ACKED, PUBLISHED, Events
from geminga.pipeline.audit_histogram import steps_of
from geminga.pipeline.audit_order import Resume, order_parts
from geminga.pipeline.audit_packing import CODE_BITS, CODE_MASK, bitmaps, pack, packed
from geminga.pipeline.audit_sessions import codes_of, deliveries, is_delayed, sessions_of
from geminga.pipeline.audit_settings import MINUTE_MS, Facts

Integers = NDArray[np.int64]

NO_LEDGER: Final = -1
PARTS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("ledger_id", pa.int64()),
        ("slab", pa.int32()),
        ("minute", pa.int64()),
        ("session", pa.int32()),
        ("client", pa.string()),
        ("what", pa.string()),
        ("count", pa.int64()),
        ("data", pa.binary()),
    ]
)


class Parts:
    """Collects rows of `PARTS`."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in PARTS.names}

    def add(
        self,
        what: str,
        topic: str,
        subscription: str = "",
        *,
        data: bytes,
        count: int,
        ledger_id: int = NO_LEDGER,
        slab: int = 0,
        minute: int = 0,
        session: int = 0,
        client: str = "",
    ) -> None:
        row = (topic, subscription, ledger_id, slab, minute, session, client, what, count, data)
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(self._columns, PARTS)


def parts_of(events: Events, facts: Facts, piece: int) -> pa.RecordBatch:
    """The parts of one piece, number `piece` of all."""
    parts = Parts()
    codes = codes_of(events, facts)
    _published(parts, events, codes, facts)
    _dispatched(parts, events, codes, facts, piece)
    rows = np.flatnonzero(events.kind == ACKED)
    if len(rows):
        _bitmaps(parts, "acked", events, codes, rows, sessions=sessions_of(events, rows, facts, piece)[0])
    return parts.batch()


def second_look(events: Events, facts: Facts, piece: int, resumes: Sequence[Resume]) -> pa.RecordBatch:
    """What is out of order in a piece only by what came before it."""
    parts = Parts()
    rows = deliveries(events, facts, again=False)
    rows = rows[~is_delayed(events, rows)]
    sessions, _ = sessions_of(events, rows, facts, piece)
    order_parts(parts.add, events, codes_of(events, facts), rows, sessions, facts, piece, resumes)
    return parts.batch()


def _published(parts: Parts, events: Events, codes: Integers, facts: Facts) -> None:
    rows = np.flatnonzero(events.kind == PUBLISHED)
    if not len(rows):
        return
    due_ms = np.maximum(events.time_ms[rows], events.deliver_at_ms[rows])
    pending = due_ms + facts.settings.settle_ms > facts.until_ms
    for what, mask in (("published", ~pending), ("pending", pending)):
        _bitmaps(parts, what, events, codes, rows[mask], events.time_ms[rows[mask]] // MINUTE_MS)


def _bitmaps(
    parts: Parts,
    what: str,
    events: Events,
    codes: Integers,
    rows: Integers,
    minutes: Integers | int = 0,
    sessions: Integers | int = 0,
    clients: Integers | int = -1,
) -> None:
    """A part for each topic, subscription, ledger, minute, session and client."""
    if not len(rows):
        return
    here = codes[rows]
    slabs = here >> CODE_BITS
    zeros = np.zeros(len(rows), np.int64)
    columns = (
        events.topic[rows],
        events.subscription[rows] if what not in ("published", "pending") else zeros - 1,
        events.ledger_id[rows],
        slabs,
        zeros + minutes,
        zeros + sessions,
        zeros + clients,
    )
    for group in bitmaps(columns, here & CODE_MASK):
        topic, subscription, ledger_id, slab, minute, session, client = group.of
        names = events.topics[topic], events.subscriptions[subscription] if subscription >= 0 else ""
        place: Any = {
            "ledger_id": ledger_id,
            "slab": slab,
            "minute": minute,
            "session": session,
            "client": events.clients[client] if client >= 0 else "",
        }
        parts.add(what, *names, data=packed(group.codes), count=len(group.codes) + group.extra, **place)
        if group.extra and what == "dispatched":
            parts.add("doubled", *names, data=packed(group.repeated), count=group.extra, **place)


def _dispatched(parts: Parts, events: Events, codes: Integers, facts: Facts, piece: int) -> None:
    minutes = events.time_ms // MINUTE_MS
    again = deliveries(events, facts, again=True)
    if len(again):
        _bitmaps(
            parts,
            "redelivered",
            events,
            codes,
            again,
            minutes[again],
            *sessions_of(events, again, facts, piece),
        )
    first = deliveries(events, facts, again=False)
    if not len(first):
        return
    sessions, clients = sessions_of(events, first, facts, piece)
    _bitmaps(parts, "dispatched", events, codes, first, minutes[first], sessions, clients)
    published_ms, delayed = events.publish_time_ms[first], is_delayed(events, first)
    late_ms = events.time_ms[first] - np.where(delayed, events.deliver_at_ms[first], published_ms)
    timed = delayed | (published_ms > 0)
    early = delayed & (late_ms < -facts.settings.early_ms)
    late = timed & (late_ms > facts.settings.late_ms)
    _bitmaps(parts, "early", events, codes, first[early], minutes[first[early]])
    _bitmaps(parts, "late", events, codes, first[late], minutes[first[late]])
    for kind, mask in (("delayed", delayed), ("prompt", timed & ~delayed)):
        _waits(parts, kind, events, first[mask], late_ms[mask], minutes)
    if facts.settings.order != "none" and not delayed.all():
        order_parts(parts.add, events, codes, first[~delayed], sessions[~delayed], facts, piece)


def _waits(
    parts: Parts, what: str, events: Events, rows: Integers, late_ms: Integers, minutes: Integers
) -> None:
    """How often each step of lateness occurs in each minute of each subscription, and the extremes."""
    if not len(rows):
        return
    steps = steps_of(late_ms)
    keys, packing = pack([events.topic[rows], events.subscription[rows], minutes[rows], steps])
    order = np.argsort(keys, kind="stable") if np.any(keys[1:] < keys[:-1]) else None
    if order is not None:
        keys, late_ms = keys[order], late_ms[order]
    groups = keys >> packing.bits[-1]
    begins = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    least, greatest = np.minimum.reduceat(late_ms, begins), np.maximum.reduceat(late_ms, begins)
    changes = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    counts = np.diff(np.append(changes, len(keys)))
    steps_there = packing.last(keys[changes])
    topics, subscriptions, of_minutes, _ = (column.tolist() for column in packing.unpack(keys[begins]))
    bounds = np.searchsorted(changes, np.append(begins, len(keys)))
    for number in range(len(begins)):
        part = slice(bounds[number], bounds[number + 1])
        data = np.concatenate([[least[number], greatest[number]], steps_there[part], counts[part]])
        parts.add(
            what,
            events.topics[topics[number]],
            events.subscriptions[subscriptions[number]],
            minute=of_minutes[number],
            count=int(counts[part].sum()),
            data=data.astype("<i8").tobytes(),
        )
