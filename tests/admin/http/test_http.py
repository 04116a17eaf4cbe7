"""HTTP at the socket: what is answered, what is refused, and that a refusal disturbs nobody else."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from http import HTTPStatus

import pytest
import trio
from trio.testing import MockClock

from geminga.admin.http import connection as http
from geminga.admin.http.body_memory import BODIES_BYTES_MAX, BodyMemory
from geminga.admin.http.own_host import OwnHost
from geminga.admin.http.router import Request, Response, Router, json_response
from geminga.errors import ConsumerBusy, CorruptData
from geminga.server.admission import Admission


@pytest.fixture
def router() -> Router:
    made = Router()

    async def echo(request: Request) -> Response:
        return json_response({"method": request.method, "size": len(request.body), "query": request.query})

    async def echo_of_large(request: Request) -> Response:
        return await echo(request)

    async def empty(request: Request) -> Response:
        return Response(204)

    async def busy(request: Request) -> Response:
        raise ConsumerBusy("somebody is connected")

    async def corrupt(request: Request) -> Response:
        raise CorruptData("ledger 5 entry 3")

    async def bug(request: Request) -> Response:
        raise KeyError("a bug")

    async def packs(request: Request) -> Response:
        return json_response(request.accepts_gzip)

    for method in ("GET", "PUT", "POST"):
        made.add(method, "/echo", echo)
    made.add("GET", "/packs", packs)
    made.add("POST", "/large", echo_of_large, large_body=True)
    made.add("DELETE", "/empty", empty)
    made.add("GET", "/busy", busy)
    made.add("GET", "/corrupt", corrupt)
    made.add("GET", "/bug", bug)
    return made


Connect = Callable[[], trio.SocketStream]


@pytest.fixture
def admission() -> Admission:
    return Admission("admin port", 256)


@pytest.fixture
def bodies() -> BodyMemory:
    return BodyMemory()


@pytest.fixture
async def connect(router: Router, admission: Admission, bodies: BodyMemory, nursery: trio.Nursery) -> Connect:
    """Makes a connection that is being served, and gives the client's end."""

    own = OwnHost([], is_loopback=False)
    serve = functools.partial(http.serve_http, application=router, own=own, bodies=bodies)

    def make() -> trio.SocketStream:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        theirs.setblocking(False)
        nursery.start_soon(admission.enter().serve, theirs, serve)
        ours.setblocking(False)
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    return make


async def exchange(stream: trio.SocketStream, data: bytes) -> bytes:
    """Send, say that this is all, and read to the end."""
    async with stream:
        with trio.fail_after(5):
            try:
                await stream.send_all(data)
                await stream.send_eof()
            except trio.BrokenResourceError:
                pass
            received = b""
            while chunk := await stream.receive_some(65536):
                received += chunk
            return received


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


HOST = b"Host: x\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status", "body"),
    [
        (b"GET /echo?a=b HTTP/1.1\r\n" + HOST + b"\r\n", 200, b'{"method":"GET","size":0,"query":{"a":"b"}}'),
        (
            b"PUT /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc",
            200,
            b'{"method":"PUT","size":3,"query":{}}',
        ),
        (
            b"POST /echo HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            200,
            b'{"method":"POST","size":3,"query":{}}',
        ),
        (b"DELETE /empty HTTP/1.1\r\n" + HOST + b"\r\n", 204, b""),
        (b"HEAD /echo HTTP/1.1\r\n" + HOST + b"\r\n", 200, b""),
        (b"GET /busy HTTP/1.1\r\n" + HOST + b"\r\n", 412, b'{"reason":"somebody is connected"}'),
        (b"GET /corrupt HTTP/1.1\r\n" + HOST + b"\r\n", 503, b'{"reason":"ledger 5 entry 3"}'),
        (b"GET /nope HTTP/1.1\r\n" + HOST + b"\r\n", 404, b'{"reason":"Not Found"}'),
        (b"POST /busy HTTP/1.1\r\n" + HOST + b"\r\n", 405, b'{"reason":"Method Not Allowed"}'),
    ],
)
async def test_answers(connect: Connect, request_bytes: bytes, status: int, body: bytes) -> None:
    answer = await exchange(connect(), request_bytes)
    assert status_of(answer) == status
    assert answer.split(b"\r\n")[0].split(b" ", 2)[2] == HTTPStatus(status).phrase.encode()
    assert answer.partition(b"\r\n\r\n")[2] == body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40 + b"\r\n\r\n", 400),
        (b"\x00\x00\x00\x10\x00\x00\x00\x0c\x08\x02\r\n\r\n", 400),
        (b"GET / HTTP/x.y\r\n\r\n", 400),
        (b"GET /echo HTTP/1.1\r\n\r\n", 400),
        (b"GET /echo HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (b"GET /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (
            b"POST /echo HTTP/1.1\r\n"
            + HOST
            + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"POST /echo HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
        (b"GET /" + b"a" * 40_000, 431),
        (b"GET /echo HTTP/1.1\r\n" + HOST + b"x: y\r\n" * 101 + b"\r\n", 431),
        (b"PUT /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 1048577\r\n\r\n", 413),
        (b"PUT /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 9999999999999\r\n\r\n", 413),
        (b"GET /%ff HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST /echo HTTP/1.1\r\n" + HOST + b"Sec-Fetch-Site: cross-site\r\n\r\n", 403),
    ],
)
async def test_refusals(connect: Connect, request_bytes: bytes, status: int) -> None:
    answer = await exchange(connect(), request_bytes)
    assert status_of(answer) == status, answer
    assert b'{"reason":"' in answer
    assert status_of(await exchange(connect(), b"GET /echo HTTP/1.1\r\n" + HOST + b"\r\n")) == 200


async def test_a_large_chunked_body_is_refused_while_it_comes_in(connect: Connect) -> None:
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    head = b"PUT /echo HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert status_of(await exchange(connect(), head + chunk * 17 + b"0\r\n\r\n")) == 413


async def test_bodies_that_never_end_take_bounded_memory_together(
    connect: Connect, bodies: BodyMemory
) -> None:
    """250 connections with a MiB each kept 250 MiB, each within its own limit."""

    def putting(size: int) -> bytes:
        return b"PUT /echo HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size

    size = http.BODY_BYTES_MAX
    held = [connect() for _ in range(9)]
    for stream in held:
        await stream.send_all(putting(size) + bytes(size - 1))
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert bodies.held_bytes <= BODIES_BYTES_MAX
    assert status_of(await exchange(connect(), putting(size) + bytes(size))) == 503
    assert status_of(await exchange(connect(), putting(9000) + bytes(9000))) == 200, "small ones are read"
    for stream in held:
        await stream.aclose()
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert bodies.held_bytes == 0
    assert status_of(await exchange(connect(), putting(size) + bytes(size))) == 200


async def test_a_bug_is_answered_logged_and_survived(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    twice = (b"GET /bug HTTP/1.1\r\n" + HOST + b"\r\n") + (b"GET /echo HTTP/1.1\r\n" + HOST + b"\r\n")
    answer = await exchange(connect(), twice)
    assert status_of(answer) == 500
    assert b"KeyError" not in answer
    assert answer.count(b"HTTP/1.1 200") == 1
    assert "GET /bug failed" in caplog.text


async def test_keep_alive_and_pipelining(connect: Connect, admission: Admission) -> None:
    answer = await exchange(connect(), (b"GET /echo HTTP/1.1\r\n" + HOST + b"\r\n") * 5)
    assert answer.count(b"HTTP/1.1 200") == 5
    answer = await exchange(connect(), (b"GET /echo HTTP/1.0\r\n\r\n") * 2)
    assert answer.count(b"HTTP/1.1 200") == 1, "HTTP/1.0 closes"
    await trio.testing.wait_all_tasks_blocked()
    assert admission.open == 0


async def test_expect_continue(connect: Connect) -> None:
    head = b"PUT /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    stream = connect()
    await stream.send_all(head)
    assert (await stream.receive_some(4096)).startswith(b"HTTP/1.1 100")
    assert status_of(await exchange(stream, b"abc")) == 200


async def test_one_byte_at_a_time_is_the_same(connect: Connect) -> None:
    stream = connect()
    for byte in b"PUT /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nab":
        await stream.send_all(bytes([byte]))
    assert b'"size":3' in await exchange(stream, b"c")


async def test_all_but_answering_is_idle(
    connect: Connect, router: Router, admission: Admission, autojump_clock: MockClock, bodies: BodyMemory
) -> None:
    """Waiting for a request, half of one, half of a body, and an answer that is not read."""
    asked, answer = trio.Event(), trio.Event()

    async def slow(request: Request) -> Response:
        asked.set()
        await answer.wait()
        return Response(200, b"x" * 50_000_000, "text/plain")

    router.add("GET", "/slow", slow)
    answered = connect()
    await answered.send_all(b"GET /slow HTTP/1.1\r\n" + HOST + b"\r\n")
    await asked.wait()
    admission.close_longest_idle()
    assert admission.closed_for_others == 0, "a request is being answered"
    for number, sent in enumerate(
        (
            b"",
            b"GET /echo HTTP/1.1\r\nHo",
            b"PUT /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nab",
        )
    ):
        idle = connect()
        await idle.send_all(sent)
        await trio.testing.wait_all_tasks_blocked()
        admission.close_longest_idle()
        assert await idle.receive_some(1) == b"", sent
        await idle.aclose()
        assert admission.closed_for_others == number + 1
    answer.set()
    await trio.testing.wait_all_tasks_blocked()
    assert bodies.sending_bytes > 50_000_000
    admission.close_longest_idle()
    await trio.testing.wait_all_tasks_blocked()
    assert bodies.sending_bytes == 0
    assert admission.open == 0, "who does not read its answer is idle as well"
    await answered.aclose()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /echo HTTP/1.1\r\nHost", 408),
        (b"PUT /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", 408),
        (b"", None),
        (b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    ],
)
async def test_the_slow_and_the_idle_lose_their_connection(
    connect: Connect,
    autojump_clock: MockClock,
    sent: bytes,
    status: int | None,
) -> None:
    stream = connect()
    async with stream:
        await stream.send_all(sent)
        received = b""
        with trio.fail_after(http.IDLE_SECONDS + http.HEAD_SECONDS + http.LINGER_SECONDS + 1):
            while chunk := await stream.receive_some(65536):
                received += chunk
    assert (status_of(received) if received else None) == status


async def test_who_does_not_read_the_answer_loses_the_connection(
    router: Router, admission: Admission, autojump_clock: MockClock, connect: Connect
) -> None:
    async def huge(request: Request) -> Response:
        return Response(200, b"x" * 50_000_000, "text/plain")

    router.add("GET", "/huge", huge)
    stream = connect()
    await stream.send_all(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n")
    await trio.sleep(http.WRITE_SECONDS + 1)
    assert admission.open == 0
    await stream.aclose()


async def test_a_route_may_take_a_large_body_one_at_a_time(connect: Connect, router: Router) -> None:
    def posting(target: bytes, size: int) -> bytes:
        return b"POST " + target + b" HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size

    large = http.BODY_BYTES_MAX + 5
    answer = await exchange(connect(), posting(b"/large?a=b", large) + bytes(large))
    assert (status_of(answer), f'"size":{large}'.encode() in answer) == (200, True)
    assert status_of(await exchange(connect(), posting(b"/echo", large))) == 413
    assert status_of(await exchange(connect(), posting(b"/large", http.LARGE_BODY_BYTES_MAX + 1))) == 413
    first = connect()
    await first.send_all(posting(b"/large", large))
    await trio.testing.wait_all_tasks_blocked()
    assert router.has_large_body
    assert status_of(await exchange(connect(), posting(b"/large", large))) == 503
    await first.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert not router.has_large_body
    answer = await exchange(connect(), posting(b"/large", large) + bytes(large))
    assert status_of(answer) == 200


@pytest.mark.parametrize(
    ("accepted", "packs"),
    [
        ("gzip", True),
        ("deflate, GZIP", True),
        ("gzip;q=0.9", True),
        ("gzip; q=0.001, br;q=1", True),
        ("gzip;q=1.0,deflate;q=0", True),
        ("*", True),
        ("br, *;q=0.1", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("gzip;q=0.000, *", False),
        ("*;q=0", False),
        ("*;q=0, gzip", True),
        ("gzip;q=much", False),
        ("identity", False),
        ("", False),
    ],
)
async def test_the_weight_of_gzip_decides(connect: Connect, accepted: str, packs: bool) -> None:
    head = b"GET /packs HTTP/1.1\r\n" + HOST + f"Accept-Encoding: {accepted}\r\n\r\n".encode()
    answer = await exchange(connect(), head)
    assert answer.partition(b"\r\n\r\n")[2] == (b"true" if packs else b"false")


async def test_accept_encoding_may_be_on_two_lines(connect: Connect) -> None:
    lines = b"Accept-Encoding: br\r\nAccept-Encoding: gzip;q=0.5\r\n\r\n"
    answer = await exchange(connect(), b"GET /packs HTTP/1.1\r\n" + HOST + lines)
    assert answer.endswith(b"true")
