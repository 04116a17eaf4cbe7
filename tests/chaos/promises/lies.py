"""A proxy tells one lie at a time between clients and an honest broker: the checker has to find each.

    python -m tests.chaos.promises.lies             all of them
    python -m tests.chaos.promises.lies NAME ...    only these

A line for each: with which word it was found, and what was counted. Exit code 1 if one was found with no
word, or with another than its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import trio

from geminga.child_broker import ChildBroker
from geminga.wire import pulsar_pb2 as pb
from tests.chaos.promises.plant import counts_of, run_scenario
from tests.chaos.promises.proxy import Entry, Frame, Liar, Link, serve
from tests.mutants.mutant import ROOT

EVERY = 20
"""A lie is told at each such frame of its kind, unless it says otherwise."""


class OnKind(Liar):
    """Changes each `every`-th frame of one kind: `change` says what goes on in its place."""

    def __init__(self, kind: str, change: Callable[[Frame], Sequence[Frame]], every: int = EVERY) -> None:
        self._kind = kind
        self._change = change
        self._every = every
        self._seen = 0

    def _judge(self, frame: Frame) -> Iterator[Frame]:
        if frame.kind != self._kind:
            yield frame
            return
        self._seen += 1
        if self._seen % self._every:
            yield frame
        else:
            yield from self._change(frame.copy())

    def from_client(self, link: Link, frame: Frame) -> Iterator[Frame]:
        return self._judge(frame)

    def from_broker(self, link: Link, frame: Frame) -> Iterator[Frame]:
        return self._judge(frame)


def drop(frame: Frame) -> Sequence[Frame]:
    return ()


def double(frame: Frame) -> Sequence[Frame]:
    return frame, frame


def entry_changed(change: Callable[[Entry], Entry]) -> Callable[[Frame], Sequence[Frame]]:
    return lambda frame: (frame.with_entry(change(frame.entry)),)


def metadata_changed(change: Callable[[Any], None]) -> Callable[[Frame], Sequence[Frame]]:
    def changed(entry: Entry) -> Entry:
        change(entry.metadata)
        return entry

    return entry_changed(changed)


def command_changed(change: Callable[[Any], None]) -> Callable[[Frame], Sequence[Frame]]:
    def changed(frame: Frame) -> Sequence[Frame]:
        change(frame.command)
        return (frame,)

    return changed


def set_key(metadata: Any) -> None:
    metadata.partition_key = "another"


def clear_key(metadata: Any) -> None:
    metadata.ClearField("partition_key")


def set_property(metadata: Any) -> None:
    metadata.properties[0].value += "x"


def next_sequence_id(metadata: Any) -> None:
    metadata.sequence_id += 1


def clear_properties(metadata: Any) -> None:
    metadata.ClearField("properties")


def add_property(metadata: Any) -> None:
    metadata.properties.append(pb.KeyValue(key="more", value="x"))


def clear_delay(metadata: Any) -> None:
    metadata.ClearField("deliver_at_time")


def delayed_by(more_ms: int) -> Callable[[Any], None]:
    def change(metadata: Any) -> None:
        if metadata.deliver_at_time:
            metadata.deliver_at_time += more_ms

    return change


def count_up(command: Any) -> None:
    command.message.redelivery_count += 1


def count_nothing(command: Any) -> None:
    command.message.redelivery_count = 0


def next_id_delivered(command: Any) -> None:
    command.message.message_id.entryId += 100_000


def next_id_receipted(command: Any) -> None:
    command.send_receipt.message_id.entryId += 1


def first_only(command: Any) -> None:
    del command.ack.message_id[1:]


class Swapping(Liar):
    """Each tenth message comes after the next one on its connection."""

    def __init__(self) -> None:
        self._seen = 0
        self._held: dict[int, Frame] = {}

    def from_broker(self, link: Link, frame: Frame) -> Iterator[Frame]:
        if frame.kind == "MESSAGE":
            self._seen += 1
            if self._seen % 10 == 0 and id(link) not in self._held:
                self._held[id(link)] = frame
                return
        yield frame
        if frame.kind == "MESSAGE" and id(link) in self._held:
            yield self._held.pop(id(link))


class Mixing(Liar):
    """Now and then a message has the payload of the one before it."""

    def __init__(self) -> None:
        self._seen = 0
        self._before = b""

    def from_broker(self, link: Link, frame: Frame) -> Iterator[Frame]:
        if frame.kind == "MESSAGE":
            entry = frame.entry
            self._seen += 1
            if self._before and self._seen % EVERY == 0:
                frame = frame.with_entry(entry._replace(payload=self._before))
            self._before = entry.payload
        yield frame


class Late(Liar):
    """A message that was given long ago is given once more."""

    def __init__(self, *, when_acked: bool) -> None:
        self._when_acked = when_acked
        self._seen = 0
        self._kept: dict[tuple[int, int], Frame] = {}
        self._after: dict[int, list[Frame]] = {}

    def from_client(self, link: Link, frame: Frame) -> Iterator[Frame]:
        if frame.kind == "ACK":
            places = [(one.ledgerId, one.entryId) for one in frame.command.ack.message_id]
            found = [self._kept.pop(place) for place in places if place in self._kept]
            if found:
                self._after[frame.command.ack.request_id] = found
        yield frame

    def from_broker(self, link: Link, frame: Frame) -> Iterator[Frame]:
        yield frame
        if frame.kind == "MESSAGE":
            self._seen += 1
            place = frame.command.message.message_id
            if self._seen % EVERY == 0:
                if self._when_acked:
                    self._kept[place.ledgerId, place.entryId] = frame
                else:
                    yield frame
        elif frame.kind == "ACK_RESPONSE":
            yield from self._after.pop(frame.command.ackResponse.request_id, [])


class Elsewhere(Liar):
    """Now and then a message goes to another consumer: too (`copies`), or instead. `other_topic`: of another
    topic.
    """

    def __init__(self, *, copies: bool, other_topic: bool = False) -> None:
        self._copies = copies
        self._other_topic = other_topic
        self._seen = 0
        self._names: dict[tuple[int, int], tuple[str, str]] = {}
        self._links: dict[int, Link] = {}

    def from_client(self, link: Link, frame: Frame) -> Iterator[Frame]:
        if frame.kind == "SUBSCRIBE":
            asked = frame.command.subscribe
            if asked.subType == pb.CommandSubscribe.Key_Shared or not self._needs_key():
                self._names[id(link), asked.consumer_id] = asked.topic, asked.subscription
                self._links[id(link)] = link
        yield frame

    def _needs_key(self) -> bool:
        return not self._other_topic

    def from_broker(self, link: Link, frame: Frame) -> Iterator[Frame]:
        own = (id(link), frame.command.message.consumer_id)
        if frame.kind == "MESSAGE" and own in self._names:
            self._seen += 1
            others = [key for key, name in self._names.items() if key != own and self._fits(own, name)]
            if self._seen % EVERY == 0 and others:
                copied = frame.copy()
                copied.command.message.consumer_id = others[0][1]
                self._links[others[0][0]].tell_client(copied)
                if not self._copies:
                    return
        yield frame

    def _fits(self, own: tuple[int, int], name: tuple[str, str]) -> bool:
        return (self._names[own] != name) if self._other_topic else (self._names[own] == name)


class NotStored(Liar):
    """A receipt for a message that the broker never saw."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], tuple[int, int]] = {}
        self._swallowed: dict[tuple[int, int], list[Any]] = {}

    def from_client(self, link: Link, frame: Frame) -> Iterator[Frame]:
        send = frame.command.send
        if frame.kind == "SEND" and send.sequence_id % 50 == 25:
            self._swallowed.setdefault((id(link), send.producer_id), []).append(send.sequence_id)
            return
        yield frame

    def from_broker(self, link: Link, frame: Frame) -> Iterator[Frame]:
        if frame.kind == "SEND_RECEIPT":
            receipt = frame.command.send_receipt
            waiting = self._swallowed.get((id(link), receipt.producer_id), [])
            while waiting and waiting[0] < receipt.sequence_id:
                false = frame.copy()
                false.command.send_receipt.sequence_id = waiting.pop(0)
                yield false
        yield frame


class StoredTwice(Liar):
    """The broker gets a message twice, and its producer hears of one."""

    def __init__(self) -> None:
        self._doubled: set[tuple[int, int, int]] = set()

    def from_client(self, link: Link, frame: Frame) -> Iterator[Frame]:
        yield frame
        send = frame.command.send
        if frame.kind == "SEND" and send.sequence_id % 50 == 25:
            self._doubled.add((id(link), send.producer_id, send.sequence_id))
            yield frame

    def from_broker(self, link: Link, frame: Frame) -> Iterator[Frame]:
        receipt = frame.command.send_receipt
        key = id(link), receipt.producer_id, receipt.sequence_id
        if frame.kind == "SEND_RECEIPT" and key in self._doubled:
            self._doubled.discard(key)
            return
        yield frame


class FalseAnswers(Liar):
    """Acknowledgements do not reach the broker, and are answered all the same; `every`-th only."""

    def __init__(self, every: int = 1) -> None:
        self._every = every
        self._seen = 0

    def from_client(self, link: Link, frame: Frame) -> Iterator[Frame]:
        if frame.kind == "ACK":
            self._seen += 1
            if self._seen % self._every == 0:
                ack = frame.command.ack
                answer = pb.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id)
                link.tell_client(
                    Frame(pb.BaseCommand(type=pb.BaseCommand.Type.ACK_RESPONSE, ackResponse=answer))
                )
                return
        yield frame


class NackIsAck(Liar):
    """What is asked for again is acknowledged instead."""

    def from_client(self, link: Link, frame: Frame) -> Iterator[Frame]:
        if frame.kind == "REDELIVER_UNACKNOWLEDGED_MESSAGES":
            asked = frame.command.redeliverUnacknowledgedMessages
            ack = pb.CommandAck(
                consumer_id=asked.consumer_id,
                ack_type=pb.CommandAck.Individual,
                message_id=list(asked.message_ids),
            )
            yield Frame(pb.BaseCommand(type=pb.BaseCommand.Type.ACK, ack=ack))
        else:
            yield frame


class Silent(Liar):
    """After so many messages none goes to a client any more."""

    def __init__(self) -> None:
        self._seen = 0

    def from_broker(self, link: Link, frame: Frame) -> Iterator[Frame]:
        self._seen += frame.kind == "MESSAGE"
        if frame.kind != "MESSAGE" or self._seen <= 100:
            yield frame


class AgainTwice(Liar):
    """What was asked for again comes twice."""

    def from_broker(self, link: Link, frame: Frame) -> Iterator[Frame]:
        yield frame
        if frame.kind == "MESSAGE" and frame.command.message.redelivery_count:
            yield frame


class AckAll(Liar):
    """Each acknowledgement takes the entry behind it, too."""

    def from_client(self, link: Link, frame: Frame) -> Iterator[Frame]:
        if frame.kind == "ACK":
            frame = frame.copy()
            more = frame.command.ack.message_id.add()
            more.CopyFrom(frame.command.ack.message_id[-2])
            more.entryId += 40
        yield frame


class HoldingUp(Liar):
    """A message in twenty comes eight seconds after its time."""

    def __init__(self) -> None:
        self._held: list[tuple[float, Frame]] = []
        self._seen = 0

    def from_broker(self, link: Link, frame: Frame) -> Iterator[Frame]:
        if frame.kind == "MESSAGE":
            self._seen += 1
            if self._seen % EVERY == 0:
                trio.lowlevel.spawn_system_task(self._later, link, frame)
                return
        yield frame

    async def _later(self, link: Link, frame: Frame) -> None:
        await trio.sleep(8)
        link.tell_client(frame)


class Lie(NamedTuple):
    name: str
    scenario: str
    make: Callable[[], Liar]
    word: str = "wrong"


ALL_TYPES, ORDERED, NACKS, DELAYS, KEYS = "restarts", "flood", "pulsar-25617", "pulsar-14721", "pulsar-12091"
LIES = (
    Lie("messages-are-dropped", ALL_TYPES, lambda: OnKind("MESSAGE", drop)),
    Lie("messages-end", ALL_TYPES, Silent),
    Lie("messages-come-twice", ALL_TYPES, lambda: OnKind("MESSAGE", double)),
    Lie("messages-come-twice-without-a-fault", DELAYS, lambda: Late(when_acked=False)),
    Lie("acknowledged-messages-come-again", ALL_TYPES, lambda: Late(when_acked=True)),
    Lie("asked-for-again-they-come-twice", NACKS, AgainTwice),
    Lie("a-copy-to-another-consumer", KEYS, lambda: Elsewhere(copies=True)),
    Lie("to-another-consumer-instead", KEYS, lambda: Elsewhere(copies=False)),
    Lie("to-another-topic", ALL_TYPES, lambda: Elsewhere(copies=True, other_topic=True)),
    Lie("neighbours-are-swapped", ORDERED, Swapping),
    Lie(
        "a-changed-byte",
        ALL_TYPES,
        lambda: OnKind(
            "MESSAGE",
            entry_changed(lambda one: one._replace(payload=one.payload[:-1] + bytes([one.payload[-1] ^ 4]))),
        ),
    ),
    Lie(
        "a-shorter-payload",
        ALL_TYPES,
        lambda: OnKind("MESSAGE", entry_changed(lambda one: one._replace(payload=one.payload[:-1]))),
    ),
    Lie("another-payload", ALL_TYPES, Mixing),
    Lie(
        "an-invented-payload",
        ALL_TYPES,
        lambda: OnKind(
            "MESSAGE", entry_changed(lambda one: one._replace(payload=b"nobody has ever sent this"))
        ),
    ),
    Lie("another-key", ALL_TYPES, lambda: OnKind("MESSAGE", metadata_changed(set_key))),
    Lie("no-key", ALL_TYPES, lambda: OnKind("MESSAGE", metadata_changed(clear_key))),
    Lie("another-property", ALL_TYPES, lambda: OnKind("MESSAGE", metadata_changed(set_property))),
    Lie("another-sequence-id", ALL_TYPES, lambda: OnKind("MESSAGE", metadata_changed(next_sequence_id))),
    Lie("no-properties", ALL_TYPES, lambda: OnKind("MESSAGE", metadata_changed(clear_properties))),
    Lie("one-property-more", ALL_TYPES, lambda: OnKind("MESSAGE", metadata_changed(add_property))),
    Lie("a-count-too-high", ALL_TYPES, lambda: OnKind("MESSAGE", command_changed(count_up))),
    Lie("a-count-of-nothing", NACKS, lambda: OnKind("MESSAGE", command_changed(count_nothing), 1)),
    Lie("another-id", ALL_TYPES, lambda: OnKind("MESSAGE", command_changed(next_id_delivered))),
    Lie(
        "another-id-in-the-receipt",
        ALL_TYPES,
        lambda: OnKind("SEND_RECEIPT", command_changed(next_id_receipted)),
    ),
    Lie("receipted-and-not-stored", ALL_TYPES, NotStored),
    Lie("stored-twice", ALL_TYPES, StoredTwice),
    Lie(
        "stored-with-a-changed-byte",
        ALL_TYPES,
        lambda: OnKind(
            "SEND",
            entry_changed(lambda one: one._replace(payload=bytes([one.payload[0] ^ 1]) + one.payload[1:])),
        ),
    ),
    Lie("stored-under-another-key", KEYS, lambda: OnKind("SEND", metadata_changed(set_key))),
    Lie("stored-without-a-delay", DELAYS, lambda: OnKind("SEND", metadata_changed(clear_delay))),
    Lie("stored-with-a-shorter-delay", DELAYS, lambda: OnKind("SEND", metadata_changed(delayed_by(-300)))),
    Lie(
        "stored-with-a-longer-delay",
        DELAYS,
        lambda: OnKind("SEND", metadata_changed(delayed_by(6000))),
        "late",
    ),
    Lie("eight-seconds-too-late", DELAYS, HoldingUp, "late"),
    Lie("receipts-are-dropped", ALL_TYPES, lambda: OnKind("SEND_RECEIPT", drop)),
    Lie("no-acknowledgement-arrives", ALL_TYPES, lambda: OnKind("ACK", drop, 1)),
    Lie("no-acknowledgement-arrives-and-all-are-answered", ALL_TYPES, FalseAnswers),
    Lie("a-few-acknowledgements-are-dropped-and-answered", ALL_TYPES, lambda: FalseAnswers(5)),
    Lie("acknowledgements-are-not-answered", ALL_TYPES, lambda: OnKind("ACK_RESPONSE", drop, 1)),
    Lie("one-acknowledgement-of-many", ORDERED, lambda: OnKind("ACK", command_changed(first_only), 1)),
    Lie("acknowledged-beyond", NACKS, AckAll),
    # Where consumers leave each second, what they had asked for again comes to others all the same.
    Lie(
        "asked-again-in-vain",
        "deduplication",
        lambda: OnKind("REDELIVER_UNACKNOWLEDGED_MESSAGES", drop, 1),
    ),
    Lie("asked-again-is-acknowledged", NACKS, NackIsAck),
)


async def judge(lie: Lie, broker: ChildBroker) -> bool:
    address = urlsplit(broker.service_url)
    found: Any = ""
    async with trio.open_nursery() as nursery:
        place = (address.hostname or "", address.port or 0)
        port = await nursery.start(serve, lie.make(), place)
        arguments = ("--against", f"pulsar://127.0.0.1:{port}", "--web", broker.web_url)
        found = await trio.to_thread.run_sync(run_scenario, ROOT, lie.scenario, 1, arguments)
        nursery.cancel_scope.cancel()
    verdict = "no result" if isinstance(found, str) else found["verdict"]
    mark = "found " if verdict == lie.word else "MISSED"
    print(f"{mark} {lie.name} ({lie.scenario}): {verdict}: {counts_of(found)}", flush=True)
    return verdict == lie.word


async def judge_all(lies: Sequence[Lie], broker: ChildBroker, at_once: int) -> list[bool]:
    found: list[bool] = []
    limit = trio.CapacityLimiter(at_once)

    async def one(lie: Lie) -> None:
        async with limit:
            found.append(await judge(lie, broker))

    async with trio.open_nursery() as nursery:
        for lie in lies:
            nursery.start_soon(one, lie)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.promises.lies")
    parser.add_argument("names", metavar="NAME", nargs="*", help="only this lie")
    parser.add_argument("--at-once", type=int, default=2)
    flags = parser.parse_args()
    if unknown := set(flags.names) - {lie.name for lie in LIES}:
        sys.exit(f"no such lie: {', '.join(sorted(unknown))}")
    lies = [lie for lie in LIES if not flags.names or lie.name in flags.names]
    settings = {"isDelayedDeliveryDeliverAtTimeStrict": "true"}
    with tempfile.TemporaryDirectory() as directory, ChildBroker(directory, settings=settings) as broker:
        found = trio.run(judge_all, lies, broker, flags.at_once)
    print(f"{sum(found)} of {len(found)} found with their word")
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
