"""What a start finds of the buckets that an earlier process has sealed: read, checked, and taken over.

Beside the dispatch path: which ledgers the properties speak of is known at once, and until a bucket has been
read its ledgers are *unknown* (`Buckets.unknown`). The dispatcher skips entries of such ledgers, and when
`on_known` names a range reads what is unacknowledged in it and not in the index: that is everything, where
the bucket is lost. So undelayed messages flow meanwhile, and no bucket is waited for.

A bucket that is missing, torn or damaged costs a re-read of its own ledgers. Buckets may span the same
positions: what two of them have is tracked once.

A read that fails for another reason (a disk that hiccups, no descriptor left) deletes nothing. The others are
taken over meanwhile; what cannot be read for half a minute does not hold up its messages any longer: its
ledgers are read from the backlog, and by the time that it can be read it is superseded (`run_late`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import trio
from pyroaring import BitMap

from geminga.errors import StorageError
from geminga.managed_ledger.cursor.acknowledged import Acknowledged
from geminga.tracker.buckets.bucket_store import LOST
from geminga.tracker.buckets.buckets import Buckets
from geminga.tracker.buckets.retrying import (
    READ_FAILURES_QUIET,
    READ_RETRY_LAST_S,
    READ_WHAT_TO_DO,
    BackOff,
)
from geminga.tracker.format.bucket_format import Directory
from geminga.tracker.format.stored_bucket import KeyRange, StoredBucket, bucket_text, range_of_key

log = logging.getLogger("geminga.tracker")

# A read mostly waits for the disk, so several at once; more would crowd out the reads of clients that are
# served meanwhile.
OPENED_AT_ONCE: Final = 8
# Pulsar blocks a subscription's dispatcher for up to 300 s here (issue #26103).
UNKNOWN_S_MAX: Final = 30.0
"""So long the messages of buckets that cannot be read wait for them."""

Members = Mapping[int, BitMap]
"""Entry ids by ledger."""


@dataclass(slots=True, repr=False)
class _Named:
    """What one property says."""

    key: str
    ledger_id: int
    covered: KeyRange

    def __repr__(self) -> str:
        return bucket_text(self.covered, self.ledger_id)


class Recovery:
    """Made before anything of the topic is dispatched; then `run` beside it, once.

    `wanted` says which members are not acknowledged, `on_known` hears of each range of ledgers, first and
    last, that is not unknown any more.
    """

    def __init__(
        self,
        buckets: Buckets,
        *,
        wanted: Callable[[Members], dict[int, BitMap]],
        on_known: Callable[[int, int], None],
    ) -> None:
        self._buckets = buckets
        self._wanted = wanted
        self._on_known = on_known
        # By ledgers, or every other start began with the last ones, and the messages that were due came after
        # all others.
        self._unread = deque(sorted(self._named(), key=lambda one: one.covered))
        self._failed: list[tuple[_Named, StorageError]] = []
        """Those that could not be read, neither gone nor damaged as far as is known."""
        # Before any read: what the dispatcher reads of these ledgers from now on might be in one of the
        # buckets.
        buckets.begin_recovery({one.key: one.covered.ledgers for one in self._unread})

    def _named(self) -> list[_Named]:
        named, ledger_ids = [], set()
        owner_text = self._buckets.owner_text
        for key, ledger_id in self._buckets.named().items():
            covered = range_of_key(key)
            # The same ledger under two names: one of them has a range that is not its own.
            if covered is None or ledger_id in ledger_ids:
                log.error("%s: property %s=%d names no bucket; it is removed", owner_text, key, ledger_id)
                # Left named it would be reported at each start, and count towards the most that a record may
                # hold.
                self._buckets.doom(key, ledger_id)
            else:
                ledger_ids.add(ledger_id)
                named.append(_Named(key, ledger_id, covered))
        return named

    async def run(self) -> None:
        """On return nothing is unknown. Cancelling leaves the rest unknown, and the disk as it was."""
        generation = self._buckets.generation
        back_off = BackOff(READ_RETRY_LAST_S)
        until_s = trio.current_time() + UNKNOWN_S_MAX
        # All others first: buckets that can be read do not wait for one that cannot.
        await self._take_over_all(generation)
        # Bounded, as messages of an unread bucket are skipped by the dispatcher until it is settled.
        while self._failed and (left_s := until_s - trio.current_time()) > 0:
            await trio.sleep(min(back_off.next_s(), left_s))
            # Once: not for a hiccup, and not with each further try.
            if back_off.failures == READ_FAILURES_QUIET:
                self._log_failed("their messages wait for them")
            self._unread.extend(one for one, _ in self._failed)
            self._failed.clear()
            await self._take_over_all(generation)
        if self._failed:
            self._log_failed("their messages are looked up in the backlog instead")
        for one, _ in self._failed:
            # Settled unread: what it has is read from the backlog instead. It stays named until it can be
            # judged.
            self._on_known(*self._buckets.unknown.settle(one.key))

    async def run_late(self) -> None:
        """After `run`: until what it could not read is gone or superseded. Cancelling leaves the rest named,
        for the next start.
        """
        generation, back_off = self._buckets.generation, BackOff(READ_RETRY_LAST_S)
        # Not deleted unread: until it opens it cannot be told from one whose disk is away for a moment.
        while self._failed and self._buckets.generation == generation:
            await trio.sleep(back_off.next_s())
            failed, self._failed = self._failed, []
            for one, _ in failed:
                if await self._is_readable(one):
                    log.warning("%s: %r is superseded, and deleted", self._buckets.owner_text, one)
                    # Its messages are in other buckets by now; taken over as well, each would have a second
                    # row.
                    self._buckets.doom(one.key, one.ledger_id)

    async def _is_readable(self, one: _Named) -> bool:
        """False: it failed again, or is lost."""
        try:
            await self._buckets.store.open(one.ledger_id, one.covered)
        except LOST as error:
            self._lost(one, error)
        except StorageError as error:
            self._failed.append((one, error))
        else:
            return True
        return False

    async def _take_over_all(self, generation: int) -> None:
        # Workers share a queue, rather than a task for each bucket: trio runs tasks that are started together
        # forwards or backwards, at random. Oldest ledgers first: they are most likely to be due.
        async def take_over_some() -> None:
            while self._unread:
                await self._take_over(self._unread.popleft(), generation)

        async with trio.open_nursery() as nursery:
            for _ in range(OPENED_AT_ONCE):
                nursery.start_soon(take_over_some)

    async def _take_over(self, one: _Named, generation: int) -> None:
        try:
            found = await self._buckets.store.open(one.ledger_id, one.covered)
        except LOST as error:
            # All was cleared meanwhile, as by a seek: its property is removed by that, and nothing of it is
            # wanted.
            if self._buckets.generation == generation:
                self._lost(one, error)
        except StorageError as error:
            # Not settled: the dispatcher skips its ledgers until a try succeeds or `UNKNOWN_S_MAX` is over.
            self._failed.append((one, error))
            return
        else:
            if self._buckets.generation == generation:
                self._adopt(one.key, *found)
        self._on_known(*self._buckets.unknown.settle(one.key))

    def _adopt(self, key: str, bucket: StoredBucket, directory: Directory) -> None:
        # What was acknowledged before the crash is in the cursors, not in the bucket: tracked again it would
        # count as delayed, and be read for nothing when it is due.
        members = self._wanted(directory.members)
        # All of it is acknowledged, perhaps by an expiry or a skip: nothing needs the bucket.
        if any(members.values()):
            # Index first, then `adopt`, without an await in between: a bucket that serves must be known to
            # the index.
            self._buckets.index.recovered(bucket, members)
            self._buckets.adopt(bucket)
        else:
            self._buckets.doom(key, bucket.ledger_id)

    def _lost(self, one: _Named, why: object) -> None:
        self._buckets.events.found_lost(one, one.ledger_id, one.covered, why)
        # By what its name covers, as its directory could not be read.
        self._buckets.losses.count("start", *one.covered)
        self._buckets.doom(one.key, one.ledger_id)

    def _log_failed(self, meanwhile: str) -> None:
        first, error = self._failed[0]
        log.warning(
            "%s: %d of its buckets cannot be read, so %s: %r: %s; %s",
            *(self._buckets.owner_text, len(self._failed), meanwhile, first, error, READ_WHAT_TO_DO),
        )


def unacknowledged(cursors: Iterable[Acknowledged], members: Members) -> dict[int, BitMap]:
    """Those of the members that at least one of the cursors has not acknowledged."""
    wanted: dict[int, BitMap] = {}
    for cursor in cursors:
        state = cursor.state()
        ledger_id, entry_id = cursor.mark_delete
        for member_ledger, entry_ids in members.items():
            # Behind the mark-delete position all is acknowledged, whatever the bitmaps say.
            if member_ledger < ledger_id:
                continue
            left = entry_ids - state.acknowledged.get(member_ledger, BitMap())
            if member_ledger == ledger_id:
                # `entry_id` is -1 where the position is before the first entry, and nothing is removed then.
                left.remove_range(0, entry_id + 1)
            if left:
                # A union: a shared index keeps a message until the last subscription has it.
                wanted[member_ledger] = wanted.get(member_ledger, BitMap()) | left
    return wanted
