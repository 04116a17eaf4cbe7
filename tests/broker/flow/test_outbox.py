"""The outbox keeps order, reports back-pressure with hysteresis, and lets nothing through after its close."""

from __future__ import annotations

import socket

import trio

from geminga import limits
from geminga.broker.flow.outbox import Outbox
from geminga.broker.flow.send_memory import SendMemory


def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


async def read_exactly(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        try:
            chunk = sock.recv(length - len(data))
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
            continue
        assert chunk, "closed early"
        data += chunk
    return data


async def test_single_buffers_and_lists_leave_in_the_order_in_which_they_were_queued() -> None:
    ours, theirs = pair()
    outbox = Outbox(SendMemory(64 * limits.MIB))
    with ours, theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run, ours)
            outbox.write(b"one ")
            outbox.write([b"two ", memoryview(b"three ")])
            await trio.testing.wait_all_tasks_blocked()
            outbox.write(b"four")
            with trio.fail_after(5):
                assert await read_exactly(theirs, 18) == b"one two three four"
                await outbox.drained()
            assert outbox.pending_bytes == 0
            assert outbox.bytes_sent == 18
            nursery.cancel_scope.cancel()


async def test_a_peer_that_does_not_read_stops_the_flow_until_it_reads_again() -> None:
    ours, theirs = pair()
    outbox = Outbox(SendMemory(64 * limits.MIB))
    told: list[bool] = []
    outbox.on_writable.add(lambda: told.append(outbox.is_writable()))
    block = bytes(64 * limits.KIB)
    with ours, theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run, ours)
            sent = 0
            while outbox.is_writable():
                outbox.write(block)
                sent += len(block)
            assert sent <= limits.OUTBOX_BYTES_HIGH + len(block)
            assert told == []
            with trio.fail_after(10):
                await read_exactly(theirs, sent)
                await outbox.drained()
            assert told == [True]
            assert outbox.is_writable()
            nursery.cancel_scope.cancel()


async def test_closing_drops_what_is_queued_and_wakes_those_who_wait_for_room() -> None:
    ours, theirs = pair()
    outbox = Outbox(SendMemory(64 * limits.MIB))
    told: list[bool] = []
    outbox.on_writable.add(lambda: told.append(outbox.closed))
    with ours, theirs:
        outbox.write(bytes(limits.OUTBOX_BYTES_HIGH + 1))
        outbox.close()
        outbox.write(b"too late")
        assert outbox.pending_bytes == 0
        assert told == [True]
        with trio.fail_after(5):
            await outbox.run(ours)
            await outbox.drained()
        assert not outbox.is_writable()
