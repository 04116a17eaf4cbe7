"""The producers of a topic, and which producers it admits: names, access modes, topic epoch.

The rules and the texts are Pulsar 4.0's (`AbstractTopic.addProducer`, PIP-68, PIP-179); clients branch on
the codes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

import trio

from geminga.broker.topic.producer import Producer
from geminga.errors import ProducerBusy, ProducerFenced


class AccessMode(enum.IntEnum):
    """`ProducerAccessMode` of the binary protocol."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Waiting(NamedTuple):
    producer: Producer
    admitted: trio.Event


class Producers:
    """The producers of one topic, by name. All methods are plain calls on the loop."""

    __slots__ = ("_by_name", "_exclusive", "_topic_name", "_waiting", "epoch")

    def __init__(self, topic_name: str, epoch: int | None) -> None:
        self._topic_name = topic_name
        self._by_name: dict[str, Producer] = {}
        self._waiting: list[Waiting] = []
        self._exclusive: Producer | None = None
        self.epoch = epoch
        """The topic epoch: counts the topic's exclusive producers so far; None before the first."""
        # An exclusive producer names the epoch that it was admitted with when it reconnects. If another one
        # was admitted meanwhile, the epoch has moved and the old one is fenced (PIP-68).

    def __iter__(self) -> Iterator[Producer]:
        # A copy: callers disconnect producers, which removes them here.
        return iter(tuple(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def admit(
        self, producer: Producer, topic_epoch: int | None, producers_max: int = 0
    ) -> list[Producer] | None:
        """Add a producer at once. `producers_max` 0: no limit.

        Returns the producers that it fences off, which the caller closes; None if it has to call `wait` for
        its turn. Raises `ProducerBusy`, `ProducerFenced`.
        """
        # Before the limit is checked: a producer that reconnects takes the place of its own predecessor.
        self._refuse_duplicate(producer)
        if 0 < producers_max <= len(self._by_name):
            raise ProducerBusy(f"Topic '{self._topic_name}' reached max producers limit")
        mode = AccessMode(producer.access_mode)
        # A producer that waits counts as exclusive: shared ones that still came in would keep it out for
        # ever.
        taken = self._exclusive is not None or bool(self._waiting)
        if mode is AccessMode.SHARED:
            if taken:
                raise ProducerBusy(f"Topic has an existing exclusive producer: {self._exclusive_name()}")
            self._by_name[producer.name] = producer
            return []
        if topic_epoch is not None and self.epoch is not None and topic_epoch < self.epoch:
            raise ProducerFenced(
                f"Topic epoch has already moved. Current epoch: {self.epoch}, Producer epoch: {topic_epoch}"
            )
        fenced: list[Producer] = []
        if mode is AccessMode.EXCLUSIVE:
            if taken:
                raise ProducerFenced(f"Topic has an existing exclusive producer: {self._exclusive_name()}")
            if self._by_name:
                raise ProducerFenced("Topic has existing shared producers")
        elif mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            fenced = list(self._by_name.values())
            self._by_name.clear()
        elif taken or self._by_name:
            return None
        self._enter_exclusively(producer)
        return fenced

    async def wait(self, producer: Producer) -> None:
        """Wait until `producer` is the exclusive one. Cancelling removes it from the queue."""
        waiting = Waiting(producer, trio.Event())
        self._waiting.append(waiting)
        try:
            await waiting.admitted.wait()
        except trio.Cancelled:
            # It may have been admitted in the very turn that cancels it: then it must leave, or the topic
            # would have an exclusive producer without a client.
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                self.remove(producer)
            raise

    def names(self) -> set[str]:
        return set(self._by_name)

    def leave(self, producer: Producer) -> None:
        """The producer has gone, admitted or not: its further SENDs are ignored."""
        producer.close()
        self.remove(producer)

    def disconnect(self, producer: Producer) -> None:
        """Have the producer's client look the topic up again."""
        self.remove(producer)
        producer.tell_closed()

    def remove(self, producer: Producer) -> None:
        """Remove a producer that has gone, and admit the next one that waits for exclusive access."""
        # By identity: a producer that was replaced under its name leaves later, and must not take its
        # successor along.
        if self._by_name.get(producer.name) is producer:
            del self._by_name[producer.name]
        if self._exclusive is producer:
            self._exclusive = None
        if not self._by_name and self._waiting:
            successor = self._waiting.pop(0)
            self._enter_exclusively(successor.producer)
            successor.admitted.set()

    def _enter_exclusively(self, producer: Producer) -> None:
        self._by_name[producer.name] = producer
        self._exclusive = producer
        self.epoch = 0 if self.epoch is None else self.epoch + 1

    def _exclusive_name(self) -> str:
        return self._exclusive.name if self._exclusive else self._waiting[0].producer.name

    def _refuse_duplicate(self, producer: Producer) -> None:
        existing = self._by_name.get(producer.name)
        if existing is None:
            return
        # A client that reconnects may be faster than the end of its old connection, which the broker sees
        # only at the next keep-alive. Its own producer with a higher epoch, or one whose connection is
        # closed, gives way.
        same_connection = existing.outbox is producer.outbox and existing.producer_id == producer.producer_id
        if (same_connection and producer.epoch > existing.epoch) or existing.outbox.closed:
            self.remove(existing)
            existing.close()
            return
        raise ProducerBusy(
            f"Producer with name '{producer.name}' is already connected to topic '{self._topic_name}'"
        )
