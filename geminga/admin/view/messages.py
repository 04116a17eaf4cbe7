"""What the admin API needs to look at stored messages; `geminga.broker.operator.messages` implements it.

Methods load the topic. They raise `TopicNotFound`, and `StorageError` for what cannot be read. No look at a
message changes anything: neither a cursor, nor what is kept.
"""

from __future__ import annotations

from typing import Protocol

from geminga.broker.operator.messages import BacklogAnalysis, LastMessage, StoredMessage
from geminga.names import TopicName
from geminga.position import Position


class MessagesView(Protocol):
    async def at(self, topic: TopicName, position: Position) -> StoredMessage | None:
        """None: there is no such entry, or none any more."""
        ...

    async def in_backlog(self, topic: TopicName, subscription: str, number: int) -> StoredMessage | None:
        """The entry that is this many, 1 or more, in the subscription's backlog. Of a subscription that does
        not exist: of all entries. Raises `NotAllowed` for the name of a system cursor.
        """
        ...

    async def from_start(self, topic: TopicName, number: int) -> StoredMessage | None:
        """The entry that is this many, 1 or more, from the oldest; the last one if there are not so many.
        None: there is none at all.
        """
        ...

    async def from_end(self, topic: TopicName, number: int) -> StoredMessage | None:
        """The entry that is this many, 1 or more, from the newest."""
        ...

    async def entry_count(self, topic: TopicName) -> int:
        """Entries of the topic."""
        ...

    async def last(self, topic: TopicName) -> LastMessage: ...

    async def published_since(self, topic: TopicName, since_ms: int) -> Position:
        """The first entry that was published then or later, or the place of the next entry."""
        ...

    async def bytes_after(self, topic: TopicName, position: Position) -> int:
        """Estimated size of the entries behind a position."""
        ...

    async def analyze(self, topic: TopicName, subscription: str, start: Position | None) -> BacklogAnalysis:
        """Read the subscription's backlog, or what follows `start`, as far as the limits of one scan allow:
        it stops before the entry with which it would reach the largest number. `SubscriptionNotFound`.
        """
        ...
