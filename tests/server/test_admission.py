"""A bound on connections at a real listening socket: who goes for a newcomer, and who waits."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from geminga.server import admission as admission_module
from geminga.server.admission import Admission, Visit
from geminga.server.listener import accept_forever, bind, is_loopback

BOUND = 3


class Port:
    """Says "in" to each connection, which is busy from `b` and idle from `i` on, and ends at `q`."""

    def __init__(self, address: tuple[str, int], admission: Admission) -> None:
        self.address = address
        self.admission = admission
        self.streams: list[trio.SocketStream] = []

    async def connect(self, said: bytes = b"") -> trio.SocketStream:
        stream = await trio.open_tcp_stream(*self.address)
        self.streams.append(stream)
        await stream.send_all(said)
        return stream

    async def connect_in(self, said: bytes = b"") -> trio.SocketStream:
        stream = await self.connect(said)
        await is_in(stream)
        await settle()
        return stream


async def is_in(stream: trio.SocketStream) -> None:
    with trio.fail_after(60):
        assert await stream.receive_some(2) == b"in"


async def settle() -> None:
    """Until what was sent has been read. A socket of this process is readable at once."""
    for _ in range(3):
        await wait_all_tasks_blocked()


async def serve(sock: socket.socket, visit: Visit) -> None:
    steps: dict[bytes, Callable[[], None]] = {b"b": visit.busy, b"i": visit.idle}
    async with trio.SocketStream(trio.socket.from_stdlib_socket(sock)) as stream:
        await stream.send_all(b"in")
        while (said := await stream.receive_some(1)) not in (b"", b"q"):
            steps[said]()


@asynccontextmanager
async def open_port() -> AsyncIterator[Port]:
    admission = Admission("test port", BOUND)
    [listener] = bind("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept_forever, listener, nursery, admission, serve)
        port = Port(listener.getsockname(), admission)
        yield port
        for stream in port.streams:
            await stream.aclose()
        nursery.cancel_scope.cancel()


async def is_closed(stream: trio.SocketStream) -> bool:
    with trio.move_on_after(60):
        try:
            return await stream.receive_some(2) == b""
        except trio.BrokenResourceError:
            return True
    return False


async def test_the_longest_idle_goes_for_a_newcomer(autojump_clock: MockClock) -> None:
    async with open_port() as port:
        first, second, third = [await port.connect_in() for _ in range(BOUND)]
        await first.send_all(b"bi")  # it has asked something since
        await settle()
        for longest in (second, third, first):
            await port.connect_in()
            assert await is_closed(longest)
            assert port.admission.open == BOUND
        assert port.admission.closed_for_others == BOUND


async def test_whoever_is_busy_stays_and_newcomers_wait(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_port() as port:
        busy = [await port.connect_in(b"b") for _ in range(BOUND)]
        newcomers = [await port.connect() for _ in range(2)]
        await trio.sleep(3600)
        assert port.admission.open == BOUND
        assert caplog.text.count("test port") == 1
        await busy[0].send_all(b"q")
        await is_in(newcomers[0])
        assert await is_closed(busy[0])
        await newcomers[0].send_all(b"b")
        await trio.sleep(3600)
        await busy[1].send_all(b"i")
        await is_in(newcomers[1])
        assert await is_closed(busy[1])
        assert port.admission.open == BOUND


async def test_a_connection_has_a_while_to_say_what_it_wants(autojump_clock: MockClock) -> None:
    async with open_port() as port:
        await port.connect_in(b"b")
        await port.connect_in(b"b")
        started_s = trio.current_time()
        slow = await port.connect_in()
        newcomer = await port.connect()
        await is_in(newcomer)
        waited_s = trio.current_time() - started_s
        assert waited_s == pytest.approx(admission_module.FRESH_SECONDS)
        assert await is_closed(slow)


def test_which_addresses_only_this_machine_reaches() -> None:
    for host, expected in (("127.0.0.1", True), ("127.0.0.9", True), ("::1", True), ("0.0.0.0", False)):
        if host == "::1" and not socket.has_ipv6:
            continue
        for sock in bind(host, 0):
            with sock:
                assert is_loopback(sock) == expected, host
