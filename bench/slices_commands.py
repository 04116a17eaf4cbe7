"""The binary commands that walk a collection, for `bench/slices.py --part commands`."""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable, Iterator

from geminga.wire import client_commands as commands
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.decoder import Decoder, Delivery
from geminga.wire.encoder import frame

TYPE = pb.BaseCommand.Type
SHARED = pb.CommandSubscribe.Shared
NAMESPACE = "public/default"
WIDE = f"persistent://{NAMESPACE}/wide"
BACKLOG = f"persistent://{NAMESPACE}/backlog"
AT_ONCE = 500
"""Requests on their way."""


class Client:
    """One connection. Answers are counted, not matched; messages are kept."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("localhost", port))
        self._socket.settimeout(300)
        self._decoder = Decoder()
        self.positions: list[tuple[int, int]] = []
        self.ask([commands.connect("slices")])

    def ask(self, frames: list[bytes]) -> None:
        """Returns when as many commands have come, messages and changes of lists aside."""
        for start in range(0, len(frames), AT_ONCE):
            some = frames[start : start + AT_ONCE]
            self._socket.sendall(b"".join(some))
            left = len(some)
            while left > 0:
                left -= self._receive()

    def do(self, data: bytes) -> None:
        """A command without an answer: returns when the broker has read on."""
        self.ask([data + frame(pb.BaseCommand(type=TYPE.PING, ping=pb.CommandPing()))])

    def take(self, count: int) -> None:
        while len(self.positions) < count:
            self._receive()

    def _receive(self) -> int:
        answers = 0
        if not (data := self._socket.recv(1 << 20)):
            raise ConnectionError("the broker has closed the connection")
        for command in self._decoder.feed(data):
            if isinstance(command, Delivery):
                message_id = command.message.message_id
                self.positions.append((message_id.ledgerId, message_id.entryId))
            elif isinstance(command, pb.CommandError):
                raise AssertionError(command.message)
            elif not isinstance(command, pb.CommandWatchTopicUpdate | pb.CommandActiveConsumerChange):
                answers += not isinstance(command, pb.CommandCloseConsumer | pb.CommandCloseProducer)
        return answers

    def close(self) -> None:
        self._socket.close()
        time.sleep(3)  # its producers and consumers leave meanwhile


def listed(pattern: str | None) -> bytes:
    command = pb.CommandGetTopicsOfNamespace(request_id=1, namespace=NAMESPACE, topics_pattern=pattern)
    return frame(pb.BaseCommand(type=TYPE.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=command))


def watched(number: int) -> bytes:
    command = pb.CommandWatchTopicList(
        request_id=number,
        watcher_id=number,
        namespace=NAMESPACE,
        topics_pattern=f"persistent://{NAMESPACE}/t{number}.?",
    )
    return frame(pb.BaseCommand(type=TYPE.WATCH_TOPIC_LIST, watchTopicList=command))


def each(
    port: int, options: argparse.Namespace, change: Callable[[], object]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """A name and a call for each that is to be measured; `change` creates topics."""
    one = Client(port)
    yield "topics of namespace", lambda: one.ask([listed(None)])
    yield "the same, by pattern", lambda: one.ask([listed(f"persistent://{NAMESPACE}/t.*9")])
    yield "lookups of partitions", lambda: one.ask([commands.partitioned_metadata(1, BACKLOG)] * AT_ONCE)
    watching = Client(port)
    yield "watches", lambda: watching.ask([watched(number) for number in range(options.patterns)])
    yield "topics for watches", change
    yield "close with watches", watching.close

    many, count = Client(port), options.clients
    subscriptions = options.subscriptions
    many.ask(
        [commands.producer(n, n, f"persistent://{NAMESPACE}/t{n % options.topics}") for n in range(count)]
    )
    subscribed = [
        commands.subscribe(n, n, WIDE, f"s{n % subscriptions}", sub_type=SHARED) for n in range(count // 2)
    ]
    subscribed += [commands.subscribe(n, n, WIDE, "crowd", sub_type=SHARED) for n in range(count // 2, count)]
    yield "subscribe", lambda: many.ask(subscribed)
    yield "seek of a crowd", lambda: many.ask([commands.seek(1, count - 1, position=(-1, -1))])
    yield "crowd comes back", lambda: many.ask(subscribed[count // 2 :])
    yield "close with clients", many.close

    crowd = Client(port)
    crowd.ask(subscribed[count // 2 :])
    yield "unsubscribe a crowd", lambda: crowd.ask([commands.unsubscribe(1, count - 1, force=True)])
    crowd.close()

    reader = Client(port)
    reader.ask([commands.subscribe(1, 1, BACKLOG, "s", sub_type=SHARED, earliest=True)])
    yield (
        "deliver",
        lambda: (
            reader.do(commands.flow(1, options.unacked)),
            reader.take(options.unacked),
        ),
    )
    found = tuple(reader.positions)
    every = range(0, len(found), 1000)

    def again(*redeliver: bytes) -> None:
        """Returns when all have come once more."""
        before = len(reader.positions)
        for data in redeliver:
            reader.do(data)
        reader.do(commands.flow(1, options.unacked))
        reader.take(before + len(found))

    yield "redeliver by 1000", lambda: again(*(commands.redeliver(1, found[n : n + 1000]) for n in every))
    yield "redeliver all named", lambda: again(commands.redeliver(1, found))
    yield "redeliver all", lambda: again(commands.redeliver(1))
    other = Client(port)
    other.ask([commands.subscribe(1, 1, BACKLOG, "s", sub_type=SHARED)])
    yield "close with unacked", reader.close
    other.do(commands.flow(1, options.unacked))
    other.take(len(found))
    half = len(found) // 2
    thousands = range(0, half, 1000)
    yield "ack by 1000", lambda: [other.do(commands.ack(1, found[n : n + 1000])) for n in thousands]
    yield "ack of all the rest", lambda: other.do(commands.ack(1, found[half:]))
    other.close()
