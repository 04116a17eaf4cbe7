"""What has been cut off the mutable end of the index and waits to be written as a bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from pyroaring import BitMap

from geminga.tracker.format.packed_rows import unpack_rows
from geminga.tracker.format.rows import Rows, merge, split_repeated
from geminga.tracker.index.due_rows import codes_of, keep_only
from geminga.tracker.index.sources import Bucket, Run, Source


class Frozen:
    """The rows of the ledgers from `start_ledger` to `end_ledger`, both included.

    Nothing in here changes any more, so another thread may sort them while the index still serves them.
    """

    def __init__(
        self,
        start_ledger: int,
        end_ledger: int,
        parts: Sequence[Rows],
        packed: Sequence[bytes],
        members: Mapping[int, BitMap],
        sources: Sequence[Source],
    ) -> None:
        """`packed`: more rows, as `pack_rows` makes them. `members`: copies of the bitmaps as they were when
        this was cut off; at least one bit. `sources` serve its rows meanwhile, and are the index's business.
        """
        assert 0 <= start_ledger <= end_ledger
        self.start_ledger = start_ledger
        self.end_ledger = end_ledger
        self.members = members
        self.sources = sources
        self._parts = parts
        self._packed = packed

    def runs(self) -> list[Run]:
        return [source for source in self.sources if isinstance(source, Run)]

    def packs(self) -> list[Bucket]:
        return [source for source in self.sources if isinstance(source, Bucket)]

    @property
    def count(self) -> int:
        return sum(map(len, self.members.values()))

    @cached_property
    def rows(self) -> Rows:
        """The rows of `members`, sorted, each code once. A few milliseconds for 50,000 at the first look:
        take it in a thread.
        """
        rows = merge([*self._parts, *map(unpack_rows, self._packed)])
        if rows.length != self.count:
            rows, _ = split_repeated(keep_only(rows, codes_of(self.members)))
        self._parts = self._packed = ()
        return rows
