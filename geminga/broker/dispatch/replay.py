"""What goes out before anything new (Pulsar's messagesToRedeliver, read in `replay` mode): given back by a
consumer, left by one that is gone, due after a delay, or read when no consumer had permits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from geminga.broker.dispatch.chooser import Batch, ReplayChooser, Shares
from geminga.broker.dispatch.unacked import UnackedBooks
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.broker.dispatch.consumer import Consumer
    from geminga.broker.dispatch.hash_ranges import DrainingSlots
    from geminga.broker.dispatch.reader import EntryReader
    from geminga.broker.dispatch.redelivery import RedeliverySet
    from geminga.broker.dispatch.settings import Surroundings


class Replay:
    """The part of a Shared or Key_Shared dispatcher that keeps books: what is pending at which consumer, and
    what is to be sent again. `chooser` says which of that is worth a read.
    """

    def __init__(
        self,
        around: Surroundings,
        reader: EntryReader,
        chooser: ReplayChooser,
        redelivery: RedeliverySet,
        draining: DrainingSlots[Consumer],
    ) -> None:
        self.books = UnackedBooks(
            chooser.consumers,
            around.cursor,
            redelivery,
            draining,
            around.settings.unacked_max_per_subscription,
            self.room_came,
            # A client may acknowledge what the index still holds back; it would be read when due, for
            # nothing.
            around.delayed.passed,
        )
        self.keeps_order = chooser.keeps_order
        self.select = chooser.select
        self.look_ahead_left = chooser.look_ahead_left
        self._around = around
        self._reader = reader
        self._chooser = chooser

    def room_came(self) -> None:
        """A consumer can take more: permits came, a block was lifted, its outbox has room again."""
        # Key_Shared remembers that all that waits was refused, and would go on refusing it.
        self._chooser.reconsider()
        self._around.wake()

    # -- reading ---------------------------------------------------------------------------------------------

    async def read(
        self, positions: Sequence[Position], read_along: Callable[[], Sequence[Position]]
    ) -> Batch | None:
        """What `select` returned, taken out of the redelivery set and read. `read_along`: see
        `LedgerReads.read_positions`.

        None: all of it stays there, as reading failed or backs off, as no consumer can take anything any
        more, or because of what has happened meanwhile.
        """
        if self._reader.is_backing_off:
            return None
        redelivery = self.books.redelivery
        # Pulsar drops the read in this case too: a consumer that closed meanwhile gave back earlier entries
        # of the same key (issue #12885).
        additions = redelivery.additions
        # They stay in the set while they are read, so that nothing is lost with a read that fails or is
        # turned away.
        found = await self._reader.read_positions(positions, read_along)
        if found is None:
            return None
        if self.keeps_order and redelivery.additions != additions:
            # What has come perhaps goes before what was read.
            return None
        for ledger_id, entry_id in positions[: found.reached]:
            # Also those that were not found: what has been trimmed need not be sent.
            redelivery.discard(ledger_id, entry_id)
        return self._reader.admit(found.entries, scattered=True)

    def keep(self, shares: Shares) -> None:
        """What waits for permits goes first next time."""
        # The read position is past these, and no consumer has them: without the set they would not be sent
        # before the next first consumer starts over.
        add = self.books.redelivery.add
        if shares.waiting_slots is None:
            for entry in shares.waiting:
                add(*entry.position)
        else:
            # With its slot, which later entries of that slot look for: they have to wait behind this one.
            for entry, slot in zip(shares.waiting, shares.waiting_slots, strict=True):
                add(*entry.position, slot)

    # -- consumers -------------------------------------------------------------------------------------------

    def give_back(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Send these again, or all that is pending at the consumer."""
        self.books.give_back(consumer, positions)
        self.room_came()

    def start_over(self) -> None:
        """The backlog is about to be read from its beginning."""
        self.books.forget()
        self._chooser.reconsider()
