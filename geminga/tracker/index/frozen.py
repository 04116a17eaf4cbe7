"""What has been cut off a growing part of the index and waits to be written as a bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from pyroaring import BitMap

from geminga.tracker.format.packed_rows import unpack_rows
from geminga.tracker.format.rows import Rows, merge, place_of, split_repeated
from geminga.tracker.index.due_rows import codes_of, keep_only, members_of
from geminga.tracker.index.sources import Bucket, Run, Source


class Frozen:
    """Rows of positions from `first_code` to `last_code`, both included.

    Nothing in here changes any more, so another thread may sort them while the index still serves them.
    """

    def __init__(
        self,
        first_code: int,
        last_code: int,
        parts: Sequence[Rows],
        packed: Sequence[bytes],
        count: int,
        members: Mapping[int, BitMap],
        sources: Sequence[Source],
    ) -> None:
        """`packed`: more rows, as `pack_rows` makes them; `count`: how many all these are. `members`: copies
        of what the index has between the two codes as this was cut off, by ledger; at least one bit. Of these
        some may have their rows elsewhere, and some of the rows here may be of none. `sources` serve the
        rows meanwhile, and are the index's business.
        """
        # Its bucket is named after these, and the name is what a start goes by if the bucket is lost.
        assert 0 <= first_code <= last_code
        self.first_code = first_code
        self.last_code = last_code
        self.count = count
        """At most so many."""
        # They go on serving until the bucket does: a write that fails and is tried for hours delays no
        # message.
        self.sources = sources
        self._members = members
        self._parts = parts
        self._packed = packed

    @property
    def start_ledger(self) -> int:
        return place_of(self.first_code)[0]

    @property
    def end_ledger(self) -> int:
        return place_of(self.last_code)[0]

    def runs(self) -> list[Run]:
        return [source for source in self.sources if isinstance(source, Run)]

    def packs(self) -> list[Bucket]:
        return [source for source in self.sources if isinstance(source, Bucket)]

    @cached_property
    def rows(self) -> Rows:
        """The rows of members, sorted, each code once. A few milliseconds for 50,000 at the first look:
        take it in a thread.
        """
        # At the first look only, in the thread that encodes: 50,000 rows would hold the loop for
        # milliseconds.
        rows = merge([*self._parts, *map(unpack_rows, self._packed)])
        # As many as members: mostly all are live, and the three steps below are for nothing.
        if rows.length != sum(map(len, self._members.values())):
            found = members_of(rows.codes)
            wanted = {
                ledger_id: ids & self._members.get(ledger_id, BitMap()) for ledger_id, ids in found.items()
            }
            rows, _ = split_repeated(keep_only(rows, codes_of({n: ids for n, ids in wanted.items() if ids})))
        # Or the rows would be in memory twice while they are written.
        self._parts = self._packed = ()
        self._members = {}
        return rows
