"""A cursor's access to its managed ledger: checks whether the cursor may still write, and fences the managed
ledger if a write fails.

A topic's records belong to one attachment at a time. A subscription or a request may still have an
attachment that is closed, deleted or fenced; that one never changes the records again, because they may
belong to another attachment by then.
"""

from __future__ import annotations

from typing import Protocol

from geminga.errors import GemingaError
from geminga.limits import KIB
from geminga.metadata.node import VALUE_BYTES_MAX, ValueTooLarge

HEADROOM_BYTES = 64 * KIB
"""Free space in a record for additions of the broker after a client has set its properties."""


class Attachment(Protocol):
    @property
    def is_alive(self) -> bool:
        """Whether it is neither closed nor fenced."""
        ...

    def check_open(self) -> None:
        """Raise ServiceNotReady if it is closing, closed, deleted or fenced (StorageError if the storage
        caused the fence).
        """
        ...

    def fence(self, error: GemingaError) -> None:
        """The content of the records is unknown: accept nothing until the managed ledger is opened again."""
        ...


def check_room(path: str, value: bytes) -> None:
    """Raise ValueTooLarge if a client's properties leave no room in a record for later additions of the
    broker.
    """
    bytes_max = VALUE_BYTES_MAX - HEADROOM_BYTES
    if len(value) > bytes_max:
        raise ValueTooLarge(f"{path[:200]}: its properties make {len(value)} bytes, at most {bytes_max}")
