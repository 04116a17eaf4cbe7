"""Whose properties name the buckets: a cursor's, or with one index for all subscriptions the topic's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from geminga.managed_ledger.cursor.bucket_properties import DELAYED_PREFIX
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.managed_ledger import ManagedLedger


class BucketOwner(Protocol):
    """Properties of the delayed index: names to ledger ids."""

    @property
    def subscription(self) -> str | None:
        """Whose own index it is; None: the one that all share."""
        ...

    def properties(self) -> Mapping[str, int]:
        """Those that are durable now, and only the delayed index's."""
        ...

    async def swap(self, add: Mapping[str, int], remove: Mapping[str, int]) -> None:
        """Add some and remove those that still have the value given, all in one write; durable on return.

        ValueTooLarge: there are too many, nothing has changed. ServiceNotReady: the owner is closed.
        StorageError. Cancelling leaves all of it done, or nothing.
        """
        ...


class CursorOwner:
    """The index of one subscription."""

    def __init__(self, cursor: Cursor) -> None:
        assert cursor.durable
        self._cursor = cursor

    @property
    def subscription(self) -> str:
        return self._cursor.name

    def properties(self) -> Mapping[str, int]:
        properties = self._cursor.properties
        # A cursor has other properties too, such as a precision or the deduplication's numbers: taken for
        # buckets, they would be removed with them.
        return {key: value for key, value in properties.items() if key.startswith(DELAYED_PREFIX)}

    async def swap(self, add: Mapping[str, int], remove: Mapping[str, int]) -> None:
        await self._cursor.swap_properties(add, remove)


class TopicOwner:
    """The index that a topic's subscriptions share."""

    subscription = None

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger

    def properties(self) -> Mapping[str, int]:
        properties = self._ledger.internal_properties
        return {
            # A topic's properties are text. One that is no number names no ledger; a start then finds its
            # bucket gone.
            key: int(value) if value.isdecimal() else -1
            for key, value in properties.items()
            if key.startswith(DELAYED_PREFIX)
        }

    async def swap(self, add: Mapping[str, int], remove: Mapping[str, int]) -> None:
        def as_text(properties: Mapping[str, int]) -> dict[str, str]:
            return {key: str(value) for key, value in properties.items()}

        await self._ledger.swap_properties(as_text(add), as_text(remove))
