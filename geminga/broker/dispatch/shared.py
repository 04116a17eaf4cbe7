"""Shared: any number of consumers, each entry goes to one of them, by turns and as their permits allow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from geminga.broker.dispatch.choice import share_round_robin
from geminga.broker.dispatch.chooser import Batch, Given, Shares
from geminga.broker.dispatch.chunks import ChunkOwners, HeldChunks
from geminga.broker.dispatch.consumer import SHARED, Consumer
from geminga.broker.dispatch.redelivery import RedeliverySet
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.broker.dispatch.settings import SettingsInForce
    from geminga.managed_ledger.chain.entry import Entry


class Shared:
    """Remembers whose turn it is, and which consumer has the first chunks of a message."""

    sub_type = SHARED
    # Shared promises no order: a read stands although something earlier was given back meanwhile.
    keeps_order = False

    def __init__(self, in_force: SettingsInForce, redelivery: RedeliverySet) -> None:
        self.consumers: list[Consumer] = []
        """By priority level."""
        self._in_force = in_force
        self._redelivery = redelivery
        self._turn = 0
        self._chunks = ChunkOwners[Consumer]()
        self._held = HeldChunks()

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        # Stable, as Pulsar's: of equal levels the order of arrival is the order of turns.
        self.consumers.sort(key=lambda c: c.priority_level)
        self._held.try_again()

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._chunks.forget(consumer)
        # What waited for this consumer goes to another one now, from the first chunk on.
        self._held.try_again()

    def active(self) -> Consumer | None:
        return None

    def receivers(self) -> Sequence[Consumer]:
        return self.consumers

    # -- what waits ------------------------------------------------------------------------------------------

    def select(self, count_max: int) -> list[Position]:
        self._held.release_if_asked()
        if not self._redelivery:
            return []
        if not (held := self._held.positions):
            return self._redelivery.first(count_max)
        # So many more that a full read is left when all that waits for its owner is taken out.
        found = self._redelivery.first(count_max + len(held))
        return [position for position in found if position not in held][:count_max]

    def reconsider(self) -> None:
        self._held.try_again()

    def look_ahead_left(self) -> int:
        """Any consumer takes any entry, so no more waits than a read found no permits for."""
        return sys.maxsize

    # -- which consumer gets what ----------------------------------------------------------------------------

    def share(self, batch: Batch, *, is_new: bool) -> Shares:
        if batch.has_chunks:
            return self._share_chunks(batch)
        entries, sizes, consumers = batch.entries, batch.sizes, self.consumers
        rounds, self._turn = share_round_robin(
            sizes, consumers, self._turn, self._in_force.settings.round_robin_entries_max
        )
        placed = rounds[-1].end if rounds else 0
        # One consumer, or permits at only one: its lists are slices, not built entry by entry.
        if len(rounds) == 1:
            given = [Given(consumers[rounds[0].consumer], entries[:placed], sizes[:placed])]
            return Shares(given, entries[placed:])
        by_consumer: dict[int, tuple[list[Entry], list[int]]] = {}
        for number, start, end in rounds:
            taken = by_consumer.setdefault(number, ([], []))
            taken[0].extend(entries[start:end])
            taken[1].extend(sizes[start:end])
        return Shares([Given(consumers[n], *taken) for n, taken in by_consumer.items()], entries[placed:])

    def _share_chunks(self, batch: Batch) -> Shares:
        entries, sizes = batch.entries, batch.sizes
        shares, numbers_waiting = self._chunks.share(
            entries, sizes, self.consumers, self._turn, self._held.messages
        )
        given = [
            Given(c, [entries[n] for n in numbers], [sizes[n] for n in numbers]) for c, numbers in shares
        ]
        waiting = [entries[number] for number in numbers_waiting]
        self._held.positions.update(entry.position for entry in waiting)
        return Shares(given, waiting)
