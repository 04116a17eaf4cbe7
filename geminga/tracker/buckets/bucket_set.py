"""The buckets of one index that serve, and the way in and out: what names them, and their deletion."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal

import trio

from geminga.errors import GemingaError
from geminga.tracker.buckets.bucket_index import BucketIndex
from geminga.tracker.buckets.bucket_operations import BucketOperations
from geminga.tracker.buckets.bucket_owner import BucketOwner
from geminga.tracker.buckets.bucket_store import BucketStore, BucketWriter
from geminga.tracker.buckets.retrying import BackOff, Signal
from geminga.tracker.format.stored_bucket import KEY_PREFIX, StoredBucket

log = logging.getLogger("geminga.tracker")


LostBy = Literal["start", "load", "verify", "told"]
LOST_BY: Final[tuple[LostBy, ...]] = ("start", "load", "verify", "told")
LOST_MAX: Final = 1000


class Outdated(GemingaError):
    """What was being made is not wanted any more: the index was cleared, or a source is gone."""


class BucketSet:
    """A bucket *serves* from the moment its property is durable and the index was told, which nothing can
    come between, until it is retired: from then on it is only to be deleted.
    """

    def __init__(
        self, index: BucketIndex, store: BucketStore, owner: BucketOwner, operations: BucketOperations
    ) -> None:
        self.index = index
        self.store = store
        self.operations = operations
        self.serving: dict[int, StoredBucket] = {}
        """By ledger id."""
        self.generation = 0
        """How often all was cleared."""
        self.load_signal = Signal()
        self.merge_signal = Signal()
        self._delete_signal = Signal()
        self.losses: dict[LostBy, int] = dict.fromkeys(LOST_BY, 0)
        """How many buckets were lost since the process began, by how it was found."""
        self.sealed = 0
        self.rebuilt = 0
        """How many were sealed, and of these how many have messages of what was lost."""
        self.read_again = 0
        """How many of their messages were looked up in the backlog."""
        self.told: set[int] = set()
        """Ledgers of buckets that serve, of which the bookie says that entries are gone or damaged."""
        self.told_signal = Signal()
        self.lost_ledgers: deque[int] = deque(maxlen=LOST_MAX)
        """Those of the buckets that were lost last while they served."""
        self._lost: deque[tuple[int, int]] = deque(maxlen=LOST_MAX)
        """What the buckets that were lost last spanned."""
        self._owner = owner
        self._doomed: deque[tuple[str | None, int]] = deque()
        """To be deleted: the property, unless it is gone already, and the ledger that it names."""
        self._naming = trio.Lock()
        """Held while properties change and the index is told."""

    @property
    def owner_text(self) -> str:
        """Whose index it is, for the log."""
        topic, subscription = self.store.topic, self._owner.subscription
        return topic if subscription is None else f"{topic}, subscription {subscription}"

    @property
    def stored(self) -> list[StoredBucket]:
        """The buckets that serve, in the order of their first messages."""
        return sorted(self.serving.values(), key=lambda bucket: bucket.first_code)

    def named(self) -> dict[str, int]:
        """The durable properties that name buckets."""
        named = self._owner.properties()
        return {key: ledger_id for key, ledger_id in named.items() if key.startswith(KEY_PREFIX)}

    # -- in ---------------------------------------------------------------------------------------------

    def adopt(self, bucket: StoredBucket) -> None:
        """A bucket that is named already and that the index knows."""
        self.serving[bucket.ledger_id] = bucket
        self.store.watch(bucket.ledger_id, self.tell)
        self.load_signal.set()
        self.merge_signal.set()

    def tell(self, ledger_id: int) -> None:
        """The bucket in this ledger is to be looked at: something of it is said to be gone or damaged."""
        if ledger_id in self.serving:
            self.told.add(ledger_id)
            self.told_signal.set()

    async def name(
        self,
        writer: BucketWriter,
        bucket: StoredBucket,
        instead_of: Sequence[StoredBucket],
        generation: int,
        tell_index: Callable[[list[StoredBucket]], None],
    ) -> None:
        """Have a property name a new bucket, instead of those that name the others, in one write; then the
        bucket serves, and the index hears which of the others it replaces.

        `generation` is what it was when work on the bucket began. Outdated: since then all was cleared, or
        another one retired; nothing has changed. ValueTooLarge, ServiceNotReady: nothing has changed.
        StorageError: who knows; the next start will.
        """
        async with self._naming:
            if self.generation != generation or any(old.retired for old in instead_of):
                raise Outdated(f"{bucket!r} is not wanted any more")
            taken = {old.key for old in self.serving.values()} - {old.key for old in instead_of}
            while bucket.key in taken:
                bucket.widen()
            with trio.CancelScope(shield=True):
                writer.naming = True
                old_properties = {old.key: old.ledger_id for old in instead_of}
                await self._owner.swap({bucket.key: bucket.ledger_id}, old_properties)
            # Of those that were lost meanwhile the new bucket has rows too many, which are harmless.
            replaced = [old for old in instead_of if not old.retired]
            for old in replaced:
                self._retire(old)
                self.doom(None, old.ledger_id)
            if self.generation == generation:
                self.adopt(bucket)
                tell_index(replaced)
            else:
                self.doom(bucket.key, bucket.ledger_id)

    async def name_all(
        self,
        new: Sequence[tuple[BucketWriter, StoredBucket]],
        instead_of: Callable[[], Sequence[StoredBucket]],
        generation: int,
        tell_index: Callable[[StoredBucket], bool],
        tell_replaced: Callable[[StoredBucket], None],
    ) -> None:
        """`name` for several buckets, and others for the ranges of several, in one write. The index hears of
        each new one, of which it says whether it wants any of it, then of each that is replaced; others run
        in between. Errors as `name`; once all is named, only Outdated.
        """
        async with self._naming:
            if self.generation != generation:
                raise Outdated("the index was cleared")
            old = instead_of()
            with trio.CancelScope(shield=True):
                for writer, _ in new:
                    writer.naming = True
                old_properties = {bucket.key: bucket.ledger_id for bucket in old}
                await self._owner.swap({bucket.key: bucket.ledger_id for _, bucket in new}, old_properties)
                for _, bucket in new:
                    if self.generation != generation:
                        break
                    if tell_index(bucket):
                        self.adopt(bucket)
                    else:
                        self.doom(bucket.key, bucket.ledger_id)
                    await trio.lowlevel.checkpoint()
                for bucket in old:
                    if not bucket.retired:
                        self._retire(bucket)
                        tell_replaced(bucket)
                    self.doom(None, bucket.ledger_id)
                    await trio.lowlevel.checkpoint()
            if self.generation != generation:
                raise Outdated("the index was cleared")

    async def rename_ledger(self, bucket: StoredBucket, ledger_id: int) -> None:
        """Have the bucket's property name another ledger; the index is not told. Errors as `swap`.

        For damage on purpose: whatever stands in that ledger is served as the bucket from now on. The old
        ledger is left to the caller.
        """
        old = bucket.ledger_id
        await self._owner.swap({bucket.key: ledger_id}, {bucket.key: old})
        if self.serving.pop(old, None) is not None:
            bucket.ledger_id = ledger_id
            self.serving[ledger_id] = bucket
            self.store.unwatch(old)
            self.store.watch(ledger_id, self.tell)

    # -- out --------------------------------------------------------------------------------------------

    def _retire(self, bucket: StoredBucket) -> None:
        bucket.retired = True
        self.serving.pop(bucket.ledger_id, None)
        self.store.unwatch(bucket.ledger_id)

    def doom(self, key: str | None, ledger_id: int) -> None:
        """Delete the property of that name if it still names this ledger, then the ledger."""
        self._doomed.append((key, ledger_id))
        self._delete_signal.set()

    def lose(self, bucket: StoredBucket, error: GemingaError, how: LostBy) -> None:
        """It cannot be read: have what it spans read again from the backlog, and delete what is left of it.

        `how` it was found, for the counters.
        """
        if bucket.retired:
            return
        self.count_lost(how, bucket.first_code, bucket.last_code)
        log.error(
            "%s: %r is lost, its messages are read again from the topic: %s", self.owner_text, bucket, error
        )
        self._retire(bucket)
        self.lost_ledgers.append(bucket.ledger_id)
        self.doom(bucket.key, bucket.ledger_id)
        self.index.bucket_lost(bucket)

    def unwatch_all(self) -> None:
        """The index is let go of, and hears of nothing any more."""
        for ledger_id in self.serving:
            self.store.unwatch(ledger_id)

    def count_lost(self, how: LostBy, first_code: int, last_code: int) -> None:
        self.losses[how] += 1
        self._lost.append((first_code, last_code))

    @property
    def has_lost(self) -> bool:
        return bool(self._lost)

    def count_read_again(self, codes: Sequence[int]) -> None:
        """These delayed messages, ascending, were looked up in the backlog: count what a lost bucket had."""
        near = [(first, last) for first, last in self._lost if first <= codes[-1] and codes[0] <= last]
        if near:
            self.read_again += sum(any(first <= code <= last for first, last in near) for code in codes)

    def count_sealed(self, bucket: StoredBucket) -> None:
        self.sealed += 1
        if any(first <= bucket.last_code and bucket.first_code <= last for first, last in self._lost):
            self.rebuilt += 1
            log.info("%s: %r is rebuilt out of messages that were read again", self.owner_text, bucket)

    @property
    def dying(self) -> int:
        """How many are retired and not wholly deleted yet."""
        return len(self._doomed)

    def look_for_released(self) -> None:
        self._delete_signal.set()

    def _collect_released(self) -> None:
        while self.store.left_behind:
            self.doom(None, self.store.left_behind.pop())
        for bucket in self.index.released():
            if not bucket.retired:
                self._retire(bucket)
                self.doom(bucket.key, bucket.ledger_id)

    async def clear(self) -> None:
        """Retire all; no property names a bucket on return, their ledgers are deleted soon after. Errors as
        `BucketOwner.swap`: then it is tried again, but a crash before that may bring them back.
        """
        self.generation += 1
        for bucket in list(self.serving.values()):
            self._retire(bucket)
            self.doom(bucket.key, bucket.ledger_id)
        async with self._naming:
            doomed = {ledger_id for _, ledger_id in self._doomed}
            for key, ledger_id in self.named().items():
                if ledger_id not in doomed:
                    self.doom(key, ledger_id)
            await self._unname()

    async def _unname(self) -> None:
        """Remove the properties of all that is doomed, in one write."""
        named = {key: ledger_id for key, ledger_id in self._doomed if key is not None}
        if named:
            with trio.CancelScope(shield=True):
                await self._owner.swap({}, named)
            for _ in range(len(self._doomed)):
                key, ledger_id = self._doomed.popleft()
                is_unnamed = key is None or named.get(key) == ledger_id
                self._doomed.append((None if is_unnamed else key, ledger_id))

    async def run_deletions(self) -> None:
        """Delete what is doomed or released, until cancelled: the property first, then the ledger. What
        cannot be deleted is tried again; a crash leaves a ledger for the sweep at the next start.
        """
        back_off = BackOff()
        while True:
            self._collect_released()
            if not self._doomed:
                await self._delete_signal.wait()
                continue
            try:
                with self.operations.counting("delete"):
                    await self._delete_first()
                back_off.succeeded()
            except GemingaError as error:
                log.warning("%d bucket ledgers wait to be deleted: %s", len(self._doomed), error)
                await trio.sleep(back_off.next_s())

    async def _delete_first(self) -> None:
        async with self._naming:
            await self._unname()
        key, ledger_id = self._doomed[0]
        if key is None:
            await self.store.delete(ledger_id)
            self._doomed.popleft()
