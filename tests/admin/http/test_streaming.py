"""Answers in parts at the socket: whole, broken off, abandoned by their peer, or not read."""

from __future__ import annotations

import functools
import socket
from collections.abc import AsyncGenerator, Callable, Iterator

import h11
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from geminga.admin.http import connection as http
from geminga.admin.http.body_memory import BodyMemory
from geminga.admin.http.own_host import OwnHost
from geminga.admin.http.router import NO_CONTENT, Request, Response, Router, streamed_json
from geminga.admin.http.streaming import PIECES_MAX, in_parts, json_list
from geminga.errors import CorruptData, NotAllowed
from geminga.server.admission import Admission

PART = b"x" * 65536


class Parts:
    """Routes that answer in parts, and what became of these."""

    def __init__(self) -> None:
        self.drawn = 0
        self.began = trio.Event()
        self.closed = trio.Event()
        self.go_on = trio.Event()
        self.changed = trio.Event()

    def router(self) -> Router:
        router = Router()
        for name in ("three", "endless", "refused", "broken", "waiting"):
            router.add("GET", f"/{name}", getattr(self, name))
        router.add("POST", "/change", self.change, walks="topics", joins=True)
        return router

    async def _answer(self, parts: AsyncGenerator[bytes, None]) -> Response:
        return Response(200, b"", "text/plain", parts=parts)

    async def three(self, request: Request) -> Response:
        async def parts() -> AsyncGenerator[bytes, None]:
            for part in (b"one ", b"two ", b"three"):
                self.drawn += 1
                yield part

        return await self._answer(parts())

    async def endless(self, request: Request) -> Response:
        async def parts() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    self.drawn += 1
                    yield PART
            finally:
                self.closed.set()

        return await self._answer(parts())

    async def refused(self, request: Request) -> Response:
        async def parts() -> AsyncGenerator[bytes, None]:
            raise NotAllowed("not this one")
            yield b""

        return await self._answer(parts())

    async def broken(self, request: Request) -> Response:
        async def parts() -> AsyncGenerator[bytes, None]:
            yield b"so far"
            raise CorruptData("ledger 5 entry 3")

        return await self._answer(parts())

    async def waiting(self, request: Request) -> Response:
        async def parts() -> AsyncGenerator[bytes, None]:
            try:
                self.began.set()
                await trio.sleep_forever()
                yield b""
            finally:
                self.closed.set()

        return await self._answer(parts())

    async def change(self, request: Request) -> Response:
        self.began.set()
        await self.go_on.wait()
        self.changed.set()
        return NO_CONTENT


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def connect(parts: Parts, nursery: trio.Nursery) -> Callable[[], trio.SocketStream]:
    own = OwnHost([], is_loopback=False)
    serve = functools.partial(http.serve_http, application=parts.router(), own=own, bodies=BodyMemory())
    admission = Admission("admin port", 256)

    def make() -> trio.SocketStream:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        for end in (ours, theirs):
            end.setblocking(False)
        nursery.start_soon(admission.enter().serve, theirs, serve)
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    return make


async def ask(stream: trio.SocketStream, path: str, method: str = "GET") -> tuple[int, bytes, bool]:
    """Status, body, and whether the answer came to its end."""
    client = h11.Connection(h11.CLIENT)
    await stream.send_all(
        client.send(h11.Request(method=method, target=path, headers=[("Host", "x")])) or b""
    )
    await stream.send_all(client.send(h11.EndOfMessage()) or b"")
    status, body = 0, b""
    while True:
        try:
            event = client.next_event()
        except h11.RemoteProtocolError:
            return status, body, False
        if event is h11.NEED_DATA:
            client.receive_data(bytes(await stream.receive_some(65536)))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return status, body, True


async def test_parts_arrive_as_one_body_and_the_connection_goes_on(
    parts: Parts, connect: Callable[[], trio.SocketStream]
) -> None:
    async with connect() as stream:
        for _ in range(2):
            assert await ask(stream, "/three") == (200, b"one two three", True)
        assert await ask(stream, "/three", "HEAD") == (200, b"", True)
        assert parts.drawn == 7, "one for the HEAD"


async def test_an_error_before_the_first_part_has_its_status(
    connect: Callable[[], trio.SocketStream],
) -> None:
    async with connect() as stream:
        status, body, _ = await ask(stream, "/refused")
        assert (status, b"not this one" in body) == (NotAllowed.http_status, True)
        assert (await ask(stream, "/three"))[0] == 200


async def test_an_answer_that_breaks_off_cannot_be_taken_for_a_whole_one(
    connect: Callable[[], trio.SocketStream],
) -> None:
    async with connect() as stream:
        assert await ask(stream, "/broken") == (200, b"so far", False)


async def test_what_nobody_waits_for_is_abandoned(
    parts: Parts, connect: Callable[[], trio.SocketStream]
) -> None:
    async with connect() as stream:
        await stream.send_all(b"GET /waiting HTTP/1.1\r\nHost: x\r\n\r\n")
        await parts.began.wait()
    await parts.closed.wait()


async def test_a_change_goes_on_when_its_client_does_not_wait(
    parts: Parts, connect: Callable[[], trio.SocketStream]
) -> None:
    """Its repetition joins it: `test_joined_requests.py`."""
    async with connect() as stream:
        await stream.send_all(b"POST /change HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        await parts.began.wait()
    await wait_all_tasks_blocked(0.01)
    parts.go_on.set()
    await wait_all_tasks_blocked()
    assert parts.changed.is_set()


async def test_a_request_that_comes_while_a_part_is_drawn_is_answered_next(
    parts: Parts, connect: Callable[[], trio.SocketStream]
) -> None:
    async with connect() as stream:
        await stream.send_all(b"GET /three HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        received = b""
        while received.count(b"three") < 2:
            received += await stream.receive_some(65536)
        assert received.count(b"HTTP/1.1 200") == 2


async def test_a_peer_that_does_not_read_is_cut_and_has_held_one_part(
    parts: Parts, connect: Callable[[], trio.SocketStream], autojump_clock: MockClock
) -> None:
    async with connect() as stream:
        begun_s = trio.current_time()
        await stream.send_all(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        await parts.closed.wait()
        assert trio.current_time() - begun_s == pytest.approx(http.WRITE_SECONDS, abs=1)
        received = 0
        while True:
            try:
                data = await stream.receive_some(1 << 20)
            except trio.BrokenResourceError:
                break
            if not data:
                break
            received += len(data)
        assert parts.drawn * len(PART) - received <= 2 * len(PART)


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 2500])
async def test_a_list_in_parts_is_the_list(count: int) -> None:
    items = [f"persistent://public/default/{n}" for n in range(count)]
    parts = [part async for part in json_list(items)]
    response = streamed_json(json_list(items))
    assert response.parts is not None
    await response.parts.aclose()
    import msgspec

    assert msgspec.json.decode(b"".join(parts)) == items


async def test_a_part_has_no_more_than_so_many_pieces() -> None:
    drawn = 0

    def pieces() -> Iterator[bytes]:
        nonlocal drawn
        for _ in range(1000):
            drawn += 1
            yield b"x"

    before = 0
    async for part in in_parts(pieces()):
        assert len(part) == drawn - before <= PIECES_MAX
        before = drawn
    assert drawn == 1000
