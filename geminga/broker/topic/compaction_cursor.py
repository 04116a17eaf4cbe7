"""Keeps the state of a topic for which compaction was asked: the cursor `__compaction`.

Compaction itself is not built. A topic that an application wants compacted is a database all the same: its
state is in the last message of each key, and it needs no subscription. So from the request on the broker
keeps every message that the topic has or gets. The cursor stands before the first message and does not move:
like a subscription that acknowledges nothing it holds ledgers back, and an unused topic is not deleted.

The cursor is made by a request for compaction, or by a compaction threshold. One that only a threshold wants
goes when the threshold goes; one that was asked for stays until an operator deletes it. Its properties say
which: see `BY_THRESHOLD`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import trio

from geminga.errors import GemingaError, NotAllowed, ServiceNotReady
from geminga.managed_ledger.cursor.system_cursors import COMPACTION_CURSOR

if TYPE_CHECKING:
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger

log = logging.getLogger("geminga.broker")

BY_THRESHOLD: Final = {"geminga-by-threshold": 1}
"""The mark of a cursor that only a threshold wants. Without it the cursor stays: so does one that a client of
an earlier version made as a subscription of this name."""

# Enough to share syncs. A namespace's policy concerns all its topics at once: a task for each of a hundred
# thousand would take half a gigabyte, and hold up the loop for seconds.
SETTLED_AT_ONCE: Final = 100
"""The number of topics that are settled at a time."""

Keeper = Literal["", "request", "threshold"]
"""What keeps all messages of a topic; "": nothing that has to do with compaction."""


class CompactionCursor:
    """The cursor `__compaction` of one topic, if it has one."""

    __slots__ = ("_has_threshold", "_ledger", "_lock", "_name")

    def __init__(self, name: str, ledger: ManagedLedger) -> None:
        self._name = name
        self._ledger = ledger
        self._has_threshold = False
        self._lock: trio.Lock | None = None

    @property
    def _changing(self) -> trio.Lock:
        """Made with its first use: most topics never need it."""
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    @property
    def _cursor(self) -> Cursor | None:
        return self._ledger.cursors.get(COMPACTION_CURSOR)

    # -- what it keeps ---------------------------------------------------------------------------------------

    @property
    def kept_by(self) -> Keeper:
        """What keeps all messages of the topic. A threshold counts as soon as it is set, also before the
        cursor is there.
        """
        cursor = self._cursor
        if cursor is not None and not _is_marked(cursor.properties):
            return "request"
        return "threshold" if self._has_threshold else ""

    @property
    def kept_bytes(self) -> int:
        """Bytes stored after the cursor's position; 0 if nothing is kept."""
        cursor = self._cursor
        return 0 if cursor is None else self._ledger.estimated_bytes_after(cursor.mark_delete)

    # -- by threshold ----------------------------------------------------------------------------------------

    def set_threshold(self, threshold_bytes: int) -> None:
        """Take the compaction threshold, 0 if there is none. `settle` is due then, unless `is_settled`."""
        self._has_threshold = threshold_bytes > 0

    @property
    def is_settled(self) -> bool:
        """Whether the cursor is there if a threshold wants it, and not there if nothing wants it."""
        cursor = self._cursor
        if self._has_threshold:
            return cursor is not None
        return cursor is None or not _is_marked(cursor.properties)

    async def settle(self) -> None:
        """Make the cursor that the threshold wants, or delete the one that nothing wants; durable on return.

        Call it before the topic's ledgers are trimmed. Raises StorageError, ServiceNotReady.
        """
        if self.is_settled:
            return
        async with self._changing:
            # Again after each change: the threshold may be set and removed at any await.
            while not self.is_settled:
                if self._has_threshold:
                    await self._ledger.open_cursor(
                        COMPACTION_CURSOR, initial="earliest", properties=BY_THRESHOLD
                    )
                else:
                    await self._ledger.delete_cursor(COMPACTION_CURSOR)

    async def settle_quietly(self) -> None:
        """`settle` without a caller to tell of errors."""
        try:
            await self.settle()
        except ServiceNotReady:
            # The topic is closing: its next load settles it.
            return
        except GemingaError as error:
            log.error("%s: its compaction threshold could not be applied: %s", self._name, error)

    # -- by request ------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Keep all messages from now on, whatever becomes of the threshold; durable on return.

        May be repeated. Raises StorageError, ServiceNotReady.
        """
        async with self._changing:
            cursor = await self._ledger.open_cursor(COMPACTION_CURSOR, initial="earliest")
            await cursor.swap_properties({}, BY_THRESHOLD)

    async def give_up(self) -> None:
        """Delete the cursor: nothing is kept for compaction any more, durably on return.

        Raises NotAllowed while a threshold is set, SubscriptionNotFound, StorageError, ServiceNotReady.
        """
        async with self._changing:
            if self._has_threshold:
                raise NotAllowed(
                    f"{COMPACTION_CURSOR} is kept by the compaction threshold of {self._name}: remove the "
                    "threshold first, from the topic, its namespace or the broker's configuration"
                )
            await self._ledger.delete_cursor(COMPACTION_CURSOR)

    async def truncate(self) -> None:
        """Keep no message that is there now, and all that come; durable on return. StorageError,
        ServiceNotReady.
        """
        cursor, last = self._cursor, self._ledger.last_position()
        if cursor is not None and last is not None:
            cursor.acknowledge_cumulative(last)
            await cursor.persist()


def _is_marked(properties: Mapping[str, int]) -> bool:
    return BY_THRESHOLD.keys() <= properties.keys()


def kept_by_cursor(properties: Mapping[str, int] | None) -> Keeper:
    """What keeps all messages of a topic that is not loaded, by the properties of its cursor `__compaction`;
    None if it has none.
    """
    if properties is None:
        return ""
    return "threshold" if _is_marked(properties) else "request"


class Settling:
    """Settles the cursors of topics whose threshold has changed, some at a time."""

    def __init__(self) -> None:
        self._due: dict[CompactionCursor, None] = {}
        self._wake = trio.Event()

    def note(self, cursor: CompactionCursor) -> None:
        """Settle this one soon. Until then its `kept_by` is right already."""
        self._due[cursor] = None
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._due:
                async with trio.open_nursery() as nursery:
                    for _ in range(min(SETTLED_AT_ONCE, len(self._due))):
                        cursor, _ = self._due.popitem()
                        nursery.start_soon(cursor.settle_quietly)
