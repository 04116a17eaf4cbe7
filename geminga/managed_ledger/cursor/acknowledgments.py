"""Changes acknowledgements: single entries, up to a position, messages of a batch; and whole
states. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyroaring import BitMap

from geminga.managed_ledger.cursor.acknowledged import Acknowledged, end_of_run
from geminga.managed_ledger.cursor.batch_index import WORD_BITS, bits_of
from geminga.managed_ledger.cursor.cursor_state_format import CursorState
from geminga.position import Position

__all__ = ["Acknowledgments", "bits_of"]


class Acknowledgments(Acknowledged):
    """Individual acknowledgments cost O(1) amortised, cumulative ones O(ledgers passed).

    Positions that are no entry up to the last confirmed one are ignored: they cannot have been delivered.
    """

    __slots__ = ()

    def _changed(self) -> None:
        """Called after each change that should be saved."""

    def acknowledge(self, positions: Iterable[tuple[int, int]]) -> int:
        """Acknowledge entries one by one, in any order; returns how many were not acknowledged before."""
        # The usual consumer acknowledges in the order of the topic. Such positions only move mark-delete: no
        # bitmap is made and emptied again.
        ledger_id = self._md_ledger
        expected = self._md_entry + 1
        limit = self._chain.counts.get(ledger_id, 0)
        first = expected
        apart: list[tuple[int, int]] | None = None
        for position in positions:
            # `limit` keeps mark-delete behind the last confirmed entry: a client may acknowledge positions
            # that were never delivered to it.
            if position[1] == expected and position[0] == ledger_id and expected < limit:
                expected += 1
            elif apart is None:
                apart = [position]
            else:
                apart.append(position)
        # Mark-delete moves first: in the other order it could move back.
        newly = self._advance(expected - 1) if expected > first else 0
        if apart is not None:
            newly += self._acknowledge_apart(apart)
        if newly:
            self._changed()
        return newly

    def acknowledge_cumulative(self, position: tuple[int, int]) -> int:
        """Acknowledge everything up to and including `position`; returns how many entries were not
        acknowledged before.

        Does nothing if the position is at or before mark-delete, or beyond the last confirmed entry.
        """
        # Not cut to the tail: entries that come later would count as acknowledged without having been
        # delivered.
        if position > self._chain.tail:
            return 0
        # A cumulative position may name a ledger that was trimmed since its entry was delivered.
        # Of a newest ledger that is empty it is the last entry before that: which one was acknowledged last
        # would be forgotten with its ledger.
        newly = self._move(self._chain.before((position[0], position[1] + 1)))
        if newly:
            self._changed()
        return newly

    def acknowledge_batch_index(
        self, position: tuple[int, int], ack_set: Sequence[int], batch_size: int
    ) -> bool:
        """Acknowledge messages of a batch. `ack_set` has a bit for each message that is *not* acknowledged
        yet.

        True when the whole entry is acknowledged now. A peer's `batch_size` cannot make us allocate: only as
        many bits as `ack_set` has words are looked at.
        """
        if self.is_acknowledged(position):
            return True
        # Kept only for entries that exist: a client could fill the memory with positions of its own making.
        if not self._is_entry(position):
            return False
        remaining = bits_of(ack_set) & ((1 << min(batch_size, WORD_BITS * len(ack_set))) - 1)
        before = self._batches.get(position)
        # Acknowledgments of a batch only add up. Two consumers, or a repeated ACK, may send sets that do not
        # know of each other, and neither may take back what the other has acknowledged.
        if before is not None:
            remaining &= before
        if not remaining:
            # From here on the entry is one bit, or behind mark-delete: an entry never has a bit and a batch.
            self.acknowledge((position,))
            return True
        if remaining != before:
            self._batches[position[0], position[1]] = remaining
            self._changed()
        return False

    def _is_entry(self, position: tuple[int, int]) -> bool:
        return 0 <= position[1] < self._chain.counts.get(position[0], 0)

    def _advance(self, entry_id: int) -> int:
        """Move mark-delete forward within its ledger; returns how many entries were not acknowledged
        before.
        """
        first = self._md_entry + 1
        newly = entry_id + 1 - first
        if self._acked:
            newly -= self._forget_bits(self._md_ledger, first, entry_id + 1)
        if self._batches:
            self._forget_batches(self._md_ledger, range(first, entry_id + 1))
        self._md_entry = entry_id
        if self._acked:
            self._absorb()
        return newly

    def _acknowledge_apart(self, positions: list[tuple[int, int]]) -> int:
        counts = self._chain.counts
        md_ledger = self._md_ledger
        by_ledger: dict[int, list[int]] = {}
        for ledger_id, entry_id in positions:
            if ledger_id < md_ledger or (ledger_id == md_ledger and entry_id <= self._md_entry):
                continue
            # Collected by ledger first: one update of a bitmap with many ids costs a fraction of as many
            # single ones.
            if 0 <= entry_id < counts.get(ledger_id, 0):
                by_ledger.setdefault(ledger_id, []).append(entry_id)
        newly = 0
        for ledger_id, entry_ids in by_ledger.items():
            bitmap = self._acked.get(ledger_id)
            if bitmap is None:
                bitmap = self._acked[ledger_id] = BitMap(entry_ids)
                newly += len(bitmap)
            # A single id has a path of its own, since most commands acknowledge one entry and counting the
            # bitmap twice would cost more than adding to it.
            elif len(entry_ids) == 1:
                if entry_ids[0] not in bitmap:
                    bitmap.add(entry_ids[0])
                    newly += 1
            else:
                before = len(bitmap)
                bitmap.update(entry_ids)
                newly += len(bitmap) - before
            if self._batches:
                self._forget_batches(ledger_id, entry_ids)
        if newly:
            self._acked_entries += newly
            self._absorb()
        return newly

    def _move(self, target: Position) -> int:
        """Move mark-delete forward to `target`, across ledgers; returns how many entries were not
        acknowledged before.
        """
        chain = self._chain
        at = (self._md_ledger, self._md_entry)
        if target <= at:
            return 0
        newly = chain.ordinal(target) - chain.ordinal(at)
        # Whole ledgers at once: the cost is that of the ledgers passed, not of their entries.
        for ledger_id in [ledger_id for ledger_id in self._acked if ledger_id < target.ledger_id]:
            passed = len(self._acked.pop(ledger_id))
            self._acked_entries -= passed
            newly -= passed
        newly -= self._forget_bits(target.ledger_id, 0, target.entry_id + 1)
        for position in [position for position in self._batches if position <= target]:
            del self._batches[position]
        self._md_ledger, self._md_entry = target
        self._absorb()
        return newly

    def _absorb(self) -> None:
        """Move mark-delete over the acknowledged entries that follow it, through any number of ledgers."""
        acked = self._acked
        chain = self._chain
        while acked:
            ledger_id = self._md_ledger
            bitmap = acked.get(ledger_id)
            following = self._md_entry + 1
            if bitmap is not None and following in bitmap:
                end = end_of_run(bitmap, following)
                self._forget_bits(ledger_id, following, end)
                self._md_entry = end - 1
            elif following >= chain.counts.get(ledger_id, 0):
                # Behind the last entry of a ledger mark-delete stays, until the first entry of the next one
                # is acknowledged: there it needs no change when that ledger is still empty.
                next_ledger = chain.next_ledger_with_entries(ledger_id)
                bitmap = acked.get(next_ledger)
                if bitmap is None or 0 not in bitmap:
                    return
                self._md_ledger, self._md_entry = next_ledger, -1
            else:
                return

    def _forget_bits(self, ledger_id: int, first: int, stop: int) -> int:
        bitmap = self._acked.get(ledger_id)
        if bitmap is None or stop <= first:
            return 0
        gone = bitmap.range_cardinality(first, stop)
        if gone:
            bitmap.remove_range(first, stop)
            self._acked_entries -= gone
            # An empty bitmap would be written with each state, and keep `_absorb` looking.
            if not bitmap:
                del self._acked[ledger_id]
        return gone

    def _forget_batches(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        batches = self._batches
        # By the shorter of the two: mark-delete may pass thousands of entries while a few batches are partly
        # acknowledged, or the other way round.
        if len(entry_ids) <= len(batches):
            for entry_id in entry_ids:
                batches.pop((ledger_id, entry_id), None)
        else:
            gone = set(entry_ids)
            for position in [p for p in batches if p[0] == ledger_id and p[1] in gone]:
                del batches[position]

    # -- whole states -----------------------------------------------------------------------------------

    def restore(self, state: CursorState) -> None:
        """Load a saved state, cut to the entries that the chain has."""
        chain = self._chain
        self.clear(min(state.mark_delete, chain.tail))
        for ledger_id, written in state.acknowledged.items():
            # Cut to what the chain has: ledgers may have been trimmed since the state was written.
            entries = chain.counts.get(ledger_id, 0)
            first = self._md_entry + 1 if ledger_id == self._md_ledger else 0
            if ledger_id < self._md_ledger or first >= entries:
                continue
            bitmap = written & BitMap(range(first, entries))
            if bitmap:
                self._acked[ledger_id] = bitmap
                self._acked_entries += len(bitmap)
        # The cut may have moved mark-delete next to acknowledged entries.
        self._absorb()
        for position, remaining in state.batches.items():
            if remaining and self._is_entry(position) and not self.is_acknowledged(position):
                self._batches[position] = remaining

    def clear(self, mark_delete: tuple[int, int]) -> None:
        """Acknowledge everything up to `mark_delete` and nothing after it."""
        self._acked.clear()
        self._acked_entries = 0
        self._batches.clear()
        self._md_ledger, self._md_entry = self._chain.floor(mark_delete)
        self._dropped_end = self._end_before_chain(mark_delete)

    def ledgers_dropped(self) -> None:
        """The chain has dropped ledgers at its front: their entries count as acknowledged."""
        first = self._chain.ids[0]
        # A slow non-durable cursor holds no ledger back, so its mark-delete may be in one that is gone.
        if self._md_ledger >= first:
            return
        for ledger_id in [ledger_id for ledger_id in self._acked if ledger_id < first]:
            self._acked_entries -= len(self._acked.pop(ledger_id))
        for position in [position for position in self._batches if position[0] < first]:
            del self._batches[position]
        if self._md_entry >= 0:
            self._dropped_end = self.mark_delete
        self._md_ledger, self._md_entry = first, -1
        self._absorb()
