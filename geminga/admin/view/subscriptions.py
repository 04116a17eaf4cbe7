"""What the admin API needs of subscriptions; `geminga.broker.operator.subscriptions` implements it.

Every method raises `TopicNotFound` if the topic does not exist, and those with a subscription's name raise
`SubscriptionNotFound`. Other `GemingaError`s are answered with their own status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from geminga.names import TopicName
from geminga.position import Position


class SubscriptionsView(Protocol):
    """Subscriptions of a topic by name, and what an operator may do to one. Loads the topic."""

    async def names(self, topic: TopicName) -> list[str]: ...

    async def has(self, topic: TopicName, name: str) -> bool:
        """Also true of a system cursor, which `names` does not list: `delete` takes `__compaction`, and all
        other methods refuse such a name with `NotAllowed`.
        """
        ...

    async def create(
        self, topic: TopicName, name: str, *, start: Position, properties: dict[str, str], replicated: bool
    ) -> None:
        """Durable on return. `start` is the first message it gets, or `position.EARLIEST` or `LATEST`.

        `Conflict` if it exists.
        """
        ...

    async def delete(self, topic: TopicName, name: str, *, force: bool) -> None:
        """`ConsumerBusy` while it has consumers, unless forced: they are disconnected then. `__compaction` is
        the broker's own cursor, and goes unless a compaction threshold keeps it (`NotAllowed`).
        """
        ...

    async def skip(self, topic: TopicName, name: str, count: int | None) -> None:
        """Acknowledge the next `count` unacknowledged messages; None: all. Durable on return."""
        ...

    async def expire(self, topic: TopicName, name: str, older_than_s: int) -> bool:
        """Acknowledge the messages that were published longer ago, durable on return. False: nothing was
        done, for the reasons that `broker.subscription.expiry.Expiry.expire` lists.
        """
        ...

    async def expire_up_to(self, topic: TopicName, name: str, position: Position) -> bool:
        """Acknowledge everything up to and including `position`, durable on return. False: the position is
        beyond the end of the topic, or another expiry is running.
        """
        ...

    async def properties(self, topic: TopicName, name: str) -> dict[str, str]: ...

    async def set_properties(self, topic: TopicName, name: str, properties: Mapping[str, str]) -> None:
        """In place of those that are there. Durable on return."""
        ...

    async def is_replicated(self, topic: TopicName, name: str) -> bool: ...

    async def set_replicated(self, topic: TopicName, name: str, is_replicated: bool) -> None:
        """Kept and shown; there is nothing to replicate to. Durable on return."""
        ...

    async def reset(self, topic: TopicName, name: str, position: Position) -> None:
        """The next message is the one at `position`, or after it if that is gone; EARLIEST, LATEST."""
        ...

    async def reset_to_time(self, topic: TopicName, name: str, publish_time_ms: int) -> None:
        """The next message is the first one published at that time or later."""
        ...
