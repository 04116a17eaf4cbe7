"""Deduplication of one topic: switches it on and off, and keeps its state in the cursor `pulsar.dedup`.

The cursor's properties are a snapshot of the sequence ids; its mark-delete position is the last entry in
that snapshot. A load of the topic reads the entries after that position, however the process ended. The
properties are on disk before the position moves: ids ahead of the position do no harm, ids behind it would
let a duplicate pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

import trio

from geminga.broker.topic.dedup import SequenceIds
from geminga.broker.topic.dedup_entries import PART, ids_of, record_stored
from geminga.errors import (
    CorruptData,
    GemingaError,
    LedgerNotFound,
    SubscriptionNotFound,
)
from geminga.limits import MIB
from geminga.managed_ledger.cursor.system_cursors import DEDUPLICATION_CURSOR

if TYPE_CHECKING:
    from geminga.broker.policies.settings import BrokerSettings
    from geminga.broker.topic.publish_run import PublishRun
    from geminga.clock import Clock
    from geminga.managed_ledger.chain.tasks import StartsTasks
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.position import Position

log = logging.getLogger("geminga.broker")

READ_ENTRIES = 500
READ_BYTES_MAX = 4 * MIB
LOST = (CorruptData, LedgerNotFound)
# At 100,000 entries a second the configured 1,000 entries between snapshots would be a hundred writes a
# second. The price of the pause is a few thousand entries more to read at the next load.
SNAPSHOT_PAUSE_S: Final = 0.25
"""The least time between two snapshots."""


class Deduplication:
    """Off until `start`. While deduplication is off, `ids` is None and messages cost nothing here."""

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
        """`connected()` returns the names of the topic's producers."""
        self._name = name
        self._ledger = ledger
        self._clock = clock
        self._settings = settings
        self._connected = connected
        self._cursor: Cursor | None = None
        self._tasks: StartsTasks | None = None
        self._adjusting: trio.Event | None = None
        """Set while deduplication is being switched on or off."""
        self._settled: trio.Event | None = None
        self._snapshot_under_way = False
        self._snapshot_ms = 0
        self._since = ledger.last_confirmed
        self.wanted = False
        self.ids: SequenceIds | None = None

    # -- on and off ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Rebuild the state, or delete the state of an earlier process; call this before the topic takes
        entries. Raises StorageError, ServiceNotReady.
        """
        # The cursor decides as well as the policy: if deduplication was switched off while the topic was not
        # loaded, its cursor would keep every ledger from being trimmed.
        if self.wanted or DEDUPLICATION_CURSOR in self._ledger.cursors:
            self._adjusting = trio.Event()
            await self._adjust()

    def run_in(self, tasks: StartsTasks) -> None:
        """Run tasks in `tasks` from now on. There is no task unless there is work."""
        self._tasks = tasks
        if self.wanted is (self.ids is None):
            self._adjust_soon()

    def want(self, wanted: bool) -> None:
        """Switch deduplication on or off for entries that are accepted from now on. `ready` waits until that
        is done.
        """
        if wanted is not self.wanted:
            self.wanted = wanted
            self._since = self._ledger.last_confirmed
            self._adjust_soon()

    def _adjust_soon(self) -> None:
        if self._tasks is not None and self._adjusting is None:
            self._adjusting = trio.Event()
            self._tasks.start_soon(self._adjust_quietly)

    async def ready(self) -> None:
        """Return when no switch is under way."""
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
            # Until it agrees with `wanted`, which may change at any await.
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
        # Off before the cursor goes: entries from here on are not judged, and no snapshot meets a deleted
        # cursor.
        self.ids = self._cursor = None
        self._wake_settled()
        try:
            await self._ledger.delete_cursor(DEDUPLICATION_CURSOR)
        except SubscriptionNotFound:
            return

    async def _enable(self) -> None:
        """Open the cursor, and read the entries after its snapshot."""
        # A new cursor begins where the topic was when deduplication was switched on. Reading the whole topic
        # instead would take minutes for a large one; Pulsar does not know earlier messages either.
        cursor = await self._ledger.open_cursor(DEDUPLICATION_CURSOR, initial=self._since.next())
        ids = SequenceIds(self._settings.dedup_producers_max, self._connected, self._clock.now_ms)
        ids.restore(cursor.properties)
        position = cursor.mark_delete
        while self._ledger.count_between(position, self._ledger.last_confirmed):
            position = await self._replay(ids, position)
        # From here on there is no await, so no entry is accepted between this look and `self.ids`. Entries on
        # their way would otherwise be unknown, and a retry of one of them new.
        for run in self._ledger.pending():
            for recorded in ids_of(run):
                if recorded != PART:
                    ids.pushed(run.producer.name, recorded)
        self._cursor = cursor
        self.ids = ids
        self._snapshot_ms = self._clock.now_ms()

    async def _replay(self, ids: SequenceIds, position: Position) -> Position:
        """Record some entries after `position`. Returns the position of the last one."""
        start = self._ledger.next_position(position)
        try:
            entries = await self._ledger.read(start, READ_ENTRIES, READ_BYTES_MAX)
        except LOST:
            # One entry alone, to find the damaged one: the others of the run are recorded. A topic whose load
            # failed for a lost entry could never be used again.
            try:
                entries = await self._ledger.read(start, 1, READ_BYTES_MAX)
            except LOST as error:
                log.error(
                    "%s: entry %s cannot be read, so its producer is not known: if the producer sends it "
                    "again, it is stored again: %s",
                    self._name,
                    start,
                    error,
                )
                return start
        for entry in entries:
            record_stored(ids, entry.body)
        return entries[-1].position if entries else position

    # -- each entry ------------------------------------------------------------------------------------------

    def confirmed(self, runs: list[PublishRun]) -> None:
        """These entries are durable."""
        ids = self.ids
        assert ids is not None
        for run in runs:
            for recorded in ids_of(run):
                if recorded != PART:
                    ids.persisted(run.producer.name, recorded)
        if self._settled is not None:
            self._wake_settled()
        if ids.changes >= self._settings.dedup_snapshot_entries:
            self._snapshot_soon()

    def failed(self, runs: list[PublishRun]) -> None:
        """These entries will not be durable: their ids may be sent again."""
        ids = self.ids
        assert ids is not None
        # By identity, as chunks of a message share their sequence id.
        gone = {id(run) for run in runs}
        pending = [run for run in self._ledger.pending() if id(run) not in gone]
        for name in {run.producer.name for run in runs}:
            of_name = (run for run in pending if run.producer.name == name)
            ids.failed(name, [recorded for run in of_name for recorded in ids_of(run)])
        self._wake_settled()

    # -- producers -------------------------------------------------------------------------------------------

    async def settle(self, name: str) -> int:
        """The last sequence id of a producer that connects; -1 if it has none or deduplication is off.

        Waits until no entry of an earlier connection is pending.
        """
        # A client goes on after the id that it is told. If that were only pushed and failed afterwards, the
        # application would resume behind a message that is not stored.
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
        """Forget absent producers, and write a snapshot if the last one is older than `interval_s` (0: age
        does not count). Call it periodically. Raises StorageError, ServiceNotReady.
        """
        # By age too: a topic with few messages would otherwise never move its cursor, which holds back the
        # trimming of its ledgers.
        ids = self.ids
        if ids is None:
            return
        is_old = 0 < interval_s * 1000 <= self._clock.now_ms() - self._snapshot_ms
        if ids.forget_inactive(self._settings.dedup_inactivity_ms) or (is_old and ids.changes):
            await self.snapshot()

    def _snapshot_soon(self) -> None:
        """Start a snapshot unless one is under way, or the pause after one."""
        # In a task: confirmations must not wait for the metadata store.
        if not self._snapshot_under_way and self._tasks is not None:
            self._snapshot_under_way = True
            self._tasks.start_soon(self._snapshot_quietly)

    async def _snapshot_quietly(self) -> None:
        try:
            await self.snapshot()
            await trio.sleep(SNAPSHOT_PAUSE_S)
        except GemingaError as error:
            # Either the storage has failed, which ends the process, or the topic is closing. The earlier
            # snapshot stays valid, and the next load reads some more entries.
            log.debug("%s: no snapshot for deduplication: %s", self._name, error)
        finally:
            self._snapshot_under_way = False

    async def snapshot(self) -> None:
        """Make the current state durable. If this fails or is cancelled, the earlier snapshot
        stays valid.
        """
        ids, cursor = self.ids, self._cursor
        position = self._ledger.last_position()
        if ids is None or cursor is None or position is None:
            return
        self._snapshot_ms = self._clock.now_ms()
        # `position` was taken before the ids, so they are not behind it. Properties first, position
        # afterwards: after a crash in between a load reads entries again that the ids include already, which
        # changes nothing.
        properties = ids.snapshot()
        gone = {key: value for key, value in cursor.properties.items() if key not in properties}
        await cursor.swap_properties(properties, gone)
        if position > cursor.mark_delete and self._cursor is cursor:
            cursor.acknowledge_cumulative(position)

    async def close(self) -> None:
        """Write a last snapshot, so that the next load reads no entries. Errors are only logged."""
        if self.ids is not None and self.ids.changes:
            try:
                await self.snapshot()
            except GemingaError as error:
                log.debug("%s: no last snapshot for deduplication: %s", self._name, error)
