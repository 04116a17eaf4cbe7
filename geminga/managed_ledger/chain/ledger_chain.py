"""The order of a topic: which ledgers it is made of, and arithmetic over positions in them. Pure.

A position need not be one of the chain: its ledger may be trimmed, or a client may have made it up. `ceiling`
and `floor` bring it to the chain. An *ordinal* counts entries from the moment the chain was built; it keeps
growing when ledgers are dropped at the front, so differences stay right.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from geminga.position import Position


class ChainLedger(NamedTuple):
    """One ledger of the chain; `closed_ms` 0 is the one being written."""

    ledger_id: int
    entries: int
    size_bytes: int
    closed_ms: int


class LedgerChain:
    """Ledgers in order of their ids, only the last of which grows. Lookups are O(log ledgers), most O(1).

    `counts` (ledger id -> confirmed entries) is read directly by hot code and written only here. The lists
    have an item for each ledger, in order.
    """

    __slots__ = ("_closed_ms", "_sizes", "_starts", "counts", "ids")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.counts: dict[int, int] = {}
        self._starts: list[int] = []
        self._sizes: list[int] = []
        self._closed_ms: list[int] = []

    # -- change -----------------------------------------------------------------------------------------

    def append(self, ledger: ChainLedger) -> None:
        """Add the newest ledger."""
        ids = self.ids
        # Positions are compared as pairs all over the broker. A ledger with a lower id at the end would put
        # new entries before old ones.
        assert not ids or ledger.ledger_id > ids[-1], f"ledger {ledger.ledger_id} comes after {ids[-1]}"
        self._starts.append(self._starts[-1] + self.counts[ids[-1]] if ids else 0)
        ids.append(ledger.ledger_id)
        self.counts[ledger.ledger_id] = ledger.entries
        self._sizes.append(ledger.size_bytes)
        self._closed_ms.append(ledger.closed_ms)

    def confirm(self, entries: int) -> None:
        """The newest ledger now has this many durable entries."""
        newest = self.ids[-1]
        # A confirmation that goes back would hide entries that publishers have receipts for.
        assert entries > self.counts[newest], "confirmations only go forward"
        self.counts[newest] = entries

    def close_newest(self, size_bytes: int, closed_ms: int) -> None:
        """The newest ledger accepts no more entries."""
        self._sizes[-1] = size_bytes
        self._closed_ms[-1] = closed_ms

    def drop_oldest(self, ledgers: int) -> None:
        """Remove that many ledgers at the front; at least the newest is kept."""
        # Every position needs a ledger to stand in, and an empty topic's cursors stand in its newest one.
        assert ledgers < len(self.ids), "the newest ledger is never dropped"
        for ledger_id in self.ids[:ledgers]:
            del self.counts[ledger_id]
        for column in (self.ids, self._starts, self._sizes, self._closed_ms):
            del column[:ledgers]

    # -- ask --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[ChainLedger]:
        return map(ChainLedger, self.ids, self.counts.values(), self._sizes, self._closed_ms)

    @property
    def newest(self) -> ChainLedger:
        return ChainLedger(self.ids[-1], self.counts[self.ids[-1]], self._sizes[-1], self._closed_ms[-1])

    @property
    def newest_is_open(self) -> bool:
        return bool(self.ids) and not self._closed_ms[-1]

    @property
    def entries(self) -> int:
        """Entries in the whole chain."""
        # Differences of ordinals: dropping ledgers at the front needs no renumbering, which would be
        # O(ledgers).
        return self._starts[-1] + self.counts[self.ids[-1]] - self._starts[0]

    @property
    def closed_bytes(self) -> int:
        """Bytes in the ledgers that are no longer written; the newest counts once it is closed."""
        return sum(self._sizes)

    @property
    def tail(self) -> Position:
        """The last entry, or (newest ledger, -1) when the newest ledger is empty."""
        newest = self.ids[-1]
        return Position(newest, self.counts[newest] - 1)

    def last_entry(self) -> Position | None:
        """The last entry of the chain, wherever it is; None if there is none."""
        for ledger_id in reversed(self.ids):
            if entries := self.counts[ledger_id]:
                return Position(ledger_id, entries - 1)
        return None

    def are_closed_ledgers(self, first: tuple[int, int], last: tuple[int, int]) -> bool:
        """Whether `first` is the first entry of a ledger, and `last` the last entry of a closed ledger."""
        # An open ledger gets more entries, of which a bucket named for the whole of it would claim to know.
        is_open = last[0] >= self.ids[-1]
        return first[1] == 0 and not is_open and last[1] == self.counts.get(last[0], 0) - 1

    def next_ledger_with_entries(self, ledger_id: int) -> int:
        """The first ledger after this one that has entries, or -1. The given one need not be in the chain."""
        ids = self.ids
        counts = self.counts
        # Empty ledgers in between are usual: each start makes one, and a topic without traffic leaves it
        # empty.
        for i in range(bisect_right(ids, ledger_id), len(ids)):
            if counts[ids[i]]:
                return ids[i]
        return -1

    def ceiling(self, position: tuple[int, int]) -> Position:
        """The first position of the chain at or after `position`: an entry, or the next entry to come."""
        ledger_id, entry_id = position
        entries = self.counts.get(ledger_id)
        if entries is not None and entry_id < entries:
            return Position(ledger_id, entry_id if entry_id > 0 else 0)
        # The ledger may be trimmed, or a client's seek may name one that never was: reading goes on at the
        # next entry, as Pulsar's cursors do.
        following = self.next_ledger_with_entries(ledger_id)
        if following >= 0:
            return Position(following, 0)
        newest = self.ids[-1]
        return Position(newest, self.counts[newest])

    def floor(self, position: tuple[int, int]) -> Position:
        """The last mark-delete position of the chain at or before `position`: an entry, or (ledger, -1) of
        one of its ledgers.
        """
        ledger_id, entry_id = position
        entries = self.counts.get(ledger_id)
        if entries is not None:
            return Position(ledger_id, max(-1, min(entry_id, entries - 1)))
        i = bisect_right(self.ids, ledger_id) - 1
        if i < 0:
            # A position before the chain becomes the very beginning: all before it is gone, so all of it
            # counts as read.
            return Position(self.ids[0], -1)
        return Position(self.ids[i], self.counts[self.ids[i]] - 1)

    def before(self, position: tuple[int, int]) -> Position:
        """The mark-delete position of a cursor whose next entry to read is `position`: the last entry before
        it, of whichever ledger. So it tells how long that ledger is, also once it is gone.
        """
        found = self.floor((position[0], position[1] - 1))
        if found.entry_id < 0:
            last = self.previous(position)
            return last if last.entry_id >= 0 else found
        return found

    def previous(self, position: tuple[int, int]) -> Position:
        """The last entry before `position`, or (first ledger, -1) if there is none."""
        ordinal = self.ordinal((position[0], position[1] - 1))
        if ordinal <= self._starts[0]:
            return Position(self.ids[0], -1)
        return self.at_ordinal(ordinal)

    def ordinal(self, position: tuple[int, int]) -> int:
        """How many entries are at or before `position`, including dropped ones."""
        ledger_id, entry_id = position
        ids = self.ids
        # Most questions are about the tail; this spares them the search.
        if ledger_id == ids[-1]:
            i = len(ids) - 1
        else:
            i = bisect_right(ids, ledger_id) - 1
            if i < 0:
                return self._starts[0]
        entries = self.counts[ids[i]]
        if ids[i] == ledger_id and entry_id < entries:
            return self._starts[i] + (entry_id + 1 if entry_id >= 0 else 0)
        return self._starts[i] + entries

    def at_ordinal(self, ordinal: int) -> Position:
        """The entry with this ordinal (the first entry ever is 1). It must be in the chain."""
        i = bisect_right(self._starts, ordinal - 1) - 1
        # Empty ledgers share their start with the next one: bisect_right has passed over them.
        position = Position(self.ids[i], ordinal - 1 - self._starts[i])
        assert 0 <= position.entry_id < self.counts[position.ledger_id], f"no entry {ordinal}"
        return position

    def count_between(self, after: tuple[int, int], up_to: tuple[int, int]) -> int:
        """Entries in (after, up_to]; 0 if `up_to` is before `after`."""
        return max(0, self.ordinal(up_to) - self.ordinal(after))
