"""Stored messages for an operator: `admin.view.messages.MessagesView` on loaded topics.

All reads go through the ledger's caches, or the bookie's threads, a bounded number of entries at a time, and
only the requesting task waits for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trio

from geminga.broker.flow.slices import Pace
from geminga.broker.operator.topics import loaded_topic
from geminga.broker.subscription.publish_times import first_published_at
from geminga.limits import MIB
from geminga.managed_ledger.cursor.system_cursors import check_is_no_system_cursor
from geminga.position import LATEST, Position
from geminga.wire.message_metadata import peek_or_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from geminga.broker.policies.settings import BrokerSettings
    from geminga.broker.topic.topic import Topic
    from geminga.broker.topic.topics import Topics
    from geminga.clock import Clock
    from geminga.managed_ledger.chain.entry import Entry
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.names import TopicName

RUN_ENTRIES, RUN_BYTES = 100, MIB
"""The limits of one read of a scan."""


class StoredMessage(NamedTuple):
    position: Position
    body: bytes
    """The entry as it is stored: stamp, metadata, payload."""


class LastMessage(NamedTuple):
    position: Position
    batch_size: int
    """0: the entry is no batch."""


class BacklogAnalysis(NamedTuple):
    entries: int
    messages: int
    first: Position | None
    """None: there was no entry."""
    last: Position | None
    is_whole: bool
    """False: the scan reached a limit before the end of the backlog."""


class MessagesOperator:
    """Reads single messages, and scans a backlog."""

    def __init__(self, topics: Topics, clock: Clock, settings: BrokerSettings) -> None:
        self._topics = topics
        self._clock = clock
        self._scan_entries_max = settings.backlog_scan_entries_max
        self._scan_max_s = settings.backlog_scan_max_s
        self._scanning = trio.Lock()
        """Held by the scan that has its turns of the loop; the others wait."""

    async def _load(self, topic: TopicName) -> Topic:
        return await loaded_topic(self._topics, topic)

    async def at(self, topic: TopicName, position: Position) -> StoredMessage | None:
        return await _read(await self._load(topic), position)

    async def in_backlog(self, topic: TopicName, subscription: str, number: int) -> StoredMessage | None:
        loaded = await self._load(topic)
        found = loaded.subscriptions.get(subscription)
        if found is None:
            check_is_no_system_cursor(subscription)
            if number > loaded.ledger.number_of_entries:
                return None
            return await self.from_start(topic, number)
        position = found.cursor.nth_unacknowledged(number)
        return None if position is None else await _read(loaded, position)

    async def from_start(self, topic: TopicName, number: int) -> StoredMessage | None:
        loaded = await self._load(topic)
        ledger = loaded.ledger
        if not ledger.number_of_entries:
            return None
        before = Position(ledger.first_position().ledger_id, -1)
        return await _read(loaded, ledger.position_after(before, number))

    async def from_end(self, topic: TopicName, number: int) -> StoredMessage | None:
        loaded = await self._load(topic)
        entries = loaded.ledger.number_of_entries
        return await self.from_start(topic, entries + 1 - number) if number <= entries else None

    async def entry_count(self, topic: TopicName) -> int:
        return (await self._load(topic)).ledger.number_of_entries

    async def last(self, topic: TopicName) -> LastMessage:
        loaded = await self._load(topic)
        ledger = loaded.ledger
        # Of a topic that takes no more Pulsar names where it ended, be it in an empty ledger.
        last = None if ledger.terminated else ledger.last_position()
        position = last or ledger.last_confirmed
        stored = await _read(loaded, position)
        metadata = peek_or_none(stored.body) if stored is not None else None
        is_batch = metadata is not None and metadata.is_batch
        return LastMessage(position, metadata.num_messages_in_batch if is_batch and metadata else 0)

    async def published_since(self, topic: TopicName, since_ms: int) -> Position:
        ledger = (await self._load(topic)).ledger
        found = await first_published_at(ledger, since_ms)
        return ledger.next_position(ledger.last_confirmed) if found == LATEST else found

    async def bytes_after(self, topic: TopicName, position: Position) -> int:
        return (await self._load(topic)).ledger.estimated_bytes_after(position)

    async def analyze(self, topic: TopicName, subscription: str, start: Position | None) -> BacklogAnalysis:
        loaded = await self._load(topic)
        async with self._scanning:
            return await self._scanned(loaded.ledger, loaded.subscription(subscription).cursor, start)

    async def _scanned(
        self, ledger: ManagedLedger, cursor: Cursor, start: Position | None
    ) -> BacklogAnalysis:
        ends_s = self._clock.monotonic_s() + self._scan_max_s
        place = start if start is not None else cursor.mark_delete.next()
        count, left, pace = _Count(), self._scan_entries_max - 1, Pace()
        while True:
            if place > cursor.mark_delete:
                place = cursor.next_unacknowledged(place)
            # What stands before mark-delete was asked for; of the rest the backlog counts.
            if place > ledger.last_confirmed or not ledger.number_of_entries:
                return count.analysis(is_whole=True)
            if not left or self._clock.monotonic_s() >= ends_s:
                return count.analysis(is_whole=False)
            entries = await ledger.read(place, min(RUN_ENTRIES, left), RUN_BYTES)
            if not entries:
                return count.analysis(is_whole=True)
            place = ledger.next_position(entries[-1].position)
            await pace.turn()
            left -= count.add([entry for entry in entries if not is_apart(cursor, entry.position)])


def is_apart(cursor: Cursor, position: Position) -> bool:
    """Whether an entry after the mark-delete position is acknowledged."""
    return position > cursor.mark_delete and cursor.is_acknowledged(position)


class _Count:
    """The counts of a scan so far."""

    def __init__(self) -> None:
        self._entries = self._messages = 0
        self._first: Position | None = None
        self._last: Position | None = None

    def add(self, entries: Sequence[Entry]) -> int:
        """Count an entry; returns its number of messages."""
        for entry in entries:
            metadata = peek_or_none(entry.body)
            self._messages += metadata.num_messages_in_batch if metadata is not None else 1
        self._entries += len(entries)
        if entries:
            self._first = self._first or entries[0].position
            self._last = entries[-1].position
        return len(entries)

    def analysis(self, *, is_whole: bool) -> BacklogAnalysis:
        return BacklogAnalysis(self._entries, self._messages, self._first, self._last, is_whole)


async def _read(topic: Topic, position: Position) -> StoredMessage | None:
    entries = await topic.ledger.read_positions((position,))
    return StoredMessage(entries[0].position, entries[0].body) if entries else None
