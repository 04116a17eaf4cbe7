"""Deduplication of one topic: switched on and off, its state in the cursor `pulsar.dedup`, rebuilt at a load.

The cursor's properties hold the sequence ids of a moment, its mark-delete position says of which. What comes
after that position is read again when the topic is loaded, however its process ended. The properties are on
disk before the position moves: ids that are ahead of it do no harm, ids behind it would let a duplicate pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

import trio

from geminga.broker.topic.dedup import SequenceIds
from geminga.broker.topic.dedup_entries import PART, id_of, record_stored
from geminga.errors import (
    CorruptData,
    GemingaError,
    LedgerNotFound,
    SubscriptionNotFound,
)
from geminga.limits import MIB
from geminga.managed_ledger.cursor.cursor import DEDUPLICATION_CURSOR

if TYPE_CHECKING:
    from geminga.broker.policies.settings import BrokerSettings
    from geminga.broker.topic.publish_context import PublishContext
    from geminga.clock import Clock
    from geminga.managed_ledger.chain.tasks import StartsTasks
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.position import Position

log = logging.getLogger("geminga.broker")

READ_ENTRIES = 500
READ_BYTES_MAX = 4 * MIB
LOST = (CorruptData, LedgerNotFound)
SNAPSHOT_PAUSE_S: Final = 0.25
"""Between two snapshots: a fast producer has a few thousand entries more to be read again, no more writes."""


class Deduplication:
    """Off until `start`. `ids` is None while it is off; then nothing here costs a message anything."""

    __slots__ = (
        "_adjusting",
        "_clock",
        "_connected",
        "_cursor",
        "_ledger",
        "_name",
        "_settings",
        "_settled",
        "_since",
        "_snapshot_ms",
        "_snapshot_under_way",
        "_tasks",
        "ids",
        "wanted",
    )

    def __init__(
        self,
        name: str,
        ledger: ManagedLedger,
        clock: Clock,
        settings: BrokerSettings,
        connected: Callable[[], Collection[str]],
    ) -> None:
        """`connected()` gives the names of the topic's producers."""
        self._name = name
        self._ledger = ledger
        self._clock = clock
        self._settings = settings
        self._connected = connected
        self._cursor: Cursor | None = None
        self._tasks: StartsTasks | None = None
        self._adjusting: trio.Event | None = None
        """While it is being switched on or off."""
        self._settled: trio.Event | None = None
        self._snapshot_under_way = False
        self._snapshot_ms = 0
        self._since = ledger.last_confirmed
        self.wanted = False
        self.ids: SequenceIds | None = None

    # -- on and off ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Before the topic takes entries: rebuild the state, or take away what an earlier one left.
        StorageError, ServiceNotReady.
        """
        if self.wanted or DEDUPLICATION_CURSOR in self._ledger.cursors:
            self._adjusting = trio.Event()
            await self._adjust()

    def run_in(self, tasks: StartsTasks) -> None:
        """Where its tasks run from now on; there are none unless something is to be done."""
        self._tasks = tasks
        if self.wanted is (self.ids is None):
            self._adjust_soon()

    def want(self, wanted: bool) -> None:
        """Switch it on or off: what is accepted from now on counts, `ready` waits until that is so."""
        if wanted is not self.wanted:
            self.wanted = wanted
            self._since = self._ledger.last_confirmed
            self._adjust_soon()

    def _adjust_soon(self) -> None:
        if self._tasks is not None and self._adjusting is None:
            self._adjusting = trio.Event()
            self._tasks.start_soon(self._adjust_quietly)

    async def ready(self) -> None:
        """Return when nothing is being switched."""
        while self._adjusting is not None:
            await self._adjusting.wait()

    async def _adjust_quietly(self) -> None:
        try:
            await self._adjust()
        except GemingaError as error:
            log.error("%s: deduplication could not be switched: %s", self._name, error)

    async def _adjust(self) -> None:
        done = self._adjusting
        assert done is not None
        try:
            while True:
                if self.wanted and self.ids is None:
                    await self._enable()
                elif not self.wanted and DEDUPLICATION_CURSOR in self._ledger.cursors:
                    await self._disable()
                else:
                    return
        finally:
            self._adjusting = None
            done.set()

    async def _disable(self) -> None:
        self.ids = self._cursor = None
        self._wake_settled()
        try:
            await self._ledger.delete_cursor(DEDUPLICATION_CURSOR)
        except SubscriptionNotFound:
            return

    async def _enable(self) -> None:
        """Read what is behind the snapshot. A new cursor begins where the topic was when deduplication
        was asked for: what was stored before that is not known.
        """
        cursor = await self._ledger.open_cursor(DEDUPLICATION_CURSOR, initial=self._since.next())
        ids = SequenceIds(self._settings.dedup_producers_max, self._connected, self._clock.now_ms)
        ids.restore(cursor.properties)
        place = cursor.mark_delete
        while self._ledger.count_between(place, self._ledger.last_confirmed):
            place = await self._replay(ids, place)
        # From here to the end nothing waits: what comes next is judged.
        for context in self._ledger.pending():
            if (recorded := id_of(context)) != PART:
                ids.pushed(context.producer.name, recorded)
        self._cursor = cursor
        self.ids = ids
        self._snapshot_ms = self._clock.now_ms()

    async def _replay(self, ids: SequenceIds, place: Position) -> Position:
        """Take in some entries behind `place`; returns the last of them."""
        start = self._ledger.next_position(place)
        try:
            entries = await self._ledger.read(start, READ_ENTRIES, READ_BYTES_MAX)
        except LOST:
            try:
                entries = await self._ledger.read(start, 1, READ_BYTES_MAX)
            except LOST as error:
                log.error(
                    "%s: entry %s cannot be read, so it is not known whose it was: if its producer sends it "
                    "again, it is stored again: %s",
                    self._name,
                    start,
                    error,
                )
                return start
        for entry in entries:
            record_stored(ids, entry.body)
        return entries[-1].position if entries else place

    # -- each entry ------------------------------------------------------------------------------------------

    def confirmed(self, contexts: list[PublishContext]) -> None:
        """These entries are durable."""
        ids = self.ids
        assert ids is not None
        for context in contexts:
            recorded = context.recorded
            if recorded is None:
                recorded = id_of(context)
            if recorded != PART:
                ids.persisted(context.producer.name, recorded)
        if self._settled is not None:
            self._wake_settled()
        if ids.changes >= self._settings.dedup_snapshot_entries:
            self._snapshot_soon()

    def failed(self, contexts: list[PublishContext]) -> None:
        """These entries will not be durable: their ids are free again."""
        ids = self.ids
        assert ids is not None
        gone = {id(context) for context in contexts}
        pending = [context for context in self._ledger.pending() if id(context) not in gone]
        for name in {context.producer.name for context in contexts}:
            ids.failed(name, [id_of(context) for context in pending if context.producer.name == name])
        self._wake_settled()

    # -- producers -------------------------------------------------------------------------------------------

    async def settle(self, name: str) -> int:
        """The last sequence id of a producer that connects, -1 if it has none or deduplication is off.

        Waits until nothing that it sent on an earlier connection is on its way: what it is told to have
        published is durable.
        """
        await self.ready()
        while self.ids is not None and not self.ids.is_settled(name):
            if self._settled is None:
                self._settled = trio.Event()
            await self._settled.wait()
        return self.last_sequence_id(name)

    def last_sequence_id(self, name: str) -> int:
        return self.ids.last_pushed(name) if self.ids is not None else -1

    def _wake_settled(self) -> None:
        if self._settled is not None:
            self._settled.set()
            self._settled = None

    # -- snapshots -------------------------------------------------------------------------------------------

    async def upkeep(self, interval_s: int) -> None:
        """Forget producers that are long gone, and take a snapshot if the last one is older than that (0:
        never for its age alone). To be called now and then. StorageError, ServiceNotReady.
        """
        ids = self.ids
        if ids is None:
            return
        is_old = 0 < interval_s * 1000 <= self._clock.now_ms() - self._snapshot_ms
        if ids.forget_inactive(self._settings.dedup_inactivity_ms) or (is_old and ids.changes):
            await self.snapshot()

    def _snapshot_soon(self) -> None:
        """One at a time, and not too many of them."""
        if not self._snapshot_under_way and self._tasks is not None:
            self._snapshot_under_way = True
            self._tasks.start_soon(self._snapshot_quietly)

    async def _snapshot_quietly(self) -> None:
        try:
            await self.snapshot()
            await trio.sleep(SNAPSHOT_PAUSE_S)
        except GemingaError as error:
            # The storage has told everyone; or the topic is closing. The next load reads some more.
            log.debug("%s: no snapshot for deduplication: %s", self._name, error)
        finally:
            self._snapshot_under_way = False

    async def snapshot(self) -> None:
        """Write the state of this moment down. Cancelled or failed: the earlier one stands."""
        ids, cursor = self.ids, self._cursor
        position = self._ledger.last_position()
        if ids is None or cursor is None or position is None:
            return
        self._snapshot_ms = self._clock.now_ms()
        properties = ids.snapshot()
        gone = {key: value for key, value in cursor.properties.items() if key not in properties}
        await cursor.swap_properties(properties, gone)
        if position > cursor.mark_delete and self._cursor is cursor:
            cursor.acknowledge_cumulative(position)

    async def close(self) -> None:
        """A last snapshot, so that the next load reads nothing again. Whatever goes wrong is no matter."""
        if self.ids is not None and self.ids.changes:
            try:
                await self.snapshot()
            except GemingaError as error:
                log.debug("%s: no last snapshot for deduplication: %s", self._name, error)
