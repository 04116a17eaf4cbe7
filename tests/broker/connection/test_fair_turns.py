"""Connections share the loop, and the memory of what publishers send, by turns: real sockets, sessions and
topics, and a test's clock.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from geminga.broker.connection.connection import Connections
from geminga.broker.connection.handlers import HANDLERS
from geminga.broker.connection.reader import CHUNK_COMMANDS_MIN, next_receive_bytes
from geminga.broker.connection.session import Session
from geminga.broker.connection.turns import (
    CALM_AFTER_S,
    SLICE_COMMANDS,
    TURN_COMMANDS_MAX,
    TURN_S,
    Turn,
    Turns,
)
from geminga.broker.flow.slices import NAMES_MAX
from geminga.broker.flow.switching import SHORT_S, USUAL_S, SwitchInterval
from geminga.broker.topic_lists import pattern
from geminga.broker.topic_lists.topic_names import TopicNames
from geminga.limits import KIB, MIB, OUTBOX_BYTES_HIGH
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.names import NamespaceName
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Ack
from geminga.wire.decoder import Decoder
from geminga.wire.parse import ACK_PART_IDS
from geminga.wire.topic_list import topics_hash
from tests.broker.topics_rig import TOPIC, TopicsRig, open_topics
from tests.e2e.binary_session import frame

LARGE_BYTES = 4 * MIB
"""Of the 8 MiB that the rig has only one of these is received at a time."""


class Client:
    """A raw client of a connection that is served."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._decoder = Decoder()
        self._answers: list[Any] = []

    async def answer(self) -> Any:
        """The next command of the broker; None at the end."""
        while not self._answers:
            try:
                data = await self.stream.receive_some(64 * KIB)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            commands = self._decoder.feed(bytes(data))
            self._answers += [each for each in commands if not isinstance(each, pb.CommandPing)]
        return self._answers.pop(0)


class Served:
    """Connections on the rig, each with a client."""

    def __init__(self, rig: TopicsRig, nursery: trio.Nursery) -> None:
        self.connections = Connections(rig.topics, rig.rooms, service_url=lambda _: "", generation=1)
        self.memory = rig.rooms.publish_memory
        self.send_memory = rig.rooms.send_memory
        self._nursery = nursery
        self.sockets = contextlib.ExitStack()

    async def client(self) -> Client:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname())
            far, _ = listener.accept()
        self.sockets.enter_context(near)
        near.setblocking(False)
        far.setblocking(False)
        self._nursery.start_soon(self.connections.serve, far, lambda: None)
        made = Client(trio.SocketStream(trio.socket.from_stdlib_socket(near)))
        await made.stream.send_all(client_commands.connect("test"))
        assert isinstance(await made.answer(), pb.CommandConnected)
        return made

    async def producer(self) -> Client:
        made = await self.client()
        await made.stream.send_all(client_commands.producer(1, 1, str(TOPIC)))
        assert isinstance(await made.answer(), pb.CommandProducerSuccess)
        return made


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    # The sockets are real: without a threshold the clock jumps while bytes are on their way through the
    # system, on a busy machine so far that connections are closed for want of an answer.
    clock = trio.lowlevel.current_clock()
    if isinstance(clock, MockClock):
        clock.autojump_threshold = 0.01
    async with open_topics() as rig, trio.open_nursery() as nursery:
        served = Served(rig, nursery)
        with served.sockets:
            yield served
        nursery.cancel_scope.cancel()


def send(sequence_id: int, body_bytes: int) -> bytes:
    metadata = client_commands.metadata("p", sequence_id, 1)
    return client_commands.send(1, sequence_id, client_commands.entry(metadata, bytes(body_bytes)))


@pytest.fixture
def served_ids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The request ids of the lookups that were served, in order."""
    found: list[int] = []
    lookup = HANDLERS[pb.CommandLookupTopic]

    def counted(session: Any, command: Any) -> Any:
        found.append(command.request_id)
        return lookup(session, command)

    monkeypatch.setitem(HANDLERS, pb.CommandLookupTopic, counted)
    return found


async def served_by_turn(served_ids: Sequence[object], total: int) -> list[int]:
    """How many lookups were served between two turns of a task that always has something to do, if any."""
    found, before = [], 0
    while before < total:
        await trio.lowlevel.checkpoint()
        if len(served_ids) > before:
            found.append(len(served_ids) - before)
            before = len(served_ids)
    return found


async def test_a_flood_of_commands_is_served_in_order_and_leaves_the_others_their_turns(
    served_ids: list[int], autojump_clock: MockClock
) -> None:
    async with serving() as served:
        flooder = await served.client()
        lookups = b"".join(client_commands.lookup(number, str(TOPIC)) for number in range(3000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flooder.stream.send_all, lookups)
            by_turn = await served_by_turn(served_ids, 3000)
        # The order within a round of all tasks is random: two turns may follow each other.
        assert max(by_turn) <= 2 * (TURN_COMMANDS_MAX + SLICE_COMMANDS)
        assert served_ids == list(range(3000))
        assert [(await flooder.answer()).request_id for _ in range(3000)] == list(range(3000))


async def test_the_more_connections_flood_the_shorter_are_their_turns(
    served_ids: list[int], autojump_clock: MockClock
) -> None:
    async with serving() as served:
        flooders = [await served.client() for _ in range(16)]
        lookups = b"".join(client_commands.lookup(number, str(TOPIC)) for number in range(1000))
        async with trio.open_nursery() as nursery:
            for flooder in flooders:
                nursery.start_soon(flooder.stream.send_all, lookups)
            by_turn = await served_by_turn(served_ids, 16 * 1000)
        # Not in the first turns, which begin before it is known that there are others.
        assert statistics.median(by_turn) <= 16 * 2 * SLICE_COMMANDS < 16 * TURN_COMMANDS_MAX


async def test_what_came_before_a_broken_frame_is_served_in_turns_too(
    served_ids: list[int], autojump_clock: MockClock
) -> None:
    async with serving() as served:
        flooder = await served.client()
        lookups = b"".join(client_commands.lookup(number, str(TOPIC)) for number in range(100))
        await flooder.stream.send_all(lookups + b"\xff" * 100)
        assert [(await flooder.answer()).request_id for _ in range(100)] == list(range(100))
        assert await flooder.answer() is None
        assert served_ids == list(range(100))


async def test_an_ack_of_many_entries_is_served_in_turns_and_before_what_follows_it(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """One frame named 400,000 entries, and held the loop for 0.7 s."""
    count = 20_000
    acked: list[tuple[int, int]] = []
    acknowledge = Cursor.acknowledge

    def counted(cursor: Cursor, positions: Sequence[tuple[int, int]]) -> bool:
        acked.extend(positions)
        return acknowledge(cursor, positions)

    monkeypatch.setattr(Cursor, "acknowledge", counted)
    async with serving() as served:
        client = await served.client()
        await client.stream.send_all(client_commands.subscribe(1, 1, str(TOPIC), "s"))
        assert isinstance(await client.answer(), pb.CommandSuccess)
        ids = [(7, number) for number in range(count)]
        data = client_commands.ack(1, ids, request_id=5) + client_commands.close_consumer(1, 6)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stream.send_all, data)
            by_turn = await served_by_turn(acked, count)
        assert acked == ids
        assert max(by_turn) <= 2 * TURN_COMMANDS_MAX // SLICE_COMMANDS * ACK_PART_IDS
        receipt = await client.answer()
        assert isinstance(receipt, pb.CommandAckResponse)
        assert (receipt.request_id, receipt.message) == (5, "")
        assert isinstance(await client.answer(), pb.CommandSuccess)


async def test_a_flood_leaves_the_others_their_turns_while_peers_that_do_not_read_hold_all_memory(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    acks: list[int] = []
    monkeypatch.setattr(Session, "_ack", lambda _, ack: acks.append(len(ack.positions)))
    async with serving() as served:
        flooder = await served.client()
        memory = served.send_memory
        memory.take(memory.full_bytes)
        # Nothing is answered, so that the flooder is not behind with its answers.
        ack = client_commands.ack(1, [(1, number) for number in range(40)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flooder.stream.send_all, ack * 3000)
            by_turn = await served_by_turn(acks, 3000)
        assert max(by_turn) <= 2 * (TURN_COMMANDS_MAX + SLICE_COMMANDS)
        assert memory.waits == 0, "nothing is wanted that others should be disconnected for"
        memory.give(memory.full_bytes)


class StoppedClock:
    now_s = 50.0

    def monotonic_s(self) -> float:
        return self.now_s


async def test_a_turn_of_expensive_commands_is_over_by_time() -> None:
    clock, turns = StoppedClock(), Turns()
    turn = Turn(turns, clock)  # type: ignore[arg-type]
    assert not turn.is_over(1)
    clock.now_s += TURN_S
    assert turn.is_over(1)
    await turn.end()
    assert not turn.is_over(TURN_COMMANDS_MAX - 1)
    assert turn.is_over(1)


@pytest.mark.parametrize(
    ("receive_bytes", "chunk_bytes", "commands", "took_s", "expected"),
    [
        (16 * KIB, 16 * KIB, 10, 0.001, 64 * KIB),
        (64 * KIB, 64 * KIB, 64, 0.001, 256 * KIB),
        (256 * KIB, 256 * KIB, 3, 0.001, 256 * KIB),
        (256 * KIB, 30, 1, 0.001, 256 * KIB),
        (16 * KIB, 16 * KIB, 65, 0.001, 16 * KIB),
        (256 * KIB, 200 * KIB, 4000, 0.001, 50 * KIB),
        (16 * KIB, 16 * KIB, 1000, 0.001, 4 * KIB),
        (4 * KIB, 4 * KIB, 300, 0.001, 4 * KIB),
        (256 * KIB, 256 * KIB, 5, 0.1, 64 * KIB),
        (64 * KIB, 64 * KIB, 2, 0.005, 64 * KIB),
        (4 * KIB, 4 * KIB, 1, 0.1, 4 * KIB),
    ],
)
def test_chunks_are_large_where_commands_are_and_take_little_time(
    receive_bytes: int, chunk_bytes: int, commands: int, took_s: float, expected: int
) -> None:
    assert next_receive_bytes(receive_bytes, chunk_bytes, commands, took_s) == expected


async def test_commands_that_take_long_are_received_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    acks: list[int] = []
    async with serving() as served:
        flooder = await served.client()

        def slow(_: Session, ack: Ack) -> None:
            acks.append(len(ack.positions))
            autojump_clock.jump(0.005)

        monkeypatch.setattr(Session, "_ack", slow)
        ack = client_commands.ack(1, [(1, number) for number in range(50)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flooder.stream.send_all, ack * 500)
            by_turn = await served_by_turn(acks, 500)
        assert SLICE_COMMANDS < 16 * KIB // len(ack) < CHUNK_COMMANDS_MIN
        assert max(by_turn[len(by_turn) // 2 :]) <= 2 * (4 * KIB // len(ack) + 1) < SLICE_COMMANDS


async def test_a_silent_half_frame_takes_no_turn_from_others(autojump_clock: MockClock) -> None:
    async with serving() as served:
        halves = [await served.producer() for _ in range(20)]
        for half in halves:
            await half.stream.send_all(send(0, LARGE_BYTES)[:10])
        other = await served.producer()
        since_s = trio.current_time()
        for body_bytes in (10, LARGE_BYTES):
            await other.stream.send_all(send(0, body_bytes))
            assert isinstance(await other.answer(), pb.CommandSendReceipt)
        assert trio.current_time() == since_s, "no turn had to be lost"


async def test_a_turn_without_progress_is_lost_after_a_second_and_another_follows(
    autojump_clock: MockClock,
) -> None:
    async with serving() as served:
        stopping, other = await served.producer(), await served.producer()
        large = send(0, LARGE_BYTES)
        await stopping.stream.send_all(large[: MIB // 2])
        await trio.sleep(0.5)
        assert served.memory.receiving_bytes == len(large)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.stream.send_all, large)
            assert isinstance(await other.answer(), pb.CommandSendReceipt)
        assert trio.current_time() == pytest.approx(1.0)
        assert served.memory.receiving_bytes == MIB // 2, "what has come is kept"
        await stopping.stream.send_all(large[MIB // 2 :])
        assert isinstance(await stopping.answer(), pb.CommandSendReceipt)
        assert served.memory.used_bytes == 0


@pytest.mark.parametrize(("piece_bytes", "keeps_its_turn"), [(10 * KIB, True), (5 * KIB, False)])
async def test_a_sender_that_makes_progress_keeps_its_turn_and_one_that_drips_does_not(
    piece_bytes: int, keeps_its_turn: bool, autojump_clock: MockClock
) -> None:
    async def drip(client: Client) -> None:
        for number in range(20):
            at = MIB + number * piece_bytes
            await client.stream.send_all(large[at : at + piece_bytes])
            await trio.sleep(0.4)

    async with serving() as served:
        slow, other = await served.producer(), await served.producer()
        large = send(0, LARGE_BYTES)
        await slow.stream.send_all(large[:MIB])
        await trio.sleep(0.1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip, slow)
            nursery.start_soon(other.stream.send_all, large)
            assert isinstance(await other.answer(), pb.CommandSendReceipt)
            assert (trio.current_time() > 8) is keeps_its_turn
        await slow.stream.send_all(large[MIB + 20 * piece_bytes :])
        assert isinstance(await slow.answer(), pb.CommandSendReceipt)


async def test_parts_of_frames_that_stopped_are_bounded_and_their_connections_are_closed(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as served:
        halves = [await served.producer() for _ in range(8)]
        for half in halves:
            await half.stream.send_all(send(0, LARGE_BYTES)[: 2 * MIB])
            await trio.sleep(1.5)
            assert served.memory.used_bytes <= 8 * MIB
        other = await served.producer()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.stream.send_all, send(0, LARGE_BYTES))
            assert isinstance(await other.answer(), pb.CommandSendReceipt)
        closed = [record for record in caplog.records if "stopped in the middle" in record.message]
        assert len(closed) == served.connections.created - served.connections.active
        assert [await half.answer() for half in halves[: len(closed)]] == [None] * len(closed)
        assert 0 < len(closed) < 8, "no more than have to go, the first first"
        assert served.memory.used_bytes <= 4 * MIB


async def test_lists_of_many_topics_are_gathered_in_slices_one_list_at_a_time(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    names = [f"persistent://public/default/t-{number:04}" for number in range(3000)]
    drawn: list[str] = []

    def each_name_in(_: TopicNames, namespace: NamespaceName) -> Iterator[str]:
        for name in reversed(names):
            drawn.append(name)
            yield name

    monkeypatch.setattr(TopicNames, "each_name_in", each_name_in)
    async with serving() as served:
        clients = [await served.client() for _ in range(5)]
        for client in clients:
            await client.stream.send_all(client_commands.topics_of_namespace(1, "public/default"))
        by_turn = await served_by_turn(drawn, 5 * len(names))
        # Not the first, which began while the requests were sent; the order within a round of all tasks is
        # random, so that two slices may follow each other.
        assert max(by_turn[1:]) <= 2 * NAMES_MAX
        for client in clients:
            answer = await client.answer()
            assert list(answer.topics) == names
            assert answer.topics_hash == topics_hash(names)


async def test_the_other_tasks_run_between_two_patterns(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    refused: list[str] = []

    def compiled(text: str) -> None:
        refused.append(text)

    monkeypatch.setattr(pattern, "compiled", compiled)
    async with serving() as served:
        client = await served.client()
        name, count = "public/default", 300
        await client.stream.send_all(
            b"".join(
                frame(
                    pb.CommandGetTopicsOfNamespace(
                        namespace=name, request_id=n, topics_pattern=f"\\pL{{50}}{n}"
                    )
                )
                for n in range(count)
            )
            + b"".join(
                frame(
                    pb.CommandWatchTopicList(
                        namespace=name,
                        request_id=n,
                        watcher_id=n,
                        topics_pattern=f"\\pL{{49}}{n}",
                        topics_hash="",
                    )
                )
                for n in range(count, 2 * count)
            )
        )
        by_turn = await served_by_turn(refused, 2 * count)
        # The order within a round of all tasks is random.
        assert max(by_turn) <= 2
        assert len(set(refused)) == 2 * count
        answers = [await client.answer() for _ in range(2 * count)]
        lists = [each for each in answers if isinstance(each, pb.CommandGetTopicsOfNamespaceResponse)]
        assert [each.filtered for each in lists] == [False] * count
        errors = [each for each in answers if isinstance(each, pb.CommandError)]
        assert [each.error for each in errors] == [pb.NotAllowedError] * count


async def test_large_schemas_are_answered_as_their_peer_takes_them(autojump_clock: MockClock) -> None:
    async with serving() as served:
        owner, greedy = await served.client(), await served.client()
        producer = pb.CommandProducer(topic=str(TOPIC), producer_id=1, request_id=1)
        producer.schema.name, producer.schema.type, producer.schema.schema_data = "s", pb.Schema.String, b""
        producer.schema.properties.add(key="k", value="v" * 500_000)
        await owner.stream.send_all(frame(producer))
        assert isinstance(await owner.answer(), pb.CommandProducerSuccess)
        asked = b"".join(frame(pb.CommandGetSchema(topic=str(TOPIC), request_id=n)) for n in range(200))
        await greedy.stream.send_all(asked)
        await wait_all_tasks_blocked()
        assert MIB < served.send_memory.pending_bytes <= OUTBOX_BYTES_HIGH + MIB
        answered = {(await greedy.answer()).request_id for _ in range(200)}
        assert answered == set(range(200))


async def test_threads_are_heard_beside_a_flood_and_left_alone_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intervals: list[float] = []
    monkeypatch.setattr("sys.setswitchinterval", intervals.append)
    turns = Turns(SwitchInterval())

    turns.begun_after_sleep(1.0)
    assert intervals == [], "nobody floods"
    turns.waiting += 1  # another connection is in the middle of its flood
    turns.begun_after_sleep(3.0)
    turns.begun_after_sleep(3.1)
    turns.waiting -= 1
    assert intervals == [SHORT_S]
    await turns.pass_on(3.1 + CALM_AFTER_S / 2)
    assert intervals == [SHORT_S]
    await turns.pass_on(3.1 + CALM_AFTER_S)
    await turns.pass_on(9.0)
    assert intervals == [SHORT_S, USUAL_S]
