"""Merging: whenever there are more buckets than there may be, some neighbours are written as one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import trio

from geminga.errors import CorruptData, GemingaError, LedgerNotFound
from geminga.limits import KIB
from geminga.tracker.buckets.bucket_set import BucketSet, Outdated
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.merge_plan import choose_merge
from geminga.tracker.buckets.merging import DamagedSource, Merger
from geminga.tracker.buckets.retrying import BackOff, OffLoop
from geminga.tracker.format.bucket_format import Directory, decode_directory
from geminga.tracker.format.stored_bucket import KeyRange, StoredBucket

log = logging.getLogger("geminga.tracker")

READ_BYTES_MAX: Final = 512 * KIB
"""Of all sources together is read at once, but at least a segment of each that needs one. In memory that is
ten times as much.
"""


class MergeTask:
    def __init__(self, buckets: BucketSet, settings: BucketSettings, off_loop: OffLoop) -> None:
        self._buckets = buckets
        self._settings = settings
        self._off_loop = off_loop

    async def run(self) -> None:
        """Until cancelled, which leaves the sources as they were. So does whatever fails."""
        back_off = BackOff()
        while True:
            chosen = self._choose()
            if not chosen:
                await self._buckets.merge_signal.wait()
                continue
            try:
                with self._buckets.operations.counting("merge"):
                    await self._merge(chosen)
                back_off.succeeded()
            except Outdated:
                await trio.sleep(back_off.next_s())
            except GemingaError as error:
                log.warning("%d buckets cannot be merged: %s", len(chosen), error)
                await trio.sleep(back_off.next_s())

    def _choose(self) -> list[StoredBucket]:
        ordered = sorted(self._buckets.serving.values(), key=lambda bucket: bucket.first_code)
        count_live = self._buckets.index.live_count
        sizes = [max(1, count_live(bucket.first_code, bucket.last_code)) for bucket in ordered]
        window = choose_merge(sizes, self._settings.merged_above)
        return ordered[slice(*window)] if window else []

    async def _merge(self, sources: Sequence[StoredBucket]) -> None:
        """Write the new bucket, have it named instead of the others in one write, then delete those."""
        index, generation = self._buckets.index, self._buckets.generation
        first = min(source.first_code for source in sources)
        last = max(source.last_code for source in sources)
        merger = Merger(
            [source.directory for source in sources],
            index.live(first, last),
            self._settings.segment_span_ms,
            self._settings.segment_indexes_max,
        )
        async with self._buckets.store.writing() as writer:
            while wanted := merger.wanted():
                read = {
                    number: await self._read(sources[number], segment, READ_BYTES_MAX // len(sources))
                    for number, segment in wanted
                }
                try:
                    segments = await self._off_loop(merger.step, read)
                except DamagedSource as error:
                    self._buckets.lose(sources[error.number], error, "load")
                    raise
                await writer.append(segments)
            rest, directory = await self._off_loop(_finish, merger)
            if directory is None:
                raise Outdated("nothing is left to merge")
            await writer.append(rest)
            await writer.finish()
            covered = KeyRange(
                min(source.covered.first_code for source in sources),
                max(source.covered.last_code for source in sources),
            )
            bucket = StoredBucket(writer.ledger_id, directory, writer.bytes, covered)
            await self._buckets.name(
                writer, bucket, sources, generation, lambda replaced: index.swap(replaced, bucket)
            )

    async def _read(self, source: StoredBucket, first: int, bytes_max: int) -> list[bytes]:
        if source.retired:
            raise Outdated(f"{source!r} is gone")
        try:
            return await self._buckets.store.read_segments(source, first, bytes_max)
        except (CorruptData, LedgerNotFound) as error:
            self._buckets.lose(source, error, "load")
            raise


def _finish(merger: Merger) -> tuple[list[bytes], Directory | None]:
    segments, directory = merger.finish()
    return [*segments, *directory], decode_directory(directory) if directory else None
