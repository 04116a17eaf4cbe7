"""The delayed indexes of one topic: one for each subscription, or one that all share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from geminga.broker.delays.delayed import DelayedEntries, DelayPolicy
from geminga.broker.delays.settings import DelaySettings
from geminga.broker.flow.switching import switch_interval
from geminga.managed_ledger.cursor.bucket_properties import DELAYED_PREFIX

if TYPE_CHECKING:
    from geminga.broker.delays.index_home import IndexHome
    from geminga.clock import Clock
    from geminga.managed_ledger.chain.tasks import StartsTasks
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.tracker.buckets.bucket_owner import CursorOwner, TopicOwner
    from geminga.tracker.buckets.retrying import OffLoop
    from geminga.tracker.index.interface import DelayedDeliveryTracker

_HOME = "geminga.broker.delays.index_home"
PRECISION_PROPERTY: Final = "#geminga-delayed-precision-ms"
"""Of a cursor: how precisely its subscription wants due times. It names no ledger."""


class TopicDelays:
    """Opens trackers when the first entry has to wait, or an earlier process left something; `start` first.

    A shared index is fed when entries are appended, once a subscription looks at it.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        clock: Clock,
        settings: DelaySettings,
        *,
        off_loop: OffLoop | None = None,
    ) -> None:
        self.settings = settings
        self.shared: IndexHome | None = None
        self.feeds = False
        """Whether `appended` wants to know of delayed entries."""
        self._ledger = ledger
        self._clock = clock
        self._off_loop = off_loop
        self._policy = DelayPolicy(True, settings.tick_ms)
        self._shared_unknown: Callable[[int], bool] | None = None
        self._opening: trio.Lock | None = None
        """Made with its first use: most topics are idle."""
        self._tasks: StartsTasks | None = None
        self._attached: list[DelayedEntries] = []
        self._homes: dict[DelayedEntries, IndexHome] = {}

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self, tasks: StartsTasks) -> None:
        """Before anything is dispatched: look for what an earlier process has left. What keeps the
        buckets runs among `tasks`.
        """
        self._tasks = tasks
        named = [cursor for cursor in self._ledger.cursors.values() if _names_buckets(cursor.properties)]
        if self._ledger.internal_properties or named:
            await _import_home()
            await self._take_over(named)

    async def _take_over(self, named: list[Cursor]) -> None:
        from geminga.broker.delays.index_home import forget_buckets
        from geminga.tracker.buckets.bucket_owner import CursorOwner, TopicOwner

        settings = self.settings
        if settings.is_shared or not settings.keeps_buckets:
            for cursor in named:
                await forget_buckets(self._ledger, CursorOwner(cursor))
        if not (settings.is_shared and settings.keeps_buckets):
            await forget_buckets(self._ledger, TopicOwner(self._ledger))
        if settings.is_shared and self._ledger.internal_properties:
            await self._open_shared()

    def attach(self, delayed: DelayedEntries) -> None:
        """A subscription begins: it gets its policy, and learns whether there is an index for it already."""
        delayed.policy = self._policy
        if self._tasks is not None:
            delayed.start_soon = self._tasks.start_soon
        self._attached.append(delayed)
        if self.settings.is_shared:
            delayed.has_index = lambda: self.shared is not None
            delayed.is_unknown = self._shared_unknown
        elif self.settings.keeps_buckets:
            delayed.has_index = lambda: _names_buckets(delayed.cursor.properties)

    def detach(self, delayed: DelayedEntries) -> None:
        if delayed in self._attached:
            self._attached.remove(delayed)
            self._homes.pop(delayed, None)
        self._set_feeds()

    async def close(self) -> None:
        """After all subscriptions are closed."""
        if self.shared is not None:
            await self.shared.stop()

    def set_policy(self, policy: DelayPolicy) -> None:
        """In force at once, for each subscription."""
        self._policy = policy
        for delayed in self._attached:
            delayed.policy = policy
        self._set_feeds()

    def _set_feeds(self) -> None:
        self.feeds = self.shared is not None and bool(self.shared.index.views) and self._policy.active

    def home_of(self, delayed: DelayedEntries) -> IndexHome | None:
        """What keeps the index that this subscription looks at; None if it has none."""
        if delayed.tracker is None:
            return None
        return self.shared if self.settings.is_shared else self._homes.get(delayed)

    def users_of(self, home: IndexHome) -> list[DelayedEntries]:
        """The subscriptions that look at this index."""
        shared = home is self.shared
        return [d for d in self._attached if d.tracker is not None and (shared or self._homes.get(d) is home)]

    def wanted_by(self, delayed: DelayedEntries) -> list[Cursor]:
        """The cursors whose messages the index of this subscription has to have."""
        return self._durable_cursors() if self.settings.is_shared else [delayed.cursor]

    # -- trackers --------------------------------------------------------------------------------------------

    async def open_tracker(self, delayed: DelayedEntries) -> DelayedDeliveryTracker:
        """A subscription's tracker: an index of its own, or a view of the shared one."""
        await _import_home()
        home = await self._open_shared() if self.settings.is_shared else await self._open_own(delayed)
        delayed.on_looked_up = home.count_read_again
        delayed.overrides = home.overrides.times_ms if home.overrides is not None else {}
        view = home.index.open_view(
            wake=delayed.wake,
            reread=delayed.read_again,
            is_acknowledged=delayed.is_settled,
            acknowledged_in=delayed.cursor.acknowledged_in,
        )
        view.mark_delete_moved(delayed.cursor.mark_delete)
        if (precision_ms := precision_ms_of(delayed)) is not None:
            view.set_precision(precision_ms)
        if self.settings.is_shared and not self.feeds and self._ledger.last_confirmed.ledger_id >= 0:
            # From here on a shared index gets what is published by itself, and the backlog is read beside it.
            view.leap(self._ledger.last_confirmed.next())
        self._set_feeds()
        return view

    async def set_precision(self, delayed: DelayedEntries, precision_ms: int | None) -> None:
        """Let a subscription be given messages by less than this early from now on; None: as the broker says.
        In effect and durable on return; cancelling leaves either. ServiceNotReady: its cursor is not durable,
        or closed. ValueTooLarge, StorageError.
        """
        cursor = delayed.cursor
        before = cursor.properties.get(PRECISION_PROPERTY)
        add = {} if precision_ms is None else {PRECISION_PROPERTY: precision_ms}
        await cursor.swap_properties(add, {} if before is None else {PRECISION_PROPERTY: before})
        if delayed.tracker is not None:
            delayed.tracker.set_precision(precision_ms)
            delayed.wake()

    async def _open_own(self, delayed: DelayedEntries) -> IndexHome:
        from geminga.tracker.buckets.bucket_owner import CursorOwner

        owner = CursorOwner(delayed.cursor) if delayed.cursor.durable else None
        home = self._home(owner)
        delayed.is_unknown = home.find(lambda: (delayed.cursor,), delayed.read_again)
        delayed.home = self._homes[delayed] = home
        await home.read_overrides()
        self._run(home, partial(setattr, delayed, "is_unknown", None))
        return home

    async def _open_shared(self) -> IndexHome:
        from geminga.tracker.buckets.bucket_owner import TopicOwner

        if self._opening is None:
            self._opening = trio.Lock()
        async with self._opening:
            if self.shared is None:
                home = self._home(TopicOwner(self._ledger))
                self._shared_unknown = home.find(self._durable_cursors, self._read_again)
                await home.read_overrides()
                self.shared = home
                for delayed in self._attached:
                    delayed.is_unknown = self._shared_unknown
                self._run(home, self._shared_recovered)
            return self.shared

    def _home(self, owner: CursorOwner | TopicOwner | None) -> IndexHome:
        from geminga.broker.delays.index_home import IndexHome

        return IndexHome(self._ledger, owner, self.settings, self._clock, off_loop=self._off_loop)

    def _run(self, home: IndexHome, on_recovered: Callable[[], None]) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(home.run, on_recovered)

    def _durable_cursors(self) -> list[Cursor]:
        return [cursor for cursor in self._ledger.cursors.values() if cursor.durable and not cursor.is_system]

    def _read_again(self, first_ledger: int, last_ledger: int) -> None:
        for delayed in self._attached:
            delayed.read_again(first_ledger, last_ledger)

    def _shared_recovered(self) -> None:
        self._shared_unknown = None
        for delayed in self._attached:
            delayed.is_unknown = None
            delayed.wake()

    # -- entries ---------------------------------------------------------------------------------------------

    def appended(self, ledger_id: int, first_entry_id: int, deliver_at_ms: Sequence[int]) -> None:
        """These entries are durable and nobody has read them; 0: at once."""
        if not self.feeds:
            return
        assert self.shared is not None
        append = self.shared.index.append
        for entry_id, at_ms in enumerate(deliver_at_ms, first_entry_id):
            if at_ms > 0:
                append(ledger_id, entry_id, at_ms)

    async def subscription_deleted(self) -> None:
        """A cursor is gone: let go of what of a shared index only that subscription needed; of all of it, if
        no other looks at it.
        """
        if self.shared is None:
            return
        self.shared.index.trim_passed()
        if not self.shared.index.views:
            self.shared.index.clear()
            await self.shared.clear()


def precision_ms_of(delayed: DelayedEntries) -> int | None:
    """What was asked for this subscription; None: nothing."""
    return delayed.cursor.properties.get(PRECISION_PROPERTY)


def _names_buckets(properties: Mapping[str, int]) -> bool:
    return any(key.startswith(DELAYED_PREFIX) for key in properties)


async def _import_home() -> None:
    """In a thread: it takes a tenth of a second the first time. The loop asks for the interpreter soon
    meanwhile, and gets it between two steps of an import.
    """
    if _HOME not in sys.modules:
        switch_interval.shorten()
        try:
            await trio.to_thread.run_sync(importlib.import_module, _HOME)
        finally:
            switch_interval.restore()
