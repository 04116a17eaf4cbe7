"""The listener for the results of appends."""

from __future__ import annotations

from typing import Any, Protocol

from geminga.errors import GemingaError


class AddListener(Protocol):
    """Gets the results of appends, in order, on the loop."""

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[Any]) -> None:
        """The entries of these runs, numbered from `first_entry_id`, are durable; `last_confirmed` is already
        past them.
        """
        ...

    def on_add_failed(self, error: GemingaError, contexts: list[Any]) -> None:
        # Not "they are not on disk": a failed sync says nothing, and the next start may find them.
        """The entries of these runs may or may not be on disk; their publishers must not get receipts."""
        ...


class NoListener:
    """The listener until a topic sets itself."""

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[Any]) -> None:
        pass

    def on_add_failed(self, error: GemingaError, contexts: list[Any]) -> None:
        pass
