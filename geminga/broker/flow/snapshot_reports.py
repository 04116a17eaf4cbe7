"""Snapshots as the admin API shows them, and the calls that it makes."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec


class SavedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A complete snapshot."""

    directory: str
    files: int
    bytes: int
    seconds: float


class SwapReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last restore or reset of this data directory."""

    what: Literal["restore", "reset"]
    source: str
    """The snapshot; "" for a reset."""
    outcome: Literal["done", "undone"]
    """With "undone" the state from before is back."""
    reason: str = ""
    """Why it was undone."""
    seconds: float = 0.0
    """From the end of the copy until the broker served again."""


class SnapshotsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of restores and resets."""

    last: SwapReport | None
    """None if there was none since the start of the process, and none was interrupted before."""


class SnapshotCalls(Protocol):
    """Saving is for any broker; a restore and a reset need `--chaos`."""

    def report(self) -> SnapshotsReport: ...

    async def save(self, directory: str) -> SavedSnapshot:
        """A snapshot in a new directory, durable on return. It has every message whose receipt left before,
        and every acknowledgement that the broker had got. Raises `Conflict`.
        """
        ...

    async def prepare_restore(self, directory: str) -> None:
        """Check and copy a snapshot. On return no connection is accepted any longer, and the next opening
        begins with `proceed`, or a second later. Raises `NotAllowed`, `Conflict`; nothing has changed then.
        """
        ...

    async def prepare_reset(self) -> None:
        """As `prepare_restore`, with an empty state."""
        ...

    def proceed(self) -> None:
        """The request that has prepared a restore or reset is answered."""
        ...
