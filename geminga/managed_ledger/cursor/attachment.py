"""What a cursor needs to know of its managed ledger: whether it may still write, and whom to tell if it
cannot.

A topic's records belong to one attachment at a time. One that is closed, deleted or fenced may still be held
by somebody; it must never touch the records again, which by then may be another attachment's.
"""

from __future__ import annotations

from typing import Protocol

from geminga.errors import GemingaError
from geminga.limits import KIB
from geminga.metadata.node import VALUE_BYTES_MAX, ValueTooLarge

HEADROOM_BYTES = 64 * KIB
"""What a record may still grow by on our own account once somebody's properties were let in."""


class Attachment(Protocol):
    def check_open(self) -> None:
        """Raise ServiceNotReady if it is closing, closed, deleted or fenced (StorageError if the storage did
        it).
        """
        ...

    def fence(self, error: GemingaError) -> None:
        """It no longer knows what its records are: nothing is accepted until it is opened anew."""
        ...


def check_room(path: str, value: bytes) -> None:
    """ValueTooLarge if a record with somebody's properties leaves no room for what we add to it later."""
    bytes_max = VALUE_BYTES_MAX - HEADROOM_BYTES
    if len(value) > bytes_max:
        raise ValueTooLarge(f"{path[:200]}: its properties make {len(value)} bytes, at most {bytes_max}")
