"""What a run has seen: records, in the order in which it saw them. Times are the machine's, in ms since 1970.

`history_file.py` writes each record as one line of a file: `docs/chaos-history.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import msgspec

MessageId = tuple[int, int, int, int]
"""Partition (-1: none), ledger, entry, and index in the batch (-1: none)."""

# Of what a file may say; a run's own records are not looked at. Without these a time or a number of any size
# ended a check of a file with an error of its arithmetic, or took all memory.
Time = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Number = Annotated[int, msgspec.Meta(ge=-1, le=1 << 32)]
Id = Annotated[int, msgspec.Meta(ge=-1)]
Count = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]
"""A broker that counts wrongly may say anything."""
Waiting = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Record(msgspec.Struct, tag_field="is", omit_defaults=True):
    """One line of a history. A time of 0: it did not happen."""


class Producing(Record, tag="producer", kw_only=True):
    """A producer; its number is its place in the list."""

    topic: Number
    name: str


class Sent(Record, tag="sent", gc=False, kw_only=True):
    """One message of one producer."""

    producer: Number
    number: Number
    key: str = ""
    """Empty: none."""
    trace: str = ""
    """The value of the message's only property, `trace`."""
    crc: Number = 0
    """CRC-32 of the payload."""
    delay_ms: Time = 0
    """0: it is not delayed."""
    first_ms: Time = 0
    """When it was sent first."""
    receipt_ms: Time = 0
    """When its receipt came; 0: it may be stored or not."""
    tries: Number = 0
    is_refused: bool = False
    """The broker refused it, or one before it: it lost its place in the order when it was sent again."""
    ledger_id: Id = -1
    """What the receipt said; -1: none came, or the broker had it already (deduplication)."""
    entry_id: Id = -1

    def send(self, at_ms: int, crc: int) -> None:
        """It is sent, perhaps once more."""
        self.first_ms = self.first_ms or at_ms
        self.crc = crc
        self.tries += 1

    def refuse(self) -> None:
        self.is_refused = True

    def confirm(self, at_ms: int, ledger_id: int = -1, entry_id: int = -1) -> None:
        """Its receipt has come."""
        self.receipt_ms = at_ms
        self.ledger_id, self.entry_id = ledger_id, entry_id


class Session(Record, tag="session", kw_only=True):
    """One stay of one consumer on one connection; its number is its place in the list."""

    number: Number
    subscription: Number = 0
    consumer: str = ""
    began_ms: Time = 0
    left_ms: Time = 0
    """When the consumer asked to leave, and the broker did so."""
    ended_ms: Time = 0
    """When it was seen to be over: closed by the broker, or the connection broke."""
    queue: Number = 0
    """So many messages it asked for beyond those that it had settled; 0: not known."""
    passive_ms: list[Time] = []
    """When the broker said that another consumer of a Failover subscription is active now."""

    def leave(self, at_ms: int) -> None:
        self.left_ms = at_ms

    def end(self, at_ms: int, *, is_left: bool = False) -> None:
        """`is_left`: the broker has confirmed that the consumer left; else it was the first to go."""
        if not self.ended_ms:
            self.ended_ms = at_ms
            if not is_left:
                self.left_ms = 0

    def lose_turn(self, at_ms: int) -> None:
        self.passive_ms = [*self.passive_ms, at_ms]


class Received(Record, tag="received", gc=False, kw_only=True):
    """One delivery of one message to one subscription."""

    subscription: Number = 0
    session: Number = 0
    producer: Number
    """-1: its payload says nothing that was sent."""
    number: Number
    key: str = ""
    trace: str = ""
    crc: Number = 0
    at_ms: Time
    partition: Number = -1
    ledger_id: Id
    entry_id: Id
    batch_index: Number = -1
    redeliveries: Number = 0
    """As the broker says."""
    ack_ms: Time = 0
    """When it was acknowledged."""
    acked_ms: Time = 0
    """When the broker answered that; only then it counts."""
    nack_ms: Time = 0
    """When it was asked for once more."""

    @property
    def id(self) -> MessageId:
        return self.partition, self.ledger_id, self.entry_id, self.batch_index

    def acknowledge(self, at_ms: int) -> None:
        """An acknowledgement is on its way."""
        self.ack_ms = at_ms

    def confirm(self, at_ms: int) -> None:
        """The broker has answered it."""
        self.acked_ms = at_ms

    def nack(self, at_ms: int) -> None:
        """It is asked for again."""
        self.nack_ms = at_ms


class Subscription(Record, tag="subscription", kw_only=True):
    """Of one topic, on all its partitions; its number is its place in the list."""

    topic: Number
    name: str
    type: Literal["Exclusive", "Failover", "Shared", "Key_Shared"]


class Receiving(NamedTuple):
    """All deliveries of one subscription."""

    subscription: Subscription
    deliveries: list[Received]

    def add(self, deliveries: Iterable[Received]) -> None:
        self.deliveries.extend(deliveries)


class Doing(Record, tag="doing", order=True, kw_only=True):
    """Something that was done to the broker, or that it did by itself."""

    at_ms: Time
    text: str
    kind: Literal["step", "crash", "ended", "started", "dead", "skipped", "event"] = "step"
    """`crash`: what is not durable is gone, acknowledgements of the last moments among it. `ended`: the
    broker ended by itself, a crash that no step asked for. `started`: it runs again. `dead`: it does not.
    """


class Jump(Record, tag="jump", kw_only=True):
    """A move of the broker's clock."""

    asked_ms: Time
    length_ms: Time = 0
    """By how much it was to be moved."""
    done_ms: Time = 0
    """0: no answer came, so that it may be under way."""
    from_ms: Time = 0
    """Broker's time."""
    to_ms: Time
    """Of a move without an answer: the latest that it may have reached."""
    has_waiting: bool = False
    """The broker said that no consumer had room for some of what was due."""

    def end(self, done_ms: int, from_ms: int, to_ms: int, *, has_waiting: bool = False) -> None:
        self.done_ms, self.from_ms, self.to_ms = done_ms, from_ms, to_ms
        self.has_waiting = has_waiting


class Seek(Record, tag="seek", kw_only=True):
    """All subscriptions were set back to their beginnings."""

    asked_ms: Time
    done_ms: Time


class Taking(Record, tag="taking", kw_only=True):
    """An operator has taken files from the broker. What was confirmed in this time may be gone."""

    what: Literal["restore", "entry-log"]
    copied_ms: Time = 0
    """When the copy that was put in place was begun; of removed files 0."""
    copied_until_ms: Time = 0
    is_orderly: bool = False
    """The copy is of a stopped broker."""
    asked_ms: Time
    done_ms: Time


class Fencing(Record, tag="fencing", kw_only=True):
    """A time in which any topic may be fenced, again and again, and go on from what was durable."""

    from_ms: Time
    to_ms: Time


class Fault(Record, tag="fault", kw_only=True):
    """A rule that was put in force, and how often it took effect."""

    text: str
    at_ms: Time
    ids: list[str] = []
    hits: Count = 0
    needs_hits: Count = 0
    """With fewer the run has not shown what it is for."""
    ends_broker: bool = False
    """Its hit ends the broker, which then cannot say so."""

    def count(self, hits: int) -> None:
        self.hits = max(self.hits, hits)


class Sample(Record, tag="sample", kw_only=True):
    """What the broker showed at one moment."""

    at_ms: Time
    backlog: Count
    delayed: Count
    buckets: Count


class Probe(Record, tag="probe", gc=False, kw_only=True):
    """How far the machine held up the run since the last probe."""

    at_ms: Time
    late_ms: Waiting = 0.0
    """A timer of the run's own fired so late."""
    client_waits_ms: Waiting = 0.0
    """The run's process had work and no processor, or used up all the time of one."""
    broker_waits_ms: Waiting = 0.0
    """The broker's process had work and no processor."""


class Left(Record, tag="left", kw_only=True):
    """What the broker says of a subscription of a topic or partition when all is over."""

    subscription: Number
    partition: Number
    backlog: Count
    pending: Count
    """Delivered and not acknowledged."""
    delayed: Count


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
    sessions: list[Session] = field(default_factory=list)
    doings: list[Doing] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)
    fencings: list[Fencing] = field(default_factory=list)
    seeks: list[Seek] = field(default_factory=list)
    takings: list[Taking] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    """What the run gave up waiting for, since nothing moved any more."""
    stuck_ms: int = 0
    """How long nothing had moved then."""
    broken: list[str] = field(default_factory=list)
    """What of the run could not be carried out."""
    is_drained: bool = False
    """Whether all that was to come was waited for, until it had or nothing moved any more."""

    def begin(self, offset_ms: int) -> None:
        """The broker's clock is ahead by so much."""
        self.offset_ms = offset_ms

    def begin_at(self, at_ms: int, offset_ms: int) -> None:
        """As a file tells it."""
        self.began_ms, self.offset_ms = at_ms, offset_ms

    def second(self, at_ms: int) -> str:
        """Of the run, as all that a report says has it."""
        return f"{(at_ms - self.began_ms) / 1000:.2f} s"

    def end(self, at_ms: int) -> None:
        """Nothing is sent or received any more."""
        self.ended_ms = at_ms

    def tell_end(self, stuck: list[str], stuck_ms: int, broken: list[str]) -> None:
        """As a file tells it."""
        self.stuck, self.stuck_ms, self.broken = stuck, stuck_ms, broken

    def drained(self) -> None:
        """All was waited for."""
        self.is_drained = True

    def give_up(self, text: str, waited_ms: int) -> None:
        self.stuck.append(text)
        self.stuck_ms = waited_ms

    def session(self, subscription: int, consumer: str, at_ms: int, queue: int = 0) -> Session:
        """A new one."""
        made = Session(
            number=len(self.sessions),
            subscription=subscription,
            consumer=consumer,
            began_ms=at_ms,
            queue=queue,
        )
        self.sessions.append(made)
        return made

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
        return delivery.at_ms > last.done_ms or self.sessions[delivery.session].began_ms >= last.asked_ms

    def is_void(self, delivery: Received) -> bool:
        """Whether its acknowledgement was undone by a restore of what was there before it."""
        return any(
            taking.what == "restore"
            and delivery.ack_ms > taking.copied_until_ms
            and self.sessions[delivery.session].began_ms < taking.asked_ms
            for taking in self.takings
        )

    def may_be_taken(self, sent: Sent) -> str:
        """With what of an operator's doings a confirmed message may have gone, "" with none."""
        found = {
            taking.what for taking in self.takings if taking.copied_ms <= sent.receipt_ms <= taking.done_ms
        }
        return max(found, default="")  # "restore" is behind "entry-log"

    def sent_as(self, producer: int, number: int) -> Sent | None:
        """What was sent so; None: nothing was."""
        if not 0 <= producer < len(self.sent) or not 0 <= number < len(self.sent[producer]):
            return None
        sent = self.sent[producer][number]
        return sent if sent.first_ms else None
