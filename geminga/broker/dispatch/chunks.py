"""Chunked messages on a Shared subscription: all chunks of one message go to one consumer, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from geminga.broker.dispatch.choice import Candidate, next_consumer
from geminga.position import Position

# A producer that ends in the middle of a message leaves its entry for good; Pulsar's map has no bound.
OWNERS_MAX = 10_000
"""Chunked messages whose last chunk has not come yet; beyond that the oldest is forgotten."""


class ChunkMetadata(Protocol):
    """Clients name a chunked message by its producer and sequence id, which all its chunks have in common."""

    @property
    def producer_name_utf8(self) -> bytes: ...
    @property
    def sequence_id(self) -> int: ...
    @property
    def chunk_id(self) -> int: ...
    @property
    def num_chunks(self) -> int: ...


class ChunkEntry(Protocol):
    @property
    def peek(self) -> ChunkMetadata: ...


A = TypeVar("A", bound=Candidate)
Chunked = tuple[bytes, int]
"""A chunked message: (producer name, sequence id)."""


class HeldChunks:
    """Chunks that wait for permits of their owner, so that everything else may pass them.

    As long as one of a message's chunks waits, all later ones do. They are let go together, before the next
    read: not while one is under way, or a chunk that it brings would go before those that wait.
    """

    __slots__ = ("_let_go", "messages", "positions")

    def __init__(self) -> None:
        self.messages: set[Chunked] = set()
        self.positions: set[Position] = set()
        """Where they are; they are in the redelivery set too."""
        self._let_go = False

    def try_again(self) -> None:
        """A consumer can take more, or has left: what waits may go somewhere now."""
        self._let_go = True

    def release_if_asked(self) -> None:
        if self._let_go:
            self._let_go = False
            self.messages.clear()
            self.positions.clear()


class ChunkOwners(Generic[A]):
    """Remembers which consumer got the first chunk of a message until the last one was given out. Pure but
    for that.
    """

    def __init__(self) -> None:
        self._owners: dict[Chunked, A] = {}

    def forget(self, consumer: A) -> None:
        """What it left unfinished goes to another consumer, from the first chunk on."""
        self._owners = {whole: owner for whole, owner in self._owners.items() if owner is not consumer}

    def share(
        self,
        entries: Sequence[ChunkEntry],
        sizes: Sequence[int],
        consumers: Sequence[A],
        turn: int,
        held: set[Chunked],
    ) -> tuple[list[tuple[A, list[int]]], list[int]]:
        """Share a batch that has chunks in it: (entry numbers by consumer, entry numbers that must wait).

        Other entries go to one consumer until its permits are used up, then to the next. Once a chunk has to
        wait, its message is put into `held`, and the later ones of it wait too.
        """
        levels = [c.priority_level for c in consumers]
        left = [c.capacity() for c in consumers]
        shares: list[list[int]] = [[] for _ in consumers]
        waiting: list[int] = []
        current = -1
        for number, entry in enumerate(entries):
            if current < 0 or left[current] <= 0:
                current = next_consumer(levels, lambda n: left[n] > 0, turn)
                turn = current + 1
            metadata = entry.peek
            chosen, whole = current, None
            if metadata.chunk_id >= 0:
                whole = (metadata.producer_name_utf8, metadata.sequence_id)
                # A client drops the chunks of a message whose first one it did not get: two owners would lose
                # it for both.
                chosen = self._consumer_for(whole, consumers, current)
            # Pulsar sends to the owner whatever its permits say. Here it waits, so that a large message does
            # not overrun a client.
            if chosen < 0 or left[chosen] <= 0 or whole in held:
                waiting.append(number)
                if whole is not None:
                    # Or the next chunk could find new permits and overtake: clients discard a message whose
                    # chunks are out of order.
                    held.add(whole)
                continue
            left[chosen] -= sizes[number]
            shares[chosen].append(number)
            if whole is not None:
                self._given(whole, metadata.chunk_id >= metadata.num_chunks - 1, consumers[chosen])
        return [(c, numbers) for c, numbers in zip(consumers, shares, strict=True) if numbers], waiting

    def _consumer_for(self, whole: Chunked, consumers: Sequence[A], otherwise: int) -> int:
        owner = self._owners.get(whole)
        if owner is None:
            return otherwise
        return next((n for n, consumer in enumerate(consumers) if consumer is owner), otherwise)

    def _given(self, whole: Chunked, is_last: bool, consumer: A) -> None:
        if is_last:
            self._owners.pop(whole, None)
            return
        self._owners[whole] = consumer
        if len(self._owners) > OWNERS_MAX:
            del self._owners[next(iter(self._owners))]
