"""The delayed indexes of one topic: one for each subscription, or one that all share."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from geminga.broker.delays.settings import DelayPolicy, DelaySettings
from geminga.broker.delays.subscription_delays import OpenedIndex, SubscriptionDelays
from geminga.broker.flow.switching import switch_interval
from geminga.errors import GemingaError
from geminga.events.recording import Record, unrecorded
from geminga.managed_ledger.cursor.bucket_properties import DELAYED_PREFIX
from geminga.position import LATEST, Position

if TYPE_CHECKING:
    from geminga.broker.delays.settings import NewBucketStore
    from geminga.clock import Clock
    from geminga.managed_ledger.chain.tasks import StartsTasks
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.tracker.buckets.bucket_store import BucketOwner
    from geminga.tracker.buckets.buckets import Buckets
    from geminga.tracker.buckets.retrying import OffLoop

log = logging.getLogger("geminga.broker")

# Named and not imported: the module brings numpy, which a broker without delayed messages never needs.
_OPEN_INDEX = "geminga.broker.delays.open_index"
NONE_HELD: Final = (LATEST, LATEST)
PRECISION_PROPERTY: Final = "#geminga-delayed-precision-ms"
"""Of a cursor: how precisely its subscription wants due times. It names no ledger."""


class TopicDelays:
    """Opens an index when the first entry has to wait, or an earlier process left something; `start` first.
    Pulsar's DelayedDeliveryTrackerFactory (BucketDelayedDeliveryTrackerFactory with buckets), for one topic.

    A shared index is fed when entries are appended, once a subscription looks at it.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        clock: Clock,
        settings: DelaySettings,
        *,
        off_loop: OffLoop | None = None,
        new_store: NewBucketStore | None = None,
        record: Record = unrecorded,
    ) -> None:
        self.settings = settings
        self.policy = DelayPolicy(True, settings.tick_ms)
        self.shared: Buckets | None = None
        # Looked at for each group of published entries; without an index that is all that delays cost there.
        self.feeds = False
        """Whether `appended` wants to know of delayed entries."""
        self.fed_from: Position = LATEST
        """While it does: the first position of which it was told."""
        self.held: tuple[Position, Position] = NONE_HELD
        """First and last of the entries that `appended` was told of last, if all of them wait in the shared
        index.
        """
        self._ledger = ledger
        self._clock = clock
        self._off_loop = off_loop
        self._new_store = new_store
        self.record = record
        self._opening: trio.Lock | None = None
        """Made with its first use: most topics are idle."""
        self._tasks: StartsTasks | None = None
        self._attached: list[SubscriptionDelays] = []

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self, tasks: StartsTasks) -> None:
        """Before anything is dispatched: look for what an earlier process has left. What keeps the
        buckets runs among `tasks`.
        """
        self._tasks = tasks
        named = [cursor for cursor in self._ledger.cursors.values() if _names_buckets(cursor.properties)]
        # Without a property there is nothing to take over, and the start of most topics imports nothing.
        if self._ledger.internal_properties or named:
            await _import_index()
            await self._take_over(named)

    async def _take_over(self, named: list[Cursor]) -> None:
        from geminga.broker.delays.open_index import CursorOwner, TopicOwner, forget_buckets

        settings = self.settings
        # A broker may go back and forth between settings. Buckets that the present ones do not serve would
        # stay on disk for ever.
        if settings.is_shared or not settings.keeps_buckets:
            for cursor in named:
                await forget_buckets(self._ledger, CursorOwner(cursor))
        if not (settings.is_shared and settings.keeps_buckets):
            await forget_buckets(self._ledger, TopicOwner(self._ledger))
        if settings.is_shared and self._ledger.internal_properties:
            await self._open_shared()

    def attach(self, delays: SubscriptionDelays) -> None:
        """A subscription begins: from now on it hears of policies, and of what a shared index has lost."""
        self._attached.append(delays)

    def detach(self, delays: SubscriptionDelays) -> None:
        if delays in self._attached:
            self._attached.remove(delays)
        # The last view may be gone: what is published then would be kept for no subscription.
        self._set_feeds()

    async def close(self) -> None:
        """After all subscriptions are closed."""
        if self.shared is not None:
            await self.shared.stop()

    def set_policy(self, policy: DelayPolicy) -> None:
        """In force at once, for each subscription."""
        self.policy = policy
        for delays in self._attached:
            delays.set_policy(policy)
        self._set_feeds()

    def _set_feeds(self) -> None:
        feeds = self.shared is not None and bool(self.shared.index.readers) and self.policy.active
        if feeds is not self.feeds:
            self.feeds = feeds
            self.fed_from = self._ledger.last_confirmed.next() if feeds else LATEST

    def users_of(self, buckets: Buckets) -> list[SubscriptionDelays]:
        """The subscriptions that look at this index."""
        return [d for d in self._attached if d.tracker is not None and d.buckets is buckets]

    def wanted_by(self, delays: SubscriptionDelays) -> list[Cursor]:
        """The cursors whose messages the index of this subscription has to have."""
        return self._durable_cursors() if self.settings.is_shared else [delays.cursor]

    def _durable_cursors(self) -> list[Cursor]:
        # Deduplication's cursor follows by snapshots, a thousand entries at a time, and that of compaction
        # never: they would hold the index back.
        return [cursor for cursor in self._ledger.cursors.values() if cursor.durable and not cursor.is_system]

    def is_acknowledged_by_all(self, position: tuple[int, int]) -> bool:
        cursors = self._ledger.cursors.values()
        return all(cursor.is_acknowledged(position) for cursor in cursors if not cursor.is_system)

    # -- the door to the index -------------------------------------------------------------------------------

    def has_index(self, cursor: Cursor) -> bool:
        """Whether there is an index already for the subscription with this cursor."""
        if self.settings.is_shared:
            return self.shared is not None
        return self.settings.keeps_buckets and _names_buckets(cursor.properties)

    def start_soon(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run this among the topic's tasks. False: it has none yet."""
        if self._tasks is None:
            return False
        worker = self._clock.worker("the index of delayed messages is opened")
        self._tasks.start_soon(work if worker is None else worker.to_rest_after(work))
        return True

    async def open(self, delays: SubscriptionDelays) -> OpenedIndex:
        """The index of a subscription, its own or the shared one, and a view of it. Cancelling leaves the
        shared one open or not, and makes no view.
        """
        await _import_index()
        from geminga.broker.delays.open_index import open_view

        buckets = await (self._open_shared() if self.settings.is_shared else self._open_own(delays))
        view = open_view(buckets, delays)
        if (precision_ms := precision_ms_of(delays)) is not None:
            view.set_precision(precision_ms)
        # Only by the first view: for the others the feed goes on already, and a leap would part its stream.
        if self.settings.is_shared and not self.feeds and self._ledger.last_confirmed.ledger_id >= 0:
            # From here on a shared index gets what is published by itself, and the backlog is read beside it.
            view.leap(self._ledger.last_confirmed.next())
        self._set_feeds()
        if delays.cursor.durable and not self._ledger.holds_delayed:
            self.start_soon(partial(self._note, True))
        return OpenedIndex(view, buckets)

    async def note_held(self) -> None:
        """Note in the topic's record whether something is held back: the next start loads the topic then, to
        learn what. To be called when all of the backlog has been read. The note is a hint, and may be missing
        after an error.
        """
        holds = self._has_tracker()
        await self._note(holds)
        if not holds and self._has_tracker():
            # Opened while that was written, when the record still said True: `open` had nothing to note.
            await self._note(True)

    def _has_tracker(self) -> bool:
        # Also if it is empty: `open` notes what is held back later only if it has to open one.
        return any(delays.tracker is not None for delays in self._attached if delays.cursor.durable)

    async def _note(self, holds: bool) -> None:
        try:
            await self._ledger.life.note_delayed(holds)
        except GemingaError as error:
            log.debug("%s: what it holds back is not noted: %s", self._ledger.name, error)

    async def _open_own(self, delays: SubscriptionDelays) -> Buckets:
        from geminga.broker.delays.open_index import CursorOwner, new_recovery, run_buckets

        cursor = delays.cursor
        # PIP-195 names a subscription's buckets in properties of its cursor: deleted with it, and swapped in
        # one write.
        owner = CursorOwner(cursor) if cursor.durable else None
        buckets = self._new_buckets(owner)
        recovery = new_recovery(buckets, lambda: (cursor,), delays.read_again)
        # Before the first message is added: it would be added with the time that it was sent with.
        await buckets.read_overrides()
        assert self._tasks is not None
        self._tasks.start_soon(run_buckets, buckets, recovery)
        return buckets

    def _new_buckets(self, owner: BucketOwner | None) -> Buckets:
        from geminga.broker.delays.open_index import new_buckets

        return new_buckets(
            self._ledger,
            owner,
            self.settings,
            self._clock,
            off_loop=self._off_loop,
            new_store=self._new_store,
            record=self.record,
        )

    async def _open_shared(self) -> Buckets:
        from geminga.broker.delays.open_index import TopicOwner, new_recovery, run_buckets

        if self._opening is None:
            self._opening = trio.Lock()
        async with self._opening:
            if self.shared is None:
                owner = TopicOwner(self._ledger)
                buckets = self._new_buckets(owner)
                recovery = new_recovery(buckets, self._durable_cursors, self._read_again)
                await buckets.read_overrides()
                # Only now: a task that finds it set goes on at once, and overrides have to be there.
                self.shared = buckets
                assert self._tasks is not None
                self._tasks.start_soon(run_buckets, buckets, recovery, self._wake_all)
            return self.shared

    def _read_again(self, first_ledger: int, last_ledger: int) -> None:
        for delays in self._attached:
            delays.read_again(first_ledger, last_ledger)

    def _wake_all(self) -> None:
        for delays in self._attached:
            delays.wake()

    async def set_precision(self, delays: SubscriptionDelays, precision_ms: int | None) -> None:
        """Let a subscription be given messages by less than this early from now on; None: as the broker says.
        In effect and durable on return; cancelling leaves either. ServiceNotReady: its cursor is not durable,
        or closed. ValueTooLarge, StorageError.
        """
        cursor = delays.cursor
        before = cursor.properties.get(PRECISION_PROPERTY)
        add = {} if precision_ms is None else {PRECISION_PROPERTY: precision_ms}
        # Durable first, in effect afterwards: an answer that an operator has seen holds after a crash too.
        await cursor.swap_properties(add, {} if before is None else {PRECISION_PROPERTY: before})
        if delays.tracker is not None:
            delays.tracker.set_precision(precision_ms)
            delays.wake()

    # -- entries ---------------------------------------------------------------------------------------------

    def appended(self, ledger_id: int, first_entry_id: int, deliver_at_ms: Sequence[int]) -> None:
        """These entries are durable and not read by any dispatcher yet. A time of 0: no delay."""
        # Before the first view nothing is fed: the backlog up to there is read when a consumer comes.
        if not self.feeds:
            return
        assert self.shared is not None
        if self.shared.index.append_run(ledger_id, first_entry_id, deliver_at_ms):
            last_entry_id = first_entry_id + len(deliver_at_ms) - 1
            self.held = Position(ledger_id, first_entry_id), Position(ledger_id, last_entry_id)

    async def subscription_deleted(self) -> None:
        """A cursor is gone: let go of what of a shared index only that subscription needed; of all of it, if
        no other looks at it.
        """
        if self.shared is None:
            return
        # The subscription that stood furthest back may be the one: its buckets once stayed until another
        # one's mark-delete position happened to leave a ledger.
        self.shared.index.trim_passed()
        if not self.shared.index.readers:
            self.shared.index.clear()
            await self.shared.clear()


def precision_ms_of(delays: SubscriptionDelays) -> int | None:
    """What was asked for this subscription; None: nothing."""
    return delays.cursor.properties.get(PRECISION_PROPERTY)


def _names_buckets(properties: Mapping[str, int]) -> bool:
    return any(key.startswith(DELAYED_PREFIX) for key in properties)


async def _import_index() -> None:
    """In a thread: it takes a tenth of a second the first time. The loop asks for the interpreter soon
    meanwhile, and gets it between two steps of an import.
    """
    if _OPEN_INDEX not in sys.modules:
        switch_interval.shorten()
        try:
            await trio.to_thread.run_sync(importlib.import_module, _OPEN_INDEX)
        finally:
            switch_interval.restore()
