"""Sealing: frozen rows into buckets, one by one, while the index goes on serving them from memory."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import trio

from geminga.errors import GemingaError
from geminga.tracker.buckets.bucket_set import BucketSet, Outdated
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.retrying import BackOff, OffLoop, Signal
from geminga.tracker.format.bucket_format import Directory, EncodedBucket, decode_directory, encode_bucket
from geminga.tracker.format.stored_bucket import KeyRange, StoredBucket, whole_ledgers
from geminga.tracker.index.frozen import Frozen

log = logging.getLogger("geminga.tracker")


IsWhole = Callable[[int, int], bool]


class Sealer:
    def __init__(
        self, buckets: BucketSet, settings: BucketSettings, off_loop: OffLoop, is_whole: IsWhole
    ) -> None:
        """`is_whole` tells whether two positions, as codes, are the first and the last of closed ledgers."""
        self._is_whole = is_whole
        self._buckets = buckets
        self._settings = settings
        self._off_loop = off_loop
        self._frozen: deque[Frozen] = deque()
        self._signal = Signal()

    def add(self, frozen: Frozen) -> None:
        self._frozen.append(frozen)
        self._signal.set()

    def __len__(self) -> int:
        return len(self._frozen)

    def clear(self) -> None:
        """Seal none of them; one that is being written is deleted again."""
        self._frozen.clear()

    async def run(self) -> None:
        """Until cancelled, which leaves what is frozen in memory and in the backlog."""
        back_off = BackOff()
        while True:
            if not self._frozen:
                await self._signal.wait()
                continue
            frozen = self._frozen[0]
            if not self._buckets.index.live_count(frozen.first_code, frozen.last_code):
                self._none(frozen)
                continue
            try:
                with self._buckets.operations.counting("create"):
                    await self._seal(frozen)
                back_off.succeeded()
            except Outdated:
                continue
            except GemingaError as error:
                log.warning(
                    "the delayed messages of ledgers %d to %d stay in memory, they cannot be sealed: %s",
                    frozen.start_ledger,
                    frozen.end_ledger,
                    error,
                )
                await trio.sleep(back_off.next_s())

    def _none(self, frozen: Frozen) -> None:
        self._frozen.popleft()
        self._buckets.index.sealed_none(frozen)

    def covered(self, directory: Directory) -> KeyRange:
        """What the name of a bucket with this directory speaks of: as little as it can, but whole ledgers."""
        if self._is_whole(directory.first_code, directory.last_code):
            return whole_ledgers(directory.start_ledger, directory.end_ledger)
        return KeyRange(directory.first_code, directory.last_code)

    async def _seal(self, frozen: Frozen) -> None:
        generation = self._buckets.generation
        sealed = await self._off_loop(_encode, frozen, self._settings)
        if sealed is None:
            if self._frozen and self._frozen[0] is frozen:
                self._none(frozen)
            return
        encoded, directory = sealed
        async with self._buckets.store.writing() as writer:
            await writer.append(encoded.segments)
            await writer.append(encoded.directory)
            await writer.finish()
            covered = self.covered(directory)
            bucket = StoredBucket(writer.ledger_id, directory, writer.bytes, covered)

            def tell_index(_: list[StoredBucket]) -> None:
                self._frozen.popleft()
                self._buckets.index.sealed(frozen, bucket)
                self._buckets.count_sealed(bucket)

            await self._buckets.name(writer, bucket, (), generation, tell_index)


def _encode(frozen: Frozen, settings: BucketSettings) -> tuple[EncodedBucket, Directory] | None:
    """None: what is live of it has rows elsewhere by now, as after the clock was set back."""
    if not frozen.rows.length:
        return None
    encoded = encode_bucket(
        frozen.start_ledger,
        frozen.end_ledger,
        frozen.rows,
        settings.segment_span_ms,
        settings.segment_indexes_max,
    )
    return encoded, decode_directory(encoded.directory)
