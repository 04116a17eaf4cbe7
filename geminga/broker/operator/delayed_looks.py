"""Queries about the delayed messages of one subscription of one topic: counts, times, pages, parts of the
index.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import trio

from geminga.broker.flow.slices import in_slices
from geminga.broker.operator.delayed_statistics import (
    BucketInfo,
    DelayedSummary,
    DueCount,
    DueHistogram,
    NotRead,
    SegmentInfo,
)
from geminga.broker.operator.delayed_unread import (
    again_of,
    held_up_by,
    holds_back,
    not_read,
    pending_of,
    unread_of,
)
from geminga.errors import ProtocolError, StorageError
from geminga.limits import MIB
from geminga.managed_ledger.chain.ledger_reads import reached
from geminga.wire.message_metadata import peek

if TYPE_CHECKING:
    from geminga.broker.subscription.subscription import Subscription
    from geminga.broker.topic.topic import Topic
    from geminga.managed_ledger.chain.entry import Entry
    from geminga.position import Position
    from geminga.tracker.buckets.buckets import Buckets
    from geminga.tracker.format.rows import Rows
    from geminga.tracker.format.stored_bucket import StoredBucket
    from geminga.tracker.index.composition import IndexPart
    from geminga.tracker.index.sources import Bucket
    from geminga.tracker.index.view import View


CLASSES_MAX: Final = 1000
READ_AT_ONCE: Final = 20
"""The limit of entries that are read at once for their times."""
READ_BYTES: Final = 4 * MIB
"""The limit of bytes that such a read takes."""

ListedPart = tuple[BucketInfo, Iterator[SegmentInfo]]


class Looked(NamedTuple):
    """A subscription for queries, with its topic's partition."""

    topic: Topic
    subscription: Subscription
    partition: int | None

    @property
    def buckets(self) -> Buckets | None:
        """The index that the view belongs to; None without one."""
        delayed = self.subscription.delayed
        return None if delayed.tracker is None else delayed.buckets

    @property
    def buckets_to_be(self) -> Buckets | None:
        """The index that the subscription uses, or would use with delayed messages."""
        return self.subscription.delayed.buckets

    @property
    def view(self) -> View | None:
        return self.subscription.delayed.tracker

    async def open(self) -> None:
        """Open the subscription's view of an existing index, so that its messages are counted."""
        delayed = self.subscription.delayed
        if delayed.tracker is None and delayed.has_index() and holds_back(self.subscription):
            await delayed.open()


def due_ms_of(subscription: Subscription, entry: Entry) -> int | None:
    """When an entry is due, by its metadata or as changed. None: its metadata cannot be read."""
    try:
        entry.parsed(peek)
    except ProtocolError:
        return None
    return subscription.delayed.due_ms(entry)


async def why_not_read(looked: Looked) -> list[NotRead]:
    found = await in_slices(not_read(looked.subscription))
    return [msgspec.structs.replace(one, partition=looked.partition) for one in found]


async def summary_of(looked: Looked) -> DelayedSummary:
    found = looked.subscription
    delayed, settings = found.delayed, looked.topic.delays.settings
    due, next_due_ms = await _due(looked.view)
    reasons = await why_not_read(looked)
    # From here on without a checkpoint: all of it is of one moment.
    buckets = looked.buckets
    unread, again = unread_of(found), again_of(found)
    if holds_back(found) and not found.consumers:
        # What consumers had, or what was read for the index alone, waits for the next consumer.
        told = min(unread, sum(one.entries for one in reasons))
        unread, again = told, again + unread - told
    return DelayedSummary(
        messages=len(delayed),
        due=due,
        backlog=found.backlog(),
        pending=pending_of(found),
        to_be_sent_again=again,
        unread=unread,
        consumers=len(found.consumers),
        held_up_by=held_up_by(found) if due else "",
        holds_back=holds_back(found),
        next_due_ms=next_due_ms,
        index_bytes=delayed.memory_bytes(),
        keeps_buckets=settings.keeps_buckets,
        is_shared=settings.is_shared,
        buckets=len(buckets.serving) if buckets is not None else 0,
        bucket_bytes=buckets.stored_bytes if buckets is not None else 0,
        is_being_read=delayed.unknown is not None
        or (not settings.is_shared and delayed.tracker is None and delayed.has_index()),
        not_read=reasons,
    )


async def _due(view: View | None) -> tuple[int, int | None]:
    """How many of the waiting messages are due, and the due time of the first one."""
    if view is None or not len(view):
        return 0, None
    from geminga.tracker.index import eyes

    return await in_slices(eyes.due_now(view))


# -- by due time -----------------------------------------------------------------------------------------


async def histogram_of(looked: Looked, width_ms: int) -> DueHistogram:
    view, buckets = looked.view, looked.buckets
    reasons = await why_not_read(looked)
    if view is None or buckets is None:
        return DueHistogram(width_ms=width_ms, classes=[], not_read=reasons)
    from geminga.tracker.index.histogram import Histogram

    drawing = Histogram(view, width_ms, CLASSES_MAX)
    await in_slices(drawing.look())
    read = await _decoded(buckets, drawing.to_read)
    await in_slices(drawing.count(read))
    classes = [
        DueCount(
            from_ms=one.start_ms,
            to_ms=one.start_ms + drawing.width_ms,
            messages=one.positions,
            is_estimated=one.is_estimated,
        )
        for one in drawing.classes()
    ]
    return DueHistogram(width_ms=drawing.width_ms, classes=classes, not_read=reasons)


async def _decoded(
    buckets: Buckets, named: list[tuple[StoredBucket, int]]
) -> dict[tuple[StoredBucket, int], Rows]:
    """Those segments on the bookie that can be read; each takes a few hundred microseconds on the loop."""
    found = {}
    for stored, number in named:
        with contextlib.suppress(StorageError):  # the broker finds that out by itself
            entry = await buckets.store.read_segment(stored, number)
            found[stored, number] = stored.directory.decode_segment(number, entry)
        await trio.lowlevel.checkpoint()
    return found


# -- by position -----------------------------------------------------------------------------------------


async def positions_of(looked: Looked, start: Position, count_max: int) -> list[tuple[int, int]]:
    """At most this many waiting positions, from there on, in the order of the topic."""
    if (view := looked.view) is None:
        return []
    from geminga.tracker.index import eyes

    return await in_slices(eyes.page(view, start, count_max))


async def due_times_of(looked: Looked, positions: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """The due times of positions, except those whose metadata cannot be read."""
    view, found = looked.view, looked.subscription
    if view is None:
        return {}
    from geminga.tracker.index import eyes

    # In memory the index keeps times no more exactly than it has to; the entries have them all.
    due_ms = await in_slices(eyes.due_times_ms(view, positions)) if view.index.rules.exact else {}
    unknown = [position for position in positions if position not in due_ms]
    while unknown:
        part = unknown[:READ_AT_ONCE]
        entries = await found.topic.ledger.read_positions(part, READ_BYTES)
        for entry in entries:
            if (sent_ms := due_ms_of(found, entry)) is not None:
                due_ms[entry.position] = sent_ms
        unknown = unknown[reached(part, entries, READ_BYTES) :]
    return due_ms


# -- by part ---------------------------------------------------------------------------------------------


async def bucket_rows_of(looked: Looked) -> list[ListedPart]:
    """The parts of the index, and the entries that it does not have yet."""
    found: list[ListedPart] = []
    if (buckets := looked.buckets_to_be) is not None:
        from geminga.tracker.index import composition

        view = looked.view
        look = composition.sealed_parts(buckets.index) if view is None else composition.parts_of(view)
        found = [_row(part, looked.partition) for part in await in_slices(look)]
    for one in await why_not_read(looked):
        info = BucketInfo(
            state=one.why,
            partition=looked.partition,
            range="" if one.start_ledger is None else f"{one.start_ledger}-{one.end_ledger}",
            start_ledger=one.start_ledger,
            end_ledger=one.end_ledger,
            ledger_id=None,
            messages=0,
            not_read=one.entries,
            why=one.text,
            bytes=0,
            segments=[],
        )
        found.append((info, iter(())))
    return found


def _row(part: IndexPart, partition: int | None) -> ListedPart:
    stored, has_range = part.stored, part.first_code >= 0
    info = BucketInfo(
        state=part.state,
        partition=partition,
        range=part.range_text,
        start_ledger=part.first_code >> 32 if has_range else None,
        end_ledger=part.last_code >> 32 if has_range else None,
        ledger_id=None if stored is None else stored.ledger_id,
        messages=part.positions,
        is_estimated=part.is_estimated,
        rows_on_disk=part.rows_on_disk,
        rows_in_memory=part.rows_in_memory,
        bytes=0 if stored is None else stored.bytes,
        first_due_ms=part.first_ms,
        last_due_ms=part.last_ms,
        segments=[],
    )
    return info, iter(()) if part.bucket is None else segments_of(part.bucket)


def segments_of(bucket: Bucket) -> Iterator[SegmentInfo]:
    for number in range(bucket.segments):
        yield SegmentInfo(
            number=number,
            first_due_ms=int(bucket.min_ms[number]),
            last_due_ms=int(bucket.max_ms[number]),
            messages=int(bucket.counts[number]),
            bytes=int(bucket.sizes_bytes[number]),
            is_loaded=number < bucket.next_segment or number in bucket.loaded,
        )
