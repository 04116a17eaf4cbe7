"""What a cursor needs of its managed ledger: whether it may still write, and a way to fence it if a write
fails.

A topic's records belong to one attachment at a time. A subscription or a request may still hold an attachment
that is closed, deleted or fenced; that one never touches the records again, since by then they may belong to
another attachment.
"""

from __future__ import annotations

from typing import Protocol

from geminga.errors import GemingaError
from geminga.limits import KIB
from geminga.metadata.node import VALUE_BYTES_MAX, ValueTooLarge

HEADROOM_BYTES = 64 * KIB
"""Kept free for what the broker itself adds to a record after a client has set its properties."""


class Attachment(Protocol):
    def check_open(self) -> None:
        """Raise ServiceNotReady if it is closing, closed, deleted or fenced (StorageError if the storage did
        it).
        """
        ...

    def fence(self, error: GemingaError) -> None:
        """It no longer knows what its records contain: accept nothing until it is opened again."""
        ...


def check_room(path: str, value: bytes) -> None:
    """ValueTooLarge if a client's properties leave no room in a record for what the broker adds later."""
    bytes_max = VALUE_BYTES_MAX - HEADROOM_BYTES
    if len(value) > bytes_max:
        raise ValueTooLarge(f"{path[:200]}: its properties make {len(value)} bytes, at most {bytes_max}")
