"""One delayed index with whoever keeps its buckets: what is opened, run, cleared and stopped together.

This module imports numpy by way of the index, so it is imported when the first message has to wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import trio

from geminga.broker.delays.settings import DelaySettings
from geminga.broker.flow.statistics import BucketOperationStatistics, BucketStatistics
from geminga.clock import Clock
from geminga.errors import GemingaError, ServiceNotReady
from geminga.managed_ledger.chain.entry import Entry
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.position import LATEST, Position
from geminga.tracker.buckets.bucket_owner import BucketOwner
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.bucket_store import BucketStore
from geminga.tracker.buckets.keeper import Keeper
from geminga.tracker.buckets.override_store import OverrideStore
from geminga.tracker.buckets.recovery import Recovery, unacknowledged
from geminga.tracker.buckets.retrying import OffLoop
from geminga.tracker.format.rows import code_of, place_of
from geminga.tracker.format.stored_bucket import KEY_PREFIX
from geminga.tracker.index.frozen import Frozen
from geminga.tracker.index.index import DelayedIndex, IndexSettings

log = logging.getLogger("geminga.broker")


class IndexHome:
    """Without an owner (a subscription that is not durable) everything stays in memory."""

    def __init__(
        self,
        ledger: ManagedLedger,
        owner: BucketOwner | None,
        settings: DelaySettings,
        clock: Clock,
        *,
        off_loop: OffLoop | None = None,
    ) -> None:
        keeps_buckets = settings.keeps_buckets and owner is not None
        self.off_loop = off_loop or cast("OffLoop", trio.to_thread.run_sync)
        self.owner = owner
        self._ledger = ledger
        self.store = BucketStore(ledger.storage)
        self.overrides = OverrideStore(self.store, owner) if owner is not None else None
        """Times that were changed by hand; durable."""
        self.index = DelayedIndex(
            clock,
            IndexSettings(
                tick_ms=settings.tick_ms,
                strict=settings.strict,
                exact=keeps_buckets,
                # A pause in reading hides what comes behind; it is there for Pulsar's sake, in memory only.
                fixed_delay_lookahead=0
                if keeps_buckets or settings.is_shared
                else settings.fixed_delay_lookahead,
                indexes_min=settings.bucket_indexes_min,
                is_shared=settings.is_shared,
            ),
            on_frozen=self._freeze if keeps_buckets else None,
            on_wanted=self._poke if keeps_buckets else None,
            passed_by_all=self._passed_by_all if settings.is_shared else None,
        )
        self.keeper: Keeper | None = None
        if keeps_buckets:
            assert owner is not None
            self.keeper = Keeper(
                self.index,
                self.store,
                owner,
                clock,
                BucketSettings(
                    indexes_min=settings.bucket_indexes_min,
                    segment_span_ms=settings.segment_span_ms,
                    segment_indexes_max=settings.segment_indexes_max,
                    buckets_max=settings.buckets_max,
                ),
                off_loop=self.off_loop,
                is_whole=self._is_whole,
            )
        self.adopting = trio.Lock()
        """Held by whoever brings buckets that were made elsewhere."""
        self._recovery: Recovery | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._ended.set()

    def _freeze(self, frozen: Frozen) -> None:
        assert self.keeper is not None
        self.keeper.freeze(frozen)

    def _poke(self) -> None:
        assert self.keeper is not None
        self.keeper.poke()

    def _is_whole(self, first_code: int, last_code: int) -> bool:
        """Whether these positions are the first of a ledger and the last of one that is closed."""
        (_, first_entry), (last_ledger, last_entry) = place_of(first_code), place_of(last_code)
        is_open = last_ledger >= self._ledger.ledgers[-1].ledger_id
        return not first_entry and not is_open and last_entry == self._ledger.entries_in(last_ledger) - 1

    # -- life ------------------------------------------------------------------------------------------------

    def find(
        self, cursors: Callable[[], Iterable[Cursor]], on_known: Callable[[int, int], None]
    ) -> Callable[[int], bool] | None:
        """Prepare to take over what an earlier process has sealed; `run` does it. Returns what tells
        whether a ledger is unknown until then, None if there is nothing.

        `cursors` are those whose acknowledged entries need not be tracked.
        """
        if self.keeper is None or not self.keeper.buckets.named():
            return None
        self._recovery = Recovery(
            self.keeper.buckets, wanted=lambda members: unacknowledged(cursors(), members), on_known=on_known
        )
        return self._recovery.is_unknown

    async def read_overrides(self) -> None:
        """Take over times that were changed before; those that cannot be read are as they were sent."""
        if self.overrides is not None:
            try:
                await self.overrides.read()
            except GemingaError as error:
                log.error("changed due times are lost: %s", error)
            self._restore_overrides()

    def _restore_overrides(self) -> None:
        """Before what waits is known, and after."""
        if self.overrides is not None and self.overrides.times_ms:
            times_ms = self.overrides.times_ms
            self.index.restore_overrides({place_of(code): time_ms for code, time_ms in times_ms.items()})

    async def run(self, on_recovered: Callable[[], None]) -> None:
        """Keep the buckets until `stop`; `on_recovered` is called once all that was found is taken over."""
        self._ended = trio.Event()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    if self.keeper is not None:
                        nursery.start_soon(self.keeper.run)
                    if (recovery := self._recovery) is not None:
                        await recovery.run()
                        self._recovery = None
                        nursery.start_soon(recovery.run_late)
                        self._restore_overrides()
                    on_recovered()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Let go of the bookie: what is sealed stays. Nothing is written any more on return."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()
        if self.overrides is not None:
            self.overrides.close()

    async def clear(self) -> None:
        """After the index was cleared: no property names a bucket or a changed time on return."""
        try:
            if self.keeper is not None:
                await self.keeper.clear()
            if self.overrides is not None and self.overrides.times_ms:
                await self.overrides.clear()
        except ServiceNotReady:
            pass  # the topic is closing: its next start finds nothing in them that is still wanted

    # -- other times -----------------------------------------------------------------------------------------

    async def reschedule(self, position: Position, due_ms: int) -> bool:
        """Another time for a position that waits, in effect and durable on return. False: it waits not."""
        if not self.index.members.contains(*position):
            return False
        if self.overrides is not None:
            await self.overrides.write({code_of(*position): due_ms})
        return self.index.reschedule(position, due_ms)

    def _passed_by_all(self) -> Position:
        """What subscriptions that have not opened a view yet still need of a shared index stays in it."""
        cursors = self._ledger.cursors.values()
        return min(
            (cursor.mark_delete for cursor in cursors if cursor.durable and not cursor.is_system),
            default=LATEST,
        )

    def is_acknowledged_by_all(self, position: tuple[int, int]) -> bool:
        cursors = self._ledger.cursors.values()
        return all(cursor.is_acknowledged(position) for cursor in cursors if not cursor.is_system)

    def forget_overrides(self, is_acknowledged: Callable[[tuple[int, int]], bool]) -> None:
        if self.overrides is not None and self.overrides.times_ms:
            self.overrides.forget([c for c in self.overrides.times_ms if is_acknowledged(place_of(c))])

    # -- what it is ------------------------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        """Of the index and of all views of it."""
        return self.index.memory_bytes() + sum(view.own_bytes() for view in self.index.views)

    def bucket_statistics(self) -> BucketStatistics | None:
        """None: it keeps none."""
        keeper = self.keeper
        if keeper is None:
            return None
        counts = keeper.operations.counts
        return BucketStatistics(
            buckets=len(keeper.stored) + keeper.waiting + len(self.index.feed.tails),
            loaded=self._loaded(),
            stored_bytes=keeper.stored_bytes,
            operations=tuple(
                BucketOperationStatistics(
                    kind, done.succeeded, done.failed, done.total_ms, tuple(done.latencies)
                )
                for kind, done in counts.items()
            ),
            lost={str(how): count for how, count in keeper.buckets.losses.items()},
            read_again=keeper.buckets.read_again,
            rebuilt=keeper.buckets.rebuilt,
            sealed=keeper.buckets.sealed,
            merged=counts["merge"].succeeded,
        )

    def count_read_again(self, entries: Sequence[Entry]) -> None:
        """These entries with a delivery time, ascending, were read; of most indexes nothing was ever lost."""
        if self.keeper is not None and self.keeper.buckets.has_lost:
            self.keeper.buckets.count_read_again([code_of(*entry.position) for entry in entries])

    def named_beyond(self, position: Position) -> dict[str, int]:
        """The durable properties that name something of the index, without buckets that end before this
        position or with it.
        """
        if self.owner is None:
            return {}
        stored = self.keeper.stored if self.keeper is not None else ()
        passed = {bucket.key for bucket in stored if place_of(bucket.last_code) <= position}
        return {key: found for key, found in self.owner.properties().items() if key not in passed}

    @property
    def is_recovered(self) -> bool:
        """Whether all that an earlier process has sealed is taken over."""
        return self._recovery is None

    def _loaded(self) -> int:
        feed = self.index.feed
        at_hand = sum(bucket.rows_at_hand for _, bucket in self.index.buckets.items())
        return feed.shared.rows() + sum(tail.rows() for tail in feed.tails) + at_hand


async def forget_buckets(ledger: ManagedLedger, owner: BucketOwner) -> None:
    """Delete the buckets that a broker of other settings has left here. Errors are only logged."""
    store = BucketStore(ledger.storage)
    named = {key: found for key, found in owner.properties().items() if key.startswith(KEY_PREFIX)}
    if not named:
        return
    try:
        await owner.swap({}, named)
        for ledger_id in named.values():
            await store.delete(ledger_id)
    except GemingaError as error:
        log.warning("%s: buckets that are of no use now could not be deleted: %s", ledger.name, error)
