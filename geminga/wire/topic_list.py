"""The digest of a list of topics by which clients notice that nothing has changed (PIP-145)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastcrc.crc32 import iscsi as crc_32c


class TopicsHash:
    """CRC-32C over sorted names joined by commas. The names come in parts, in their order."""

    def __init__(self) -> None:
        self._crc = 0
        self._separator = b""

    def add(self, topics: Sequence[str]) -> None:
        if topics:
            self._crc = crc_32c(self._separator + ",".join(topics).encode(), self._crc)
            self._separator = b","

    def text(self) -> str:
        """In hexadecimal, low byte first as in clients."""
        # The byte order is Java's `HashCode.toString` in Guava; the other way round every client would think
        # that the list has changed.
        return self._crc.to_bytes(4, "little").hex()


def topics_hash(topics: Iterable[str]) -> str:
    """The digest of names in any order."""
    digest = TopicsHash()
    digest.add(sorted(topics))
    return digest.text()
