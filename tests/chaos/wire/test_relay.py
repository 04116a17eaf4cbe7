"""A relay between two sockets, on a virtual clock: which bytes leave where, when, and in which pieces."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from geminga.chaos.rules.can_hit import REQUESTS, directions_of
from geminga.chaos.rules.faults import Faults
from geminga.chaos.rules.killing import Points
from geminga.chaos.rules.rule import parse_rule
from geminga.chaos.wire.answers import error_answer
from geminga.chaos.wire.relay import WRITABLE_S, Relay
from geminga.wire import client_commands, encoder
from geminga.wire import pulsar_pb2 as pb

PING, PONG = bytes(encoder.ping()), bytes(encoder.pong())
LOOKUP = client_commands.lookup(7, "persistent://public/default/t")


class TrioClock:
    def monotonic_s(self) -> float:
        return trio.current_time()

    def now_ms(self) -> int:
        return int(trio.current_time() * 1000)

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise AssertionError


class Recorded(socket.socket):
    """Notes when which bytes were sent."""

    sends: list[tuple[float, bytes]]

    def send(self, data: Any, flags: int = 0) -> int:
        sent = super().send(data, flags)
        self.sends.append((trio.current_time(), bytes(data[:sent])))
        return sent


def pair() -> tuple[socket.socket, Recorded]:
    far, near = socket.socketpair()
    for one in (far, near):
        one.setblocking(False)
    recorded = Recorded(fileno=near.detach())
    recorded.setblocking(False)
    recorded.sends = []
    return far, recorded


class Relayed:
    """The ends of a connection that a relay is in, and its rules."""

    def __init__(self) -> None:
        self.faults = Faults(TrioClock())
        self.client, self.to_client = pair()
        self.broker, self.to_broker = pair()
        points = Points(self.faults.doors["process"])
        self.relay = Relay(self.faults.doors["wire"], points, self.to_client, self.to_broker, "10.0.0.1:5")

    def set(self, kind: str, **fields: Any) -> str:
        return self.faults.set(parse_rule({"place": "wire", "kind": kind, **fields})).rule.id

    def hits(self, rule_id: str) -> int:
        return self.faults.get(rule_id).hits

    async def came(self, sock: socket.socket) -> bytes:
        """What has come to an end of the connection, without waiting for time to pass."""
        await wait_all_tasks_blocked()
        try:
            return sock.recv(1 << 20)
        except BlockingIOError:
            return b""


@contextlib.asynccontextmanager
async def relayed(*, is_full: bool = False) -> AsyncIterator[Relayed]:
    """`is_full`: the client's socket takes no more when the relay begins."""
    made = Relayed()
    while is_full:
        try:
            made.to_client.send(b"\xff" * 65536)
        except BlockingIOError:
            break
    with made.client, made.broker:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.relay.run)
            # Room that comes sooner is no sign of a frame that the broker had begun.
            await trio.sleep(2 * WRITABLE_S if is_full else 0)
            await wait_all_tasks_blocked()
            yield made
            nursery.cancel_scope.cancel()


async def test_each_delay_is_drawn_within_the_jitter_and_the_order_stays(autojump_clock: MockClock) -> None:
    async with relayed() as one:
        one.set("latency", latencyMs=100, jitterMs=150, seed=5)
        began_s = trio.current_time()
        frames = [client_commands.lookup(number, "persistent://public/default/t") for number in range(20)]
        one.client.send(b"".join(frames))
        await trio.sleep(1)
        generator = random.Random(5)
        drawn = [max(0.0, generator.uniform(-50, 250)) / 1000 for _ in frames]
        assert min(drawn) == 0.0
        due_s = list(itertools.accumulate(drawn, max))
        assert [data for _, data in one.to_broker.sends] == frames
        assert [at_s - began_s for at_s, _ in one.to_broker.sends] == pytest.approx(due_s)


async def test_frames_under_a_latency_go_on_in_order_when_its_rule_ends(autojump_clock: MockClock) -> None:
    async with relayed() as one:
        hour = one.set("latency", latencyMs=3_600_000, command="PING")
        short = one.set("latency", latencyMs=2000, command="PING")
        one.client.send(PING + LOOKUP)
        began_s = trio.current_time()
        await trio.sleep(1)
        assert one.to_broker.sends == [], "none overtakes another"
        one.faults.clear(hour)
        await trio.sleep(10)
        assert [data for _, data in one.to_broker.sends] == [PING, LOOKUP]
        assert one.to_broker.sends[0][0] - began_s == pytest.approx(2.0), "the other latency goes on"
        one.client.send(PING)
        await wait_all_tasks_blocked()
        one.faults.clear(short)
        cleared_s = trio.current_time()
        await trio.sleep(10)
        assert one.to_broker.sends[2][0] - cleared_s == pytest.approx(0.1)


async def test_the_slowest_of_two_throttles_counts(autojump_clock: MockClock) -> None:
    async with relayed() as one:
        began_s = trio.current_time()
        one.set("throttle", bytesPerS=50_000)
        one.set("throttle", bytesPerS=500)
        one.client.send(LOOKUP)
        await trio.sleep(10)
        sizes = [len(data) for _, data in one.to_broker.sends]
        assert max(sizes) == 10, "of a fiftieth of a second"
        assert one.to_broker.sends[-1][0] - began_s == pytest.approx(sum(sizes[:-1]) / 500)


async def test_a_black_hole_takes_the_frames_of_one_direction_until_it_is_cleared() -> None:
    async with relayed() as one:
        rule = one.set("black-hole", direction="in", command="PING")
        one.client.send(PING + LOOKUP + PING[:6])
        one.broker.send(PING)
        assert (await one.came(one.broker), await one.came(one.client)) == (LOOKUP, PING)
        one.client.send(PING[6:9])
        assert await one.came(one.broker) == b""
        one.faults.clear(rule)
        # The second PING has too few bytes to be known as one: it begins after the rule.
        one.client.send(PING[9:] + LOOKUP)
        assert await one.came(one.broker) == PING + LOOKUP


async def test_a_frame_that_a_black_hole_has_begun_to_take_is_taken_whole() -> None:
    async with relayed() as one:
        rule = one.set("black-hole", direction="out")
        one.broker.send(LOOKUP[:15])
        assert await one.came(one.client) == b""
        one.faults.clear(rule)
        one.broker.send(LOOKUP[15:] + PING)
        assert await one.came(one.client) == PING


async def test_bytes_in_the_middle_of_an_unknown_frame_fall_into_no_black_hole() -> None:
    async with relayed() as one:
        one.set("black-hole")
        one.client.send(b"\xff" * 20)
        assert await one.came(one.broker) == b"\xff" * 20


async def test_a_frame_is_passed_on_in_slices_and_the_next_one_whole(autojump_clock: MockClock) -> None:
    async with relayed() as one:
        one.set("slice", sliceBytes=10, latencyMs=50, command="LOOKUP")
        began_s = trio.current_time()
        one.client.send(LOOKUP + PING)
        await trio.sleep(10)
        slices = [LOOKUP[at : at + 10] for at in range(0, len(LOOKUP), 10)]
        assert [data for _, data in one.to_broker.sends] == [*slices, PING]
        waits = [at_s - began_s for at_s, _ in one.to_broker.sends[:-1]]
        assert waits == pytest.approx([0.05 * number for number in range(len(slices))])


async def test_a_frame_in_slices_goes_on_whole_when_its_rule_is_cleared(autojump_clock: MockClock) -> None:
    async with relayed() as one:
        rule = one.set("slice", sliceBytes=1, latencyMs=3_600_000)
        began_s = trio.current_time()
        one.client.send(LOOKUP)
        await wait_all_tasks_blocked()
        one.faults.clear(rule)
        await trio.sleep(1)
        assert [data for _, data in one.to_broker.sends] == [LOOKUP[:1], LOOKUP[1:]]
        assert one.to_broker.sends[1][0] - began_s < 0.5


async def test_a_sliced_frame_lets_the_window_fill(autojump_clock: MockClock) -> None:
    async with relayed() as one:
        one.set("slice", sliceBytes=1, latencyMs=3_600_000)
        sent_bytes = 0
        frame = client_commands.send(1, 1, b"x" * 100_000)
        for _ in range(40):
            try:
                sent_bytes += one.client.send(frame)
            except BlockingIOError:
                break
            await wait_all_tasks_blocked()
        # What the relay holds, and what the socket's own buffers do.
        assert 1 << 20 <= sent_bytes < 20 * len(frame)


@pytest.mark.parametrize("stuck", ["in", "out"])
async def test_a_throttle_of_one_direction_does_not_hold_up_the_other(
    autojump_clock: MockClock, stuck: str
) -> None:
    async with relayed() as one:
        one.set("throttle", direction=stuck, bytesPerS=1)
        began_s = trio.current_time()
        one.client.send(LOOKUP)
        one.broker.send(PING + PONG)
        free, held = (one.to_client, one.to_broker) if stuck == "in" else (one.to_broker, one.to_client)
        await trio.sleep(3.5)
        assert b"".join(data for _, data in free.sends) == (PING + PONG if stuck == "in" else LOOKUP)
        assert {at_s for at_s, _ in free.sends} == {began_s}
        assert [len(data) for _, data in held.sends] == [1, 1, 1, 1]


async def test_a_refused_request_is_answered_behind_the_frame_that_is_being_sent() -> None:
    async with relayed() as one:
        rule = one.set("error", command="LOOKUP", error="TooManyRequests", message="later")
        one.broker.send(PING + LOOKUP[:20])
        one.client.send(LOOKUP + PING)
        assert await one.came(one.client) == PING + LOOKUP[:20]
        assert await one.came(one.broker) == PING
        one.broker.send(LOOKUP[20:] + PONG)
        answer = encoder.lookup_failed(7, pb.ServerError.Value("TooManyRequests"), "later")
        assert await one.came(one.client) == LOOKUP[20:] + answer + PONG
        assert one.hits(rule) == 1


async def test_answers_that_wait_for_the_end_of_a_frame_do_not_keep_it_from_ending() -> None:
    async with relayed() as one:
        rule = one.set("error", command="LOOKUP", error="ServiceNotReady", message="x" * 500)
        one.broker.send(LOOKUP[:20])
        asked, came = LOOKUP * 5000, b""
        # As many as the relay takes while the frame has no end, and the rest after it.
        with contextlib.suppress(BlockingIOError):
            while asked:
                asked = asked[one.client.send(asked) :]
                came += await one.came(one.client)
        assert came == LOOKUP[:20]
        one.broker.send(LOOKUP[20:30])
        came += await one.came(one.client)
        one.broker.send(LOOKUP[30:])
        while more := await one.came(one.client):
            came += more
            with contextlib.suppress(BlockingIOError):
                asked = asked[one.client.send(asked) :] if asked else asked
        assert asked == b""
        answer = encoder.lookup_failed(7, pb.ServerError.Value("ServiceNotReady"), "x" * 500)
        assert came == LOOKUP + answer * 5000
        assert one.hits(rule) == 5000


async def test_an_answer_waits_for_the_rest_of_a_frame_that_the_broker_had_begun(
    autojump_clock: MockClock,
) -> None:
    async with relayed(is_full=True) as one:
        one.set("error", command="LOOKUP", error="ServiceNotReady")
        one.client.send(LOOKUP)
        while await one.came(one.client):
            pass
        one.broker.send(b"\xff" * 20)
        assert await one.came(one.client) == b"\xff" * 20
        one.broker.send(PING)
        came = await one.came(one.client)
        assert came.endswith(PING)
        assert b"ServiceNotReady" in came


async def test_a_request_that_comes_byte_by_byte_is_answered_once_and_with_the_text_of_the_rule() -> None:
    async with relayed() as one:
        one.set("error", command="LOOKUP", error="ServiceNotReady")
        for byte in LOOKUP:
            one.client.send(bytes([byte]))
            assert await one.came(one.broker) == b""
        text = "ServiceNotReady (injected)"
        answer = encoder.lookup_failed(7, pb.ServerError.Value("ServiceNotReady"), text)
        assert await one.came(one.client) == answer
        one.client.send(PING)
        assert await one.came(one.broker) == PING


def request(name: str) -> bytes:
    """A request of this command whose ids are 41 (of it, or of its message) and 5 (of all else)."""
    number = pb.BaseCommand.Type.Value(name)
    command = pb.BaseCommand(type=number)  # type: ignore[arg-type]
    inner = getattr(command, pb.BaseCommand.DESCRIPTOR.fields_by_number[number].name)
    for field in inner.DESCRIPTOR.fields:
        if field.name in ("request_id", "sequence_id"):
            setattr(inner, field.name, 41)
        elif field.is_required and field.type == field.TYPE_STRING:
            setattr(inner, field.name, "x")
        elif field.is_required and field.type == field.TYPE_UINT64:
            setattr(inner, field.name, 5)
    body = command.SerializePartialToString()
    return (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body


ANSWERS = {
    "PARTITIONED_METADATA": "PARTITIONED_METADATA_RESPONSE",
    "LOOKUP": "LOOKUP_RESPONSE",
    "SEND": "SEND_ERROR",
    "ACK": "ACK_RESPONSE",
    "CONSUMER_STATS": "CONSUMER_STATS_RESPONSE",
    "GET_SCHEMA": "GET_SCHEMA_RESPONSE",
    "GET_OR_CREATE_SCHEMA": "GET_OR_CREATE_SCHEMA_RESPONSE",
}


@pytest.mark.parametrize("name", REQUESTS)
def test_each_request_has_the_answer_of_its_kind_with_its_own_id(name: str) -> None:
    answer = error_answer(request(name), "TopicNotFound", "gone")
    command = pb.BaseCommand()
    command.ParseFromString(answer[8:])
    assert pb.BaseCommand.Type.Name(command.type) == ANSWERS.get(name, "ERROR")
    inner: Any = getattr(command, pb.BaseCommand.DESCRIPTOR.fields_by_number[command.type].name)
    fields = {field.name: value for field, value in inner.ListFields()}
    assert fields.get("request_id", fields.get("sequence_id")) == 41
    assert fields.get("error", fields.get("error_code")) == pb.ServerError.Value("TopicNotFound")
    assert fields.get("message", fields.get("error_message")) == "gone"
    if name == "SEND":
        assert fields["producer_id"] == 5
    if name in ("LOOKUP", "PARTITIONED_METADATA"):
        assert fields["response"] == type(inner).Failed


def test_an_ack_without_a_request_id_has_no_answer() -> None:
    ack = pb.BaseCommand(
        type=pb.BaseCommand.ACK, ack=pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
    )
    assert error_answer(encoder.frame(ack), "MetadataError", "x") == b""


def test_each_command_is_seen_where_the_protocol_has_it() -> None:
    seen = {name: directions_of(name) for name in pb.BaseCommand.Type.keys()}  # noqa: SIM118
    assert {name for name, ways in seen.items() if ways == ("in", "out")} == {
        "PING",
        "PONG",
        "CLOSE_PRODUCER",
        "CLOSE_CONSUMER",
    }
    assert all("in" in seen[name] for name in REQUESTS)
    assert [seen[name] for name in ("MESSAGE", "SEND_RECEIPT", "LOOKUP_RESPONSE")] == [("out",)] * 3
    assert [seen[name] for name in ("FLOW", "ACK", "CONNECT", "AUTH_RESPONSE")] == [("in",)] * 4
