"""What collecting garbage and compaction have done since the start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class SpaceStatistics(NamedTuple):
    """Counts, seconds, and bytes of files."""

    collections: int = 0
    collect_s: float = 0.0
    """In all of them."""
    minor_compactions: int = 0
    """Runs on schedule, whatever they found to do."""
    major_compactions: int = 0
    reclaimed_by_deletion_bytes: int = 0
    """Entry logs in which no ledger lived any more."""
    reclaimed_by_compaction_bytes: int = 0
    """Entry logs that compaction had emptied, less what it copied out of them."""


NOTHING = SpaceStatistics()


def total(parts: Iterable[SpaceStatistics]) -> SpaceStatistics:
    """Over several ledger directories."""
    sums = [sum(column) for column in zip(*parts, strict=True)]
    return SpaceStatistics(*sums)
