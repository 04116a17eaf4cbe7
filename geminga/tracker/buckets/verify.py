"""Whole buckets verified while they serve: on an operator's request, or on a report of damage to one.

`Check` decides, entry by entry and without I/O; `Verifier` reads a bucket for it, a piece at a time, past all
caches, and rests as long as it works; `inspect` has what is gone or damaged lost, so that its messages are
read again. What cannot be read for another reason is no worse for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import trio
from pyroaring import BitMap

from geminga.errors import CorruptData, StorageError
from geminga.limits import KIB
from geminga.tracker.buckets.bucket_counts import LostBy
from geminga.tracker.buckets.bucket_store import LOST, BucketStore, opened
from geminga.tracker.buckets.buckets import Buckets
from geminga.tracker.buckets.retrying import READ_RETRY_LAST_S, BackOff, OffLoop
from geminga.tracker.format.bucket_format import Directory, members_of
from geminga.tracker.format.stored_bucket import KeyRange, StoredBucket

READ_BYTES_MAX: Final = 64 * KIB
"""Read at once: the thread that cuts it into entries leaves the loop its turn after a millisecond."""
ROWS_ON_LOOP_MAX: Final = 10_000
"""A segment of more is decoded off the loop: this many take half a millisecond."""
LEDGERS_ON_LOOP_MAX: Final = 500
DIRECTORY_BYTES_ON_LOOP_MAX: Final = 64 * KIB
WRONG_MAX: Final = 20
"""Segments that are named; with more the rest of the bucket is not read."""

State = Literal["ok", "lost", "damaged", "unreadable"]


@dataclass(frozen=True, slots=True)
class Wrong:
    """`segment` None: the directory, or the whole."""

    segment: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """On a bucket: lost if its ledger or its directory is gone, unreadable if that cannot be told now."""

    state: State
    segments: int = 0
    rows: int = 0
    bytes: int = 0
    """All three as the directory says."""
    wrong: tuple[Wrong, ...] = ()

    @property
    def text(self) -> str:
        """What is wrong, in a line."""
        return "; ".join(
            wrong.text if wrong.segment is None else f"segment {wrong.segment}: {wrong.text}"
            for wrong in self.wrong
        )


class Check:
    """Whether the segments of a bucket are what its directory says, and nothing else. Pure."""

    def __init__(self, directory: Directory, served: Directory | None) -> None:
        """`served`: what the index goes by, which the directory on the bookie has to be; None: nothing yet.
        CorruptData.
        """
        # A sound bucket in the wrong ledger: another one's data under this one's name.
        if served is not None and not _is_same(directory, served):
            raise CorruptData("the directory is not the one that serves")
        self.directory = directory
        self._seen: dict[int, BitMap] = {}

    def segment(self, number: int, entry: bytes) -> None:
        """CorruptData."""
        for ledger_id, entry_ids in members_of(self.directory.decode_segment(number, entry).codes).items():
            self._seen[ledger_id] = self._seen.get(ledger_id, BitMap()) | entry_ids

    def finish(self) -> None:
        """After all segments. CorruptData."""
        # Bitmaps of all segments together: a position that the directory promises and no segment has would
        # never be due.
        if self._seen != self.directory.members:
            raise CorruptData("the directory has other messages than the segments")


def _is_same(one: Directory, other: Directory) -> bool:
    # The serving directory has given its members to the index, so only the rest can be compared.
    names = [name for name in Directory._fields if name != "members"]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


class Verifier:
    """Reads the buckets of one topic. Holds a directory, two sets of its messages, and `READ_BYTES_MAX`."""

    def __init__(self, store: BucketStore, off_loop: OffLoop) -> None:
        self._store = store
        self._off_loop = off_loop

    async def look(self, ledger_id: int, covered: KeyRange, served: Directory | None) -> Verdict:
        """At the bucket in this ledger, named for what it covers. Nothing changes."""
        try:
            pieces = await self._store.read_directory(ledger_id)
            # A thread would cost more than decoding a usual directory.
            is_small = sum(map(len, pieces.entries)) <= DIRECTORY_BYTES_ON_LOOP_MAX
            bucket, directory = (
                opened(ledger_id, pieces, covered)
                if is_small
                else await self._off_loop(opened, ledger_id, pieces, covered)
            )
            check = Check(directory, served)
        except CorruptData as error:
            return Verdict("damaged", wrong=(Wrong(None, str(error)),))
        except LOST as error:
            return Verdict("lost", wrong=(Wrong(None, str(error)),))
        except StorageError as error:
            return Verdict("unreadable", wrong=(Wrong(None, str(error)),))
        wrong, state = await self._segments(ledger_id, check)
        return Verdict(state, directory.segments, directory.rows, bucket.bytes, tuple(wrong))

    async def _segments(self, ledger_id: int, check: Check) -> tuple[list[Wrong], State]:
        wrong: list[Wrong] = []
        number = 0
        # With so many wrong the verdict is clear, and an operator reads no longer list.
        while number < check.directory.segments and len(wrong) < WRONG_MAX:
            started_s = trio.current_time()
            try:
                entries = await self._read(ledger_id, number, check.directory.segments - 1)
                for entry in entries:
                    number += 1
                    await self._segment(check, number - 1, entry, wrong)
            except LOST as error:
                wrong.append(Wrong(number, str(error)))
                number += 1
            except StorageError as error:
                # Not damaged for this error alone: nothing may be deleted because it could not be read.
                return [*wrong, Wrong(number, str(error))], "damaged" if wrong else "unreadable"
            # Rests as long as it worked: a check of all buckets may take half of the disk, not all.
            await trio.sleep(trio.current_time() - started_s)
        if not wrong:
            try:
                check.finish()
            except CorruptData as error:
                wrong.append(Wrong(None, str(error)))
        return wrong, "damaged" if wrong else "ok"

    async def _read(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        """Some entries; of a run with a damaged one those before it, or its error if it is the first."""
        try:
            return await self._store.peek(ledger_id, first, last, READ_BYTES_MAX)
        except CorruptData:
            # Alone, so that the error is about this entry and those behind it are looked at too.
            return await self._store.peek(ledger_id, first, first, 1)

    async def _segment(self, check: Check, number: int, entry: bytes, wrong: list[Wrong]) -> None:
        directory = check.directory
        is_small = (
            directory.counts[number] <= ROWS_ON_LOOP_MAX and len(directory.members) <= LEDGERS_ON_LOOP_MAX
        )
        try:
            if is_small:
                check.segment(number, entry)
            else:
                await self._off_loop(check.segment, number, entry)
        except CorruptData as error:
            wrong.append(Wrong(number, str(error)))
        # After each segment: one read may hold many small ones, which together would hold the loop.
        await trio.lowlevel.checkpoint()


async def run_inspections(buckets: Buckets) -> None:
    """Look at what was told of, until cancelled; what cannot be read then is looked at again."""
    back_off = BackOff(READ_RETRY_LAST_S)
    while True:
        await buckets.told_signal.wait()
        while buckets.told:
            bucket = buckets.serving.get(ledger_id := buckets.told.pop())
            if bucket is None or (await inspect(buckets, bucket, "told")).state != "unreadable":
                back_off.succeeded()
            else:
                # The report stays: the bookie may not give it again.
                buckets.told.add(ledger_id)
                await trio.sleep(back_off.next_s())


async def inspect(buckets: Buckets, bucket: StoredBucket, how: LostBy) -> Verdict:
    """Look at a bucket that serves, one at a time; on return it is lost if it is gone or damaged. A bucket
    that was retired meanwhile, or got another ledger, is not judged by what was read.
    """
    verifier = Verifier(buckets.store, buckets.off_loop)
    # One at a time: an operator's check and the bookie's reports would read the same bucket twice, and lose
    # it twice.
    async with buckets.inspecting:
        while True:
            ledger_id = bucket.ledger_id
            if bucket.retired:
                return Verdict("ok")
            verdict = await verifier.look(ledger_id, bucket.covered, bucket.directory)
            # Damage on purpose moves a bucket to another ledger; what was read of the former says nothing.
            if bucket.ledger_id == ledger_id:
                break
        if bucket.retired:
            return Verdict("ok")
        if verdict.state in ("lost", "damaged"):
            buckets.lose(bucket, CorruptData(verdict.text), how)
        return verdict
