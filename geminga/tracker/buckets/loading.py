"""Loading: the segments that are due soon, read ahead of their time, bucket by bucket."""

from __future__ import annotations

import logging
from typing import Final

import trio

from geminga.errors import StorageError
from geminga.tracker.buckets.bucket_store import LOST
from geminga.tracker.buckets.buckets import Buckets
from geminga.tracker.buckets.retrying import (
    READ_FAILURES_QUIET,
    READ_RETRY_LAST_S,
    READ_WHAT_TO_DO,
    RETRY_FIRST_S,
    BackOff,
)
from geminga.tracker.format.stored_bucket import StoredBucket

log = logging.getLogger("geminga.tracker")

LOOK_AGAIN_S: Final = 1.0
"""The index is asked at least this often while anything is stored: message time may be moved by hand."""


class _Failing:
    """A bucket whose last read failed."""

    __slots__ = ("again_s", "back_off", "since_s")

    def __init__(self) -> None:
        self.back_off = BackOff(READ_RETRY_LAST_S)
        self.since_s = trio.current_time()
        self.again_s = 0.0

    def failed(self) -> None:
        self.again_s = trio.current_time() + self.back_off.next_s()

    def is_news(self) -> bool:
        """Whether it has just failed so often that it is worth a line in the log."""
        return self.back_off.failures == READ_FAILURES_QUIET

    def was_told(self) -> bool:
        return self.back_off.failures >= READ_FAILURES_QUIET


class Loader:
    """A bucket that is gone or damaged is lost with the read that finds it so; one that cannot be read for
    any other reason stays, however long that takes: its messages are late, and no others.
    """

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._clock = buckets.clock
        self._failing: dict[StoredBucket, _Failing] = {}

    async def run(self) -> None:
        """Until cancelled. A bucket that cannot be read never holds up another."""
        try:
            await self._run()
        finally:
            self._buckets.load_signal.rests()

    async def _run(self) -> None:
        index = self._buckets.index
        while True:
            has_loaded = False
            for bucket, number in index.wanted(self._clock.now_ms()):
                failing = self._failing.get(bucket)
                # Skipped and not waited for: a disk that fails for one bucket would make those of all others
                # late.
                if not bucket.retired and (failing is None or trio.current_time() >= failing.again_s):
                    has_loaded |= await self._load(bucket, number)
            # A bucket that was merged or lost meanwhile would stay here, with its directory, for ever.
            self._failing = {bucket: f for bucket, f in self._failing.items() if not bucket.retired}
            # A look names a few segments only; as long as it leads to something there may be more to load. A
            # pause between two looks made a backlog that fell due at once late by 12 ms for each few hundred
            # messages, and ended jumps of a virtual clock before all was there.
            if not has_loaded:
                await self._wait(self._pause_s())

    async def _wait(self, pause_s: float) -> None:
        signal, alarm = self._buckets.load_signal, None
        # Under a virtual clock also until a jump comes to the next segment that is wanted.
        if signal.worker is not None and (next_ms := self._buckets.index.next_wanted_ms()) is not None:
            alarm = signal.worker.alarm(next_ms, signal.set)
        try:
            await signal.wait(pause_s)
        finally:
            if alarm is not None:
                alarm.cancel()

    def _pause_s(self) -> float:
        if not self._buckets.serving:
            return float("inf")
        now_s = trio.current_time()
        pause_s = min((f.again_s for f in self._failing.values()), default=now_s + LOOK_AGAIN_S) - now_s
        next_ms = self._buckets.index.next_wanted_ms()
        if next_ms is not None:
            pause_s = min(pause_s, (next_ms - self._clock.now_ms()) / 1000)
        # At least this: a segment that is wanted and cannot be loaded yet would have this task spin.
        return min(LOOK_AGAIN_S, max(pause_s, RETRY_FIRST_S / 4))

    async def _load(self, bucket: StoredBucket, number: int) -> bool:
        """Whether the index has it now."""
        buckets = self._buckets
        has_loaded = False
        try:
            with buckets.operations.counting("load"):
                entry = await buckets.store.read_segment(bucket, number)
                if not bucket.retired:
                    buckets.index.segment_loaded(bucket, number, entry)
                    buckets.events.loaded(bucket, number)
                    has_loaded = True
        except LOST as error:
            # At once, and this bucket only: in Pulsar a segment that is lost while the broker runs wedges all
            # others.
            buckets.lose(bucket, error, "load")
        # Says nothing of the bucket: no descriptor, no memory, a disk that hiccups. Deleting it would cost a
        # re-read of the backlog from that same disk.
        except StorageError as error:
            self._failed(bucket, error)
        else:
            self._read(bucket)
        return has_loaded

    def _failed(self, bucket: StoredBucket, error: StorageError) -> None:
        failing = self._failing.get(bucket) or self._failing.setdefault(bucket, _Failing())
        failing.failed()
        # Once, and not for the first failures: a single one is over within a second.
        if failing.is_news() and not bucket.retired:
            log.warning(
                "%s: %r cannot be read, so its messages are late: %s; %s",
                *(self._buckets.owner_text, bucket, error, READ_WHAT_TO_DO),
            )

    def _read(self, bucket: StoredBucket) -> None:
        failing = self._failing.pop(bucket, None)
        if failing is not None and failing.was_told():
            seconds = trio.current_time() - failing.since_s
            log.warning("%s: %r is read again after %.0f s", self._buckets.owner_text, bucket, seconds)
