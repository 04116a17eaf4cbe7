"""The buckets of one index on the bookie: which serve, how they come and go, and what names them.

This is state and the order of its changes; the tasks that seal, load, merge and look after buckets are run
by `tasks.py` and call back here. They wait for each other only where properties change: a merge of millions
of rows holds up neither the next seal nor a segment that is due. The index serves all along: frozen rows from
memory until they are sealed, merged buckets until the new one is named.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Final

import trio

from geminga.clock import Clock
from geminga.errors import GemingaError, ServiceNotReady
from geminga.events.recording import Record, unrecorded
from geminga.position import Position
from geminga.tracker.buckets.bucket_counts import LOST_MAX, BucketOperations, Losses, LostBy
from geminga.tracker.buckets.bucket_events import BucketEvents
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.bucket_store import BucketOwner, BucketStore, BucketWriter
from geminga.tracker.buckets.override_store import OverrideStore
from geminga.tracker.buckets.retrying import BackOff, OffLoop, Signal, in_thread
from geminga.tracker.buckets.unknown import UnknownLedgers
from geminga.tracker.format.rows import code_of, position_of
from geminga.tracker.format.stored_bucket import KEY_PREFIX, StoredBucket
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.part import Frozen

log = logging.getLogger("geminga.tracker")

AreClosedLedgers = Callable[[tuple[int, int], tuple[int, int]], bool]
NO_BUCKETS: Final = BucketSettings()
FORGOTTEN_MAX: Final = 500
"""Changed times that are looked at in one piece: about half a millisecond."""


class Outdated(GemingaError):
    """What was being made is not wanted any more: the index was cleared, or a source is gone."""


def _never(first: tuple[int, int], last: tuple[int, int]) -> bool:
    return False


class Buckets:
    """An index (`index`) with all that it has on the bookie: its buckets, and due times changed by hand.
    Together they are Pulsar's BucketDelayedDeliveryTracker; the index alone is its
    InMemoryDelayedDeliveryTracker.

    A bucket *serves* from the moment its property is durable and the index was told, which nothing can
    come between, until it is retired: from then on it is only to be deleted.
    """

    def __init__(
        self,
        store: BucketStore,
        owner: BucketOwner | None,
        clock: Clock,
        index_settings: IndexSettings,
        settings: BucketSettings | None,
        *,
        off_loop: OffLoop = in_thread,
        are_closed_ledgers: AreClosedLedgers = _never,
        passed_by_all: Callable[[], tuple[int, int]] | None = None,
        record: Record = unrecorded,
    ) -> None:
        """`owner` None (a subscription that is not durable): nothing is written. `settings` None: nothing is
        sealed, and only changed times are written. `are_closed_ledgers` is the managed ledger's, and
        `passed_by_all` the index's.
        """
        self.keeps = settings is not None and owner is not None
        """Whether the index has buckets at all."""
        self.index = DelayedIndex(
            clock,
            index_settings,
            self.seal if self.keeps else None,
            self.poke if self.keeps else None,
            passed_by_all,
        )
        self.store = store
        self.clock = clock
        self.settings = settings or NO_BUCKETS
        self.off_loop = off_loop
        self.are_closed_ledgers = are_closed_ledgers
        self.operations = BucketOperations(clock)
        self.overrides = OverrideStore(store, owner) if owner is not None else None
        """Due times that were changed by hand; durable."""
        self.serving: dict[int, StoredBucket] = {}
        """By ledger id."""
        self.generation = 0
        """How often all was cleared."""
        self.events = BucketEvents(record, store.topic, (owner and owner.subscription) or "")
        self.seal_signal = Signal()
        self.load_signal = Signal(clock.worker(f"buckets of {self.owner_text}"))
        self.merge_signal = Signal(clock.worker(f"merging of {self.owner_text}"))
        self.delete_signal = Signal()
        self.told_signal = Signal()
        self.inspecting = trio.Lock()
        """Held while a bucket that serves is looked at."""
        self.adopting = trio.Lock()
        """Held while buckets that were built elsewhere are brought in."""
        self.losses = Losses()
        self.sealed_count = 0
        """How many were sealed since the process began."""
        self.told: set[int] = set()
        """Ledgers of buckets that serve, of which the bookie says that entries are gone or damaged."""
        self.lost_ledgers: deque[int] = deque(maxlen=LOST_MAX)
        """Those of the buckets that were lost last while they served."""
        self.unknown = UnknownLedgers()
        """What `Recovery` has yet to read."""
        self.is_recovered = True
        """Whether all that an earlier process has sealed is taken over."""
        self._recovered: trio.Event | None = None
        """While a recovery runs."""
        self.frozen: deque[Frozen] = deque()
        """What waits to be sealed, the oldest first."""
        self._owner = owner
        self._doomed: deque[tuple[str | None, int]] = deque()
        """To be deleted: the property, unless it is gone already, and the ledger that it names."""
        self._naming = trio.Lock()
        """Held while properties change and the index is told."""
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._ended.set()

    @property
    def owner_text(self) -> str:
        """Whose index it is, for the log."""
        return self.events.owner_text

    @property
    def stored(self) -> list[StoredBucket]:
        """The buckets that serve, in the order of their first messages."""
        return sorted(self.serving.values(), key=lambda bucket: bucket.first_code)

    @property
    def stored_bytes(self) -> int:
        return sum(bucket.bytes for bucket in self.serving.values())

    def named(self) -> dict[str, int]:
        """The durable properties that name buckets."""
        return {key: value for key, value in self.properties().items() if key.startswith(KEY_PREFIX)}

    def properties(self) -> Mapping[str, int]:
        """All durable properties of the index."""
        return self._owner.properties() if self._owner is not None else {}

    async def _swap(self, add: Mapping[str, int], remove: Mapping[str, int]) -> None:
        assert self._owner is not None
        await self._owner.swap(add, remove)

    # -- what the index asks for ------------------------------------------------------------------------

    def seal(self, frozen: Frozen) -> None:
        """Write these rows as a bucket. They are durable once the index hears `sealed`."""
        self.frozen.append(frozen)
        self.seal_signal.set()

    def poke(self) -> None:
        """The index may want or have released something, or message time was moved."""
        self.load_signal.set()
        self.delete_signal.set()

    def sealed(self, bucket: StoredBucket | None) -> None:
        """The first of what is frozen is in this bucket now; None: nothing of it is wanted any more."""
        frozen = self.frozen.popleft()
        if bucket is None:
            self.index.sealed_none(frozen)
            return
        self.index.sealed(frozen, bucket)
        self.sealed_count += 1
        self.events.sealed(bucket)
        if self.losses.count_sealed(bucket.first_code, bucket.last_code):
            self.events.rebuilt(bucket)

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
        StorageError: unknown whether it changed; the next start finds out.
        """
        # One write at a time: each swap is computed from the properties that the one before has left.
        async with self._naming:
            if self.generation != generation or any(old.retired for old in instead_of):
                raise Outdated(f"{bucket!r} is not wanted any more")
            taken = {old.key for old in self.serving.values()} - {old.key for old in instead_of}
            # Ranges overlap where positions came out of order, so two buckets may have one name. The second
            # swap would take the first bucket's name away, and the next start sweep its ledger.
            while bucket.key in taken:
                bucket.widen()
            # Cancelled in between, it would not be known whether the property is on disk, and the bucket
            # served nowhere.
            with trio.CancelScope(shield=True):
                writer.begin_naming()
                old_properties = {old.key: old.ledger_id for old in instead_of}
                await self._swap({bucket.key: bucket.ledger_id}, old_properties)
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
                    writer.begin_naming()
                old_properties = {bucket.key: bucket.ledger_id for bucket in old}
                await self._swap({bucket.key: bucket.ledger_id for _, bucket in new}, old_properties)
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
        await self._swap({bucket.key: ledger_id}, {bucket.key: old})
        if self.serving.pop(old, None) is not None:
            bucket.move_to(ledger_id)
            self.serving[ledger_id] = bucket
            self.store.unwatch(old)
            self.store.watch(ledger_id, self.tell)

    # -- out --------------------------------------------------------------------------------------------

    def _retire(self, bucket: StoredBucket) -> None:
        bucket.retire()
        self.serving.pop(bucket.ledger_id, None)
        self.store.unwatch(bucket.ledger_id)

    def doom(self, key: str | None, ledger_id: int) -> None:
        """Delete the property of that name if it still names this ledger, then the ledger."""
        self._doomed.append((key, ledger_id))
        self.delete_signal.set()

    def lose(self, bucket: StoredBucket, error: GemingaError, how: LostBy) -> None:
        """It cannot be read: have what it spans read again from the backlog, and delete what is left of it.

        `how` it was found, for the counters.
        """
        if bucket.retired:
            return
        self.losses.count(how, bucket.first_code, bucket.last_code)
        waiting = self.index.members.count_between(bucket.first_code, bucket.last_code)
        self.events.lost(bucket, how, error, waiting)
        self._retire(bucket)
        self.lost_ledgers.append(bucket.ledger_id)
        self.doom(bucket.key, bucket.ledger_id)
        # Only its own range is read again. In Pulsar one lost bucket has the whole subscription indexed in
        # memory (pull 22735).
        self.index.bucket_lost(bucket)

    @property
    def dying(self) -> int:
        """How many are retired and not wholly deleted yet."""
        return len(self._doomed)

    def _collect_released(self) -> None:
        while self.store.left_behind:
            self.doom(None, self.store.left_behind.pop())
        for bucket in self.index.buckets.released():
            if not bucket.retired:
                self.events.deleted(bucket)
                self._retire(bucket)
                self.doom(bucket.key, bucket.ledger_id)

    async def clear(self) -> None:
        """After the index was cleared: retire all buckets, forget changed times and what is frozen. No
        property names any of it on return, their ledgers are deleted soon after.

        StorageError: it is tried again, but a crash before that may bring some back.
        """
        self.frozen.clear()
        self.generation += 1
        for bucket in list(self.serving.values()):
            self._retire(bucket)
            self.doom(bucket.key, bucket.ledger_id)
        # Where the topic is closing, its next start finds nothing in them that is still wanted.
        with contextlib.suppress(ServiceNotReady):
            async with self._naming:
                doomed = {ledger_id for _, ledger_id in self._doomed}
                for key, ledger_id in self.named().items():
                    if ledger_id not in doomed:
                        self.doom(key, ledger_id)
                await self._unname()
            if self.overrides is not None and self.overrides.times_ms:
                await self.overrides.clear()

    async def _unname(self) -> None:
        """Remove the properties of all that is doomed, in one write."""
        named = {key: ledger_id for key, ledger_id in self._doomed if key is not None}
        if named:
            with trio.CancelScope(shield=True):
                await self._swap({}, named)
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
                await self.delete_signal.wait()
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

    # -- other times ------------------------------------------------------------------------------------

    async def read_overrides(self) -> None:
        """Take over times that were changed before; those that cannot be read are as they were sent."""
        if self.overrides is not None:
            try:
                await self.overrides.read()
            except GemingaError as error:
                log.error("changed due times are lost: %s", error)
            self._restore_overrides()

    def _restore_overrides(self) -> None:
        if self.overrides is not None and self.overrides.times_ms:
            times_ms = self.overrides.times_ms
            self.index.restore_overrides({position_of(code): time_ms for code, time_ms in times_ms.items()})

    async def reschedule(self, position: Position, due_ms: int) -> bool:
        """Another time for a position that waits, in effect and durable on return. False: it waits not."""
        if not self.index.members.contains(*position):
            return False
        if self.overrides is not None:
            await self.overrides.write({code_of(*position): due_ms})
        return self.index.reschedule(position, due_ms)

    def forget_overrides(
        self, is_acknowledged: Callable[[tuple[int, int]], bool]
    ) -> Generator[None, None, None]:
        """Let changed times of these make room for others, once in many changes: looking through all of them
        for each change made 100,000 cost more than an hour.
        """
        if self.overrides is not None and self.overrides.wants_room:
            codes = list(self.overrides.times_ms)
            for start in range(0, len(codes), FORGOTTEN_MAX):
                some = codes[start : start + FORGOTTEN_MAX]
                self.overrides.forget([code for code in some if is_acknowledged(position_of(code))])
                yield

    # -- life -------------------------------------------------------------------------------------------

    def begin_recovery(self, ranges: Mapping[str, tuple[int, int]]) -> None:
        """Buckets of an earlier process are named and yet to be read: what ledgers each speaks of, by key."""
        self.unknown.expect(ranges)
        self.is_recovered = False
        self._recovered = trio.Event()

    async def recovered(self) -> None:
        """Return when `is_recovered`, or when it was stopped before."""
        if self._recovered is not None:
            await self._recovered.wait()

    def end_recovery(self) -> None:
        self.is_recovered = True
        if self._recovered is not None:
            self._recovered.set()
        # Once more: the index did not know the messages when the times were read.
        self._restore_overrides()

    @contextlib.contextmanager
    def until_stopped(self) -> Iterator[None]:
        """The context of all tasks that write for this index: `stop` ends it, and waits for its end."""
        self._ended = trio.Event()
        try:
            with self._scope:
                yield
        finally:
            for ledger_id in self.serving:
                self.store.unwatch(ledger_id)
            if self._recovered is not None:
                self._recovered.set()
            self._ended.set()

    async def stop(self) -> None:
        """Let go of the bookie: what is sealed stays. Nothing is written any more on return."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()
        if self.overrides is not None:
            self.overrides.close()
