"""All outboxes together hold a bounded amount: peers that read are served, others keep one read."""

from __future__ import annotations

import logging
import random
import socket

import pytest
import trio

from geminga.broker.flow.outbox import STALL_S, Outbox, PeerTooSlow
from geminga.broker.flow.send_memory import BEYOND_BYTES, READ_BYTES_TIGHT, SendMemory
from geminga.limits import KIB, MIB, OUTBOX_BYTES_HIGH

PART = 2 * MIB


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    for sock in (ours, theirs):
        sock.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
    return ours, theirs


def fill(outbox: Outbox, message: bytes) -> int:
    """Queue messages as dispatch does, a read at a time, while the outbox takes them."""
    queued = 0
    while outbox.is_writable():
        for _ in range(max(1, outbox.room_bytes() // len(message))):
            outbox.write(message)
            queued += len(message)
    return queued


def test_one_outbox_fills_to_its_own_limit_and_is_asked_for_no_more_than_it_has_room_for() -> None:
    outbox = Outbox(SendMemory(64 * MIB))
    assert outbox.room_bytes() == OUTBOX_BYTES_HIGH
    outbox.write(bytes(MIB))
    assert outbox.room_bytes() == OUTBOX_BYTES_HIGH - MIB
    assert MIB + fill(outbox, bytes(100_000)) <= OUTBOX_BYTES_HIGH + READ_BYTES_TIGHT


def test_beyond_the_part_each_outbox_gets_one_small_read_and_no_more() -> None:
    memory = SendMemory(PART)
    outboxes = [Outbox(memory) for _ in range(200)]
    queued = [fill(outbox, bytes(100_000)) for outbox in outboxes]
    assert memory.pending_bytes == sum(queued)
    assert queued[-1] == 100_000, "it gets its read however many do not read"
    assert memory.pending_bytes <= PART + 200 * 100_000
    for outbox in outboxes:
        outbox.close()
    assert memory.pending_bytes == 0


def test_large_messages_stop_at_the_bound_and_go_on_when_an_outbox_gives_its_room_back() -> None:
    memory = SendMemory(PART)
    message = bytes(5 * MIB)
    holders = []
    while (outbox := Outbox(memory)).is_writable():
        outbox.write(message)
        holders.append(outbox)
    assert PART + BEYOND_BYTES <= memory.pending_bytes < PART + BEYOND_BYTES + len(message)
    told: list[bool] = []
    outbox.on_writable.add(lambda: told.append(outbox.is_writable()))
    assert memory.is_wanted()
    holders[0].close()
    assert told == [True]
    assert not memory.is_wanted()
    assert memory.waits == 1


async def test_a_peer_that_reads_goes_on_while_others_hold_more_than_the_part() -> None:
    memory = SendMemory(PART)
    memory.take(PART + 10 * MIB)  # of peers that do not read
    ours, theirs = tcp_pair()
    outbox = Outbox(memory)
    message = bytes(100_000)
    writable = trio.Event()

    def tell() -> None:
        nonlocal writable
        writable.set()
        writable = trio.Event()

    outbox.on_writable.add(tell)
    received = 0
    with ours, theirs, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run, ours)

            async def dispatch() -> None:
                while True:
                    room = writable
                    assert fill(outbox, message) <= len(message)
                    await room.wait()

            nursery.start_soon(dispatch)
            while received < 50 * len(message):
                try:
                    received += len(theirs.recv(MIB))
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(theirs)
            nursery.cancel_scope.cancel()


async def test_a_peer_that_does_not_read_gets_nothing_more_when_the_system_has_taken_all_it_wants() -> None:
    memory = SendMemory(PART)
    memory.take(PART + 1)
    ours, theirs = tcp_pair()
    outbox = Outbox(memory)
    with ours, theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run, ours)
            while outbox.is_writable():
                outbox.write(bytes(16 * KIB))
                await trio.testing.wait_all_tasks_blocked(0.05)
            assert outbox.pending_bytes <= 16 * KIB
            nursery.cancel_scope.cancel()


async def test_a_peer_that_takes_nothing_is_disconnected_when_others_wait_for_its_memory(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    memory = SendMemory(PART)
    ours, theirs = tcp_pair()
    outbox, other = Outbox(memory), Outbox(memory)
    with ours, theirs, caplog.at_level(logging.WARNING, "geminga.broker"):
        outbox.write(bytes(PART + BEYOND_BYTES))
        async with trio.open_nursery() as nursery:
            ended = []

            async def run() -> None:
                try:
                    await outbox.run(ours)
                except PeerTooSlow:
                    ended.append(trio.current_time())
                    outbox.close()

            nursery.start_soon(run)
            await trio.sleep(10 * STALL_S)
            assert ended == [], "no other outbox wants the memory"
            assert not other.is_writable()
            await trio.sleep(2 * STALL_S)
            assert len(ended) == 1
            assert other.is_writable()
    assert "the client does not read" in caplog.text


async def test_what_the_system_has_taken_of_a_large_message_is_let_go_when_memory_is_tight() -> None:
    memory = SendMemory(PART)
    ours, theirs = tcp_pair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
    outbox = Outbox(memory)
    message = random.Random(1).randbytes(5 * MIB)
    received = bytearray()
    with ours, theirs, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run, ours)
            outbox.write(message)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert 0 < outbox.pending_bytes == memory.pending_bytes < len(message)
            while len(received) < len(message):
                try:
                    received += theirs.recv(MIB)
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(theirs)
            await outbox.drained()
            nursery.cancel_scope.cancel()
    assert received == message
    assert memory.pending_bytes == 0
    assert outbox.bytes_sent == len(message)
