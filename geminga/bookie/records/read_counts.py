"""Counts of the layers in which reads found their entries, updated once per read, not per entry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ReadStatistics(NamedTuple):
    """Counts since `open`: entries, and bytes of their bodies, by the layer in which a read found them."""

    write_cache_entries: int = 0
    write_cache_bytes: int = 0
    """Entries in memory that were not in an entry log yet."""
    read_cache_entries: int = 0
    read_cache_bytes: int = 0
    """Entries in memory that an earlier read or read-ahead had loaded."""
    log_entries: int = 0
    log_bytes: int = 0
    """Entries in an entry log: the read waited for the disk."""
    log_loads: int = 0
    """How often entry logs were read, including read-ahead."""


NOTHING_READ = ReadStatistics()


class Found:
    """Counts for one layer."""

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.entries = self.bytes = 0

    def add(self, entries: int, size_bytes: int) -> None:
        self.entries += entries
        self.bytes += size_bytes


def total(parts: Iterable[ReadStatistics]) -> ReadStatistics:
    return ReadStatistics(*map(sum, zip(*parts, strict=True)))
