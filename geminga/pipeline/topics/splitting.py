"""Into how many parts a read is cut, as options and checkpoints say. Pure, and for programs that only parse
options: it brings no socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SPLITTING_OFFSETS = ("splitsPerPartition", "minPartitions", "maxRecordsPerPartition")
"""What `Splitting.offsets` has, beside the offsets of topics."""
SPLITS_OF_OPTIONS_MAX = 100_000
"""Of one read: each is a task of Spark, of 25 ms of CPU at least. Options may not ask for more."""


@dataclass(frozen=True)
class Splitting:
    """Into how many parts a read is cut."""

    of_each: int = 0
    """Parts of each range. 0: as many as are worth it."""
    of_all_min: int = 0
    """Parts of all ranges together, at least, if there are as many entries."""
    rows_max: int = 0
    """Rows of a part, as far as they can be estimated; a part has at least one entry. 0: no bound."""

    def offsets(self) -> dict[str, str]:
        """Kept with the offsets of a stream: a micro-batch that runs again, perhaps with other options, must
        have the same tasks, or its output would differ.
        """
        values = (self.of_each, self.of_all_min, self.rows_max)
        return {name: str(value) for name, value in zip(SPLITTING_OFFSETS, values, strict=True) if value}

    @classmethod
    def of_offsets(cls, offsets: Mapping[str, str]) -> Splitting:
        return cls(*(int(offsets.get(name, 0)) for name in SPLITTING_OFFSETS))


AS_WORTH = Splitting()
WHOLE = Splitting(of_each=1)
