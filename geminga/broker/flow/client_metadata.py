"""The memory of what clients describe: names and metadata of attached producers and consumers, which the
broker keeps for statistics, and their patterns of topic names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from geminga.errors import NotAllowed, TooManyRequests
from geminga.limits import CLIENT_METADATA_BYTES_MAX, KIB, MIB

UNCOUNTED_BYTES = KIB
"""Fewer bytes are not counted: a producer or consumer takes as much anyway. So no number of ordinary clients
is refused.
"""
PAIR_BYTES = 128
"""The bytes of a key with its value, beside their text."""


class Pair(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def value(self) -> str: ...


class ClientMetadata:
    """One per broker. Only counts: the sessions keep the metadata, and release it; `TopicsPatterns` does so
    with patterns.
    """

    __slots__ = ("bytes_max", "used_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0

    def take(self, kind: str, name: str, pairs: Iterable[Pair]) -> int:
        """The bytes that a producer or consumer takes from now on; 0 if they are too few to be counted.

        Raises NotAllowed if they are more than one may have, TooManyRequests if all together have too many
        already.
        """
        size_bytes = metadata_bytes(name, pairs)
        if size_bytes > CLIENT_METADATA_BYTES_MAX:
            raise NotAllowed(
                f"name and metadata of this {kind} take {size_bytes} bytes ({PAIR_BYTES} for each pair among"
                f" them), and at most {CLIENT_METADATA_BYTES_MAX} are kept; send less metadata"
            )
        if size_bytes <= UNCOUNTED_BYTES:
            return 0
        if not self.try_take(size_bytes):
            raise TooManyRequests(
                f"names, metadata and topic patterns of all clients take {self.used_bytes} bytes, and these"
                f" {size_bytes} more are beyond their part of the memory, {self.bytes_max / MIB:.1f} MiB;"
                " send less metadata, close clients, or start the broker with more --memory"
            )
        return size_bytes

    def try_take(self, size_bytes: int) -> bool:
        """Count these bytes from now on. False, and nothing counted, if there is no room for them."""
        if self.used_bytes + size_bytes > self.bytes_max:
            return False
        self.used_bytes += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        """Release the bytes that `take` returned, or `try_take` counted."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0


def metadata_bytes(name: str, pairs: Iterable[Pair]) -> int:
    """The bytes of name and metadata in UTF-8."""
    return len(name.encode()) + sum(
        len(pair.key.encode()) + len(pair.value.encode()) + PAIR_BYTES for pair in pairs
    )
