"""The digest of a list of topics by which clients notice that nothing has changed (PIP-145)."""

from __future__ import annotations

from collections.abc import Iterable

from fastcrc.crc32 import iscsi as crc_32c


def topics_hash(topics: Iterable[str]) -> str:
    """CRC-32C over the sorted names joined by commas, in hexadecimal, low byte first as in clients."""
    joined = ",".join(sorted(topics)).encode()
    # The byte order is Java's `HashCode.toString` in Guava; the other way round every client would think that
    # the list has changed.
    return crc_32c(joined).to_bytes(4, "little").hex()
