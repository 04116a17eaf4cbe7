"""Where what is read from a bookie was found: counted for each read, not for each entry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ReadStatistics(NamedTuple):
    """Since `open`. Entries, and bytes of their bodies, that a read found..."""

    write_cache_entries: int = 0
    write_cache_bytes: int = 0
    """...in memory, before they are in an entry log."""
    read_cache_entries: int = 0
    read_cache_bytes: int = 0
    """...in memory, brought by an earlier read or by read-ahead."""
    log_entries: int = 0
    log_bytes: int = 0
    """...in an entry log: it had to wait."""
    log_loads: int = 0
    """How often entry logs were read, read-ahead included."""


NOTHING_READ = ReadStatistics()


class Found:
    """Of one place."""

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.entries = self.bytes = 0

    def add(self, entries: int, size_bytes: int) -> None:
        self.entries += entries
        self.bytes += size_bytes


def total(parts: Iterable[ReadStatistics]) -> ReadStatistics:
    return ReadStatistics(*map(sum, zip(*parts, strict=True)))
