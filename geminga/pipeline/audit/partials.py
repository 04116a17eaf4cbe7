"""What one piece of the logs says, by ledger and minute, in bitmaps: the part of an audit that runs side by
side.

A part is a row of `PARTS`. `ledger_id` and `slab` (the codes' upper bits) say which positions its bitmap has;
parts about a whole subscription have `NO_LEDGER`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from geminga.pipeline.audit.acknowledged import packed_messages
from geminga.pipeline.audit.events import (
    ACKED,
    DUPLICATE,
    PUBLISHED,
    Events,
    Integers,
    Mask,
    chosen,
    constant,
    picked,
    where_is,
)
from geminga.pipeline.audit.histogram import STEP_EXACT_MAX, least_of, steps_of
from geminga.pipeline.audit.order import Resume, order_parts
from geminga.pipeline.audit.packing import CODE_BITS, CODE_MASK, begins_of, bitmaps, distinct, pack, packed
from geminga.pipeline.audit.sessions import Chosen, choose, deliveries, is_delayed, sessions_of
from geminga.pipeline.audit.settings import MINUTE_MS, Facts

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
    for left_out in events.left_out:
        parts.add("left out", "", data=left_out.first.encode(), count=left_out.events)
    _deduplicated(parts, events)
    published = choose(events, where_is(events.kind, PUBLISHED), facts, piece)
    if published.events.length:
        _published(parts, published, facts)
    first, again = deliveries(events, facts)
    for what, mask in (
        ("dispatched", first),
        ("redelivered", again),
        ("acked", where_is(events.kind, ACKED)),
    ):
        if not mask.any():
            continue
        some = choose(events, mask, facts, piece)
        sessions, clients = sessions_of(some, facts, piece)
        minutes = minutes_of(some.events)
        if what == "acked":
            _acked(parts, some, sessions, facts)
        else:
            _bitmaps(parts, what, some, minutes, sessions, clients)
        if what == "dispatched":
            _timed(parts, some, minutes, sessions, facts, piece)
    return parts.batch()


def second_look(events: Events, facts: Facts, piece: int, resumes: Sequence[Resume]) -> pa.RecordBatch:
    """What is out of order in a piece only by what came before it."""
    parts = Parts()
    first, _ = deliveries(events, facts)
    some = choose(events, first & ~is_delayed(events), facts, piece)
    if some.events.length:
        order_parts(parts.add, some, sessions_of(some, facts, piece)[0], facts, piece, resumes)
    return parts.batch()


def minutes_of(events: Events) -> Integers:
    """The minute of each event. At least one."""
    first, last = int(events.time_ms.min()) // MINUTE_MS, int(events.time_ms.max()) // MINUTE_MS
    return constant(first, events.length) if first == last else events.time_ms // MINUTE_MS


def _published(parts: Parts, some: Chosen, facts: Facts) -> None:
    events = some.events
    minutes = minutes_of(events)
    pending = np.maximum(events.time_ms, events.deliver_at_ms) > facts.until_ms - facts.settings.settle_ms
    for what, mask in (("published", ~pending), ("pending", pending)):
        _bitmaps(parts, what, _only(some, mask), picked(minutes, mask, int(np.count_nonzero(mask))))


def _deduplicated(parts: Parts, events: Events) -> None:
    """What was sent again, and not stored again."""
    again = where_is(events.kind, DUPLICATE)
    if not again.any():
        return
    some = chosen(events, again)
    keys, packing = pack((some.topic, minutes_of(some)))
    found, counts = distinct(keys)
    topics, minutes = packing.unpack(found)
    for topic, minute, count in zip(topics.tolist(), minutes.tolist(), counts.tolist(), strict=True):
        if topic >= 0:
            parts.add("deduplicated", some.topics[topic], minute=minute, count=count, data=b"")


def _only(some: Chosen, mask: Mask) -> Chosen:
    if mask.all():
        return some
    count = int(np.count_nonzero(mask))
    return Chosen(chosen(some.events, mask), picked(some.codes, mask, count), None)


def _bitmaps(
    parts: Parts,
    what: str,
    some: Chosen,
    minutes: Integers | None = None,
    sessions: Integers | None = None,
    clients: Integers | None = None,
) -> None:
    """A part for each topic, subscription, ledger, minute, session and client."""
    events, codes = some.events, some.codes
    count = events.length
    if not count:
        return
    narrow = int(codes.max()) <= CODE_MASK
    columns = (
        events.topic,
        constant(-1, count) if what in ("published", "pending") else events.subscription,
        events.ledger_id,
        constant(0, count) if narrow else codes >> CODE_BITS,
        constant(0, count) if minutes is None else minutes,
        constant(0, count) if sessions is None else sessions,
        constant(-1, count) if clients is None else clients,
    )
    for group in bitmaps(columns, codes if narrow else codes & CODE_MASK):
        topic, subscription, ledger_id, slab, minute, session, client = group.of
        names = events.topics[topic], events.subscriptions[subscription] if subscription >= 0 else ""
        keys: Any = {
            "ledger_id": ledger_id,
            "slab": slab,
            "minute": minute,
            "session": session,
            "client": events.clients[client] if client >= 0 else "",
        }
        parts.add(what, *names, data=packed(group.codes), count=len(group.codes) + group.extra, **keys)
        if group.extra and what == "dispatched":
            parts.add("doubled", *names, data=packed(group.repeated), count=group.extra, **keys)


def _acked(parts: Parts, some: Chosen, sessions: Integers, facts: Facts) -> None:
    """Acknowledged positions; where those are entries, messages of batches apart."""
    events = some.events
    partly = (events.batch_index >= 0) & (events.batch_size != 1) if facts.by_entry else None
    if partly is None or not partly.any():
        _bitmaps(parts, "acked", some, sessions=sessions)
        return
    rest = ~partly
    _bitmaps(parts, "acked", _only(some, rest), sessions=sessions[rest])
    events, codes, sessions = chosen(events, partly), some.codes[partly], sessions[partly]
    columns = (events.topic, events.subscription, events.ledger_id, codes >> CODE_BITS, sessions)
    keys, packing = pack(columns)
    order = np.argsort(keys, kind="stable")
    begins = begins_of(keys[order])
    of = [column.tolist() for column in packing.unpack(keys[order][begins])]
    for number, (begin, end) in enumerate(pairwise([*begins.tolist(), len(order)])):
        topic, subscription, ledger_id, slab, session = (column[number] for column in of)
        rows = order[begin:end]
        data, count = packed_messages(
            codes[rows] & CODE_MASK, events.batch_index[rows], events.batch_size[rows]
        )
        parts.add(
            "acked_messages",
            events.topics[topic],
            events.subscriptions[subscription],
            ledger_id=ledger_id,
            slab=slab,
            session=session,
            count=count,
            data=data,
        )


def _timed(
    parts: Parts, first: Chosen, minutes: Integers, sessions: Integers, facts: Facts, piece: int
) -> None:
    """What first deliveries tell of time and order."""
    events = first.events
    delayed = is_delayed(events)
    late_ms = events.time_ms - np.where(delayed, events.deliver_at_ms, events.publish_time_ms)
    if not where_is(events.step_ms, 0).all():
        # What fell due within a step of a virtual clock could not come at any other moment of it.
        late_ms[delayed & (late_ms > 0) & (late_ms < events.step_ms)] = 0
    timed = delayed | (events.publish_time_ms > 0)
    early = delayed & (late_ms < 0) & _is_too_early(events, late_ms, facts)
    late = timed & (late_ms > facts.settings.late_ms)
    for what, mask in (("early", early), ("late", late)):
        if mask.any():
            _bitmaps(parts, what, _only(first, mask), picked(minutes, mask, int(np.count_nonzero(mask))))
    for what, mask in (("delayed", delayed), ("prompt", timed & ~delayed)):
        _waits(parts, what, events, mask, late_ms, minutes)
    if facts.settings.order != "none" and not delayed.all():
        prompt = ~delayed
        order_parts(
            parts.add,
            _only(first, prompt),
            picked(sessions, prompt, int(np.count_nonzero(prompt))),
            facts,
            piece,
        )


def _is_too_early(events: Events, late_ms: Integers, facts: Facts) -> Mask:
    """Whether the broker did not allow itself that much."""
    if facts.settings.early_ms is not None:
        too_early: Mask = late_ms < -facts.settings.early_ms
        return too_early
    too_early = (events.early_ms >= 0) & (late_ms < -events.early_ms)
    return too_early


def _waits(parts: Parts, what: str, events: Events, mask: Mask, late_ms: Integers, minutes: Integers) -> None:
    """How often each step of lateness occurs in each minute of each subscription, and the extremes (the least
    no higher, the greatest no lower than 0).
    """
    count = int(np.count_nonzero(mask))
    if not count:
        return
    late_ms = picked(late_ms, mask, count)
    columns = [picked(column, mask, count) for column in (events.topic, events.subscription, minutes)]
    keys, packing = pack([*columns, steps_of(late_ms)])
    found, counts = distinct(keys)
    steps = packing.last(found)
    width = packing.bits[-1]
    begins = begins_of(found >> width)
    topics, subscriptions, of_minutes, _ = (column.tolist() for column in packing.unpack(found[begins]))
    bounds = np.append(begins, len(found)).tolist()
    least, greatest = (
        np.zeros(len(begins), np.int64),
        least_of(steps[np.array(bounds[1:]) - 1].astype(np.int64)),
    )
    for extremes, choose_one, rows in (
        (least, np.minimum, np.flatnonzero(late_ms < 0)),
        (greatest, np.maximum, np.flatnonzero(late_ms > STEP_EXACT_MAX)),
    ):
        if len(rows):
            groups = np.searchsorted(found[begins] >> width, keys[rows] >> width)
            choose_one.at(extremes, groups, late_ms[rows])
    for number, (begin, end) in enumerate(pairwise(bounds)):
        data = np.concatenate([[least[number], greatest[number]], steps[begin:end], counts[begin:end]])
        parts.add(
            what,
            events.topics[topics[number]],
            events.subscriptions[subscriptions[number]],
            minute=of_minutes[number],
            count=int(counts[begin:end].sum()),
            data=data.astype("<i8").tobytes(),
        )
