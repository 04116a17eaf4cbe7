"""Merging: whenever there are more buckets than there may be, some neighbours are written as one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import trio

from geminga.clock import working
from geminga.errors import CorruptData, GemingaError, LedgerNotFound
from geminga.limits import KIB
from geminga.tracker.buckets.bucket_settings import BUCKETS_MAX, BucketSettings
from geminga.tracker.buckets.buckets import Buckets, Outdated
from geminga.tracker.buckets.merge_plan import choose_merge
from geminga.tracker.buckets.merging import DamagedSource, Merger
from geminga.tracker.buckets.retrying import BackOff
from geminga.tracker.format.bucket_format import Directory, decode_directory
from geminga.tracker.format.stored_bucket import KeyRange, StoredBucket

log = logging.getLogger("geminga.tracker")

READ_BYTES_MAX: Final = 512 * KIB
"""Of all sources together is read at once, but at least a segment of each that needs one. In memory that is
ten times as much.
"""


async def run_merging(buckets: Buckets) -> None:
    """Until cancelled, which leaves the sources as they were. So does whatever fails."""
    try:
        await _run(buckets)
    finally:
        buckets.merge_signal.rests()


async def _run(buckets: Buckets) -> None:
    back_off = BackOff()
    while True:
        chosen = _choose(buckets)
        if not chosen:
            await buckets.merge_signal.wait()
            continue
        try:
            # A jump of a virtual clock waits for it: what the sources had loaded, the new bucket loads again.
            with buckets.operations.counting("merge"), working(buckets.merge_signal.worker):
                await _merge(buckets, chosen)
            back_off.succeeded()
        except Outdated:
            # A source went while it was read. Chosen again at once, it might go again: deletions come in
            # rows.
            await trio.sleep(back_off.next_s())
        except GemingaError as error:
            log.warning("%d buckets cannot be merged: %s", len(chosen), error)
            await trio.sleep(back_off.next_s())


def merged_above(settings: BucketSettings) -> int:
    """Buckets are merged when there are more than this."""
    return min(settings.buckets_max, BUCKETS_MAX) if settings.buckets_max > 0 else BUCKETS_MAX


def _choose(buckets: Buckets) -> list[StoredBucket]:
    ordered = buckets.stored
    buckets_max = merged_above(buckets.settings)
    # After each seal and each removal, and mostly in vain: counting all buckets would take milliseconds.
    if len(ordered) <= buckets_max:
        return []
    count_live = buckets.index.members.count_between
    # What is still wanted, not what was written: delivered rows are dropped by the merge and cost next to
    # nothing.
    sizes = [max(1, count_live(bucket.first_code, bucket.last_code)) for bucket in ordered]
    window = choose_merge(sizes, buckets_max)
    return ordered[slice(*window)] if window else []


async def _merge(buckets: Buckets, sources: Sequence[StoredBucket]) -> None:
    """Write the new bucket, have it named instead of the others in one write, then delete those."""
    index, generation, off_loop = buckets.index, buckets.generation, buckets.off_loop
    first = min(source.first_code for source in sources)
    last = max(source.last_code for source in sources)
    merger = Merger(
        [source.directory for source in sources],
        # A copy, as of now: what is acknowledged while the merge runs stays in as dead rows, which are
        # harmless.
        index.members.between(first, last),
        buckets.settings.segment_span_ms,
        buckets.settings.segment_indexes_max,
    )
    async with buckets.store.writing() as writer:
        while wanted := merger.wanted():
            read = {
                number: await _read(buckets, sources[number], segment, READ_BYTES_MAX // len(sources))
                for number, segment in wanted
            }
            try:
                # Sorting and encoding millions of rows takes seconds. In Pulsar such work stalls the
                # dispatcher; 1.5 s were seen (issue #24603).
                segments = await off_loop(merger.step, read)
            except DamagedSource as error:
                # Found by a merge, it is as lost as by a load; left alone, each further merge would stumble
                # over it.
                buckets.lose(sources[error.number], error, "load")
                raise
            await writer.append(segments)
        rest, directory = await off_loop(_finish, merger)
        if directory is None:
            # All was delivered meanwhile: an empty bucket has no directory, and its sources are released by
            # themselves.
            raise Outdated("nothing is left to merge")
        await writer.append(rest)
        await writer.finish()
        covered = KeyRange(
            min(source.covered.first_code for source in sources),
            max(source.covered.last_code for source in sources),
        )
        bucket = StoredBucket(writer.ledger_id, directory, writer.bytes, covered)
        # One write takes the old names away and sets the new one: a crash leaves either all sources or the
        # new bucket.
        await buckets.name(writer, bucket, sources, generation, lambda replaced: index.swap(replaced, bucket))
    buckets.events.merged(bucket, len(sources))


async def _read(buckets: Buckets, source: StoredBucket, first: int, bytes_max: int) -> list[bytes]:
    if source.retired:
        raise Outdated(f"{source!r} is gone")
    try:
        return await buckets.store.read_segments(source, first, bytes_max)
    except (CorruptData, LedgerNotFound) as error:
        buckets.lose(source, error, "load")
        raise


def _finish(merger: Merger) -> tuple[list[bytes], Directory | None]:
    segments, directory = merger.finish()
    return [*segments, *directory], decode_directory(directory) if directory else None
