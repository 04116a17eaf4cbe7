"""What a run has seen, in the order in which it saw it. Times are the machine's, in ms since 1970."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

MessageId = tuple[int, int, int, int]
"""Partition (-1: none), ledger, entry, and index in the batch (-1: none)."""


class Session(NamedTuple):
    """One stay of one consumer on one connection."""

    number: int
    began_ms: int


ANY_SESSION: Final = Session(0, 0)


class Sent:
    """One message of one producer."""

    __slots__ = ("delay_ms", "first_ms", "key", "number", "producer", "receipt_ms", "tries")

    def __init__(self, producer: int, number: int, key: int, delay_ms: int) -> None:
        self.producer = producer
        self.number = number
        self.key = key
        """-1: none."""
        self.delay_ms = delay_ms
        """0: it is not delayed."""
        self.first_ms = 0
        """When it was sent first; 0: it was not."""
        self.receipt_ms = 0
        """When its receipt came; 0: none did, so that it may be stored or not."""
        self.tries = 0

    def send(self, at_ms: int) -> None:
        """It is sent, perhaps once more."""
        self.first_ms = self.first_ms or at_ms
        self.tries += 1

    def confirm(self, at_ms: int) -> None:
        """Its receipt has come."""
        self.receipt_ms = at_ms


class Received:
    """One delivery of one message to one subscription."""

    __slots__ = (
        "acked_ms",
        "at_ms",
        "id",
        "is_whole",
        "number",
        "producer",
        "redeliveries",
        "session",
    )

    def __init__(
        self,
        producer: int,
        number: int,
        at_ms: int,
        message_id: MessageId,
        session: Session = ANY_SESSION,
        redeliveries: int = 0,
        *,
        is_whole: bool = True,
    ) -> None:
        self.producer = producer
        """-1: its payload says nothing that was sent."""
        self.number = number
        self.at_ms = at_ms
        self.id = message_id
        self.session = session
        self.redeliveries = redeliveries
        """As the broker says."""
        self.is_whole = is_whole
        """Whether it is what was sent, byte by byte."""
        self.acked_ms = 0
        """When the broker confirmed its acknowledgement; 0: it did not."""

    def acknowledge(self, at_ms: int) -> None:
        """The broker has confirmed its acknowledgement."""
        self.acked_ms = at_ms


class Producing(NamedTuple):
    """What a producer is: its number is its place in the list."""

    topic: int
    name: str


@dataclass(slots=True)
class Receiving:
    """All deliveries of one subscription of one topic."""

    topic: int
    subscription: str
    type: str
    deliveries: list[Received] = field(default_factory=list)

    def add(self, deliveries: Iterable[Received]) -> None:
        self.deliveries.extend(deliveries)


class Doing(NamedTuple):
    """Something that was done to the broker, or that it did by itself."""

    at_ms: int
    text: str
    kind: Literal["step", "crash", "seek", "ended", "skipped", "event"] = "step"
    """`crash`: what was not durable is gone, acknowledgements of the last moments among it. `ended`: the
    broker ended by itself, a crash that no step asked for.
    """


class Jump(NamedTuple):
    """A move of the broker's clock."""

    asked_ms: int
    done_ms: int
    from_ms: int
    """Broker's time."""
    to_ms: int


class Seek(NamedTuple):
    """All subscriptions were set back to their beginnings."""

    asked_ms: int
    done_ms: int


class Fencing(NamedTuple):
    """A time in which any topic may be fenced, again and again, and go on from what was durable."""

    from_ms: int
    to_ms: int


class Sample(NamedTuple):
    """What the broker showed at one moment."""

    at_ms: int
    backlog: int
    delayed: int
    buckets: int


@dataclass(slots=True)
class History:
    began_ms: int
    offset_ms: int = 0
    """How far the broker's clock was ahead at the beginning."""
    ended_ms: int = 0
    producers: list[Producing] = field(default_factory=list)
    sent: list[list[Sent]] = field(default_factory=list)
    """By producer and number."""
    subscriptions: list[Receiving] = field(default_factory=list)
    doings: list[Doing] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)
    fencings: list[Fencing] = field(default_factory=list)
    seeks: list[Seek] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    """What the run gave up waiting for."""

    def begin(self, offset_ms: int) -> None:
        """The broker's clock is ahead by so much."""
        self.offset_ms = offset_ms

    def end(self, at_ms: int) -> None:
        """Nothing is sent or received any more."""
        self.ended_ms = at_ms

    def add(self, doings: Iterable[Doing]) -> None:
        """In the order of their times."""
        self.doings = sorted([*self.doings, *doings])

    def is_after_seeks(self, delivery: Received) -> bool:
        """Whether it came after the last seek, if there was one."""
        # What was on its way when the seek was done may count, too. By the session, deliveries to a consumer
        # that came back before the answer to the seek count, as they should.
        if not self.seeks:
            return True
        last = self.seeks[-1]
        return delivery.at_ms > last.done_ms or delivery.session.began_ms >= last.asked_ms

    def sent_as(self, producer: int, number: int) -> Sent | None:
        """What was sent so; None: nothing was."""
        if not 0 <= producer < len(self.sent) or not 0 <= number < len(self.sent[producer]):
            return None
        sent = self.sent[producer][number]
        return sent if sent.first_ms else None
