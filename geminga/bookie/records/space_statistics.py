"""Counts of garbage collection and compaction since the start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class SpaceStatistics(NamedTuple):
    """Counts, seconds, and bytes of files."""

    collections: int = 0
    collect_s: float = 0.0
    """Total seconds of all collections."""
    minor_compactions: int = 0
    """Scheduled runs, including those without work."""
    major_compactions: int = 0
    reclaimed_by_deletion_bytes: int = 0
    """Bytes of deleted entry logs that had no living ledger."""
    reclaimed_by_compaction_bytes: int = 0
    """Bytes of entry logs that compaction emptied, less the bytes that it copied."""


NOTHING = SpaceStatistics()


def total(parts: Iterable[SpaceStatistics]) -> SpaceStatistics:
    """The sums over several ledger directories."""
    sums = [sum(column) for column in zip(*parts, strict=True)]
    return SpaceStatistics(*sums)
