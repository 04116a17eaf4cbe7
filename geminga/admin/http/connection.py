"""HTTP/1.1 around the router: h11 reads and writes, this file waits, limits and closes.

A peer that sends too much, too slowly or something other than HTTP gets a 4xx where possible and loses its
connection; other connections are not affected.
"""

from __future__ import annotations

import http
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Protocol

import h11
import msgspec
import trio

from geminga.admin.http.body_memory import BodyMemory, TooManyBodies
from geminga.admin.http.own_host import OwnHost
from geminga.admin.http.router import MethodNotAllowed, Request, Response
from geminga.admin.http.streaming import unless_gone
from geminga.errors import GemingaError, OperatorTokenWrong, PeerError
from geminga.limits import KIB, MIB

log = logging.getLogger("geminga.admin")

TARGET_BYTES_MAX = 8 * KIB
HEAD_BYTES_MAX = 16 * KIB
HEADERS_MAX = 100
BODY_BYTES_MAX = 1 * MIB
LARGE_BODY_BYTES_MAX = 17 * MIB
"""Body limit of the few routes that take a bundle of buckets; one such request runs at a time."""
RECEIVE_BYTES = 64 * KIB

HEAD_SECONDS = 10.0
"""From the first byte of a request to the end of its headers."""
BODY_SECONDS = 30.0
IDLE_SECONDS = 60.0
"""How long a connection may wait for its next request."""
WRITE_SECONDS = 30.0
LINGER_SECONDS = 1.0
LINGER_BYTES_MAX = 4 * MIB
"""Bytes still read and discarded after a refusal, so that a reset does not destroy its text."""

_STATUSES = frozenset(http.HTTPStatus)

assert TARGET_BYTES_MAX < HEAD_BYTES_MAX


class Application(Protocol):
    """Answers requests."""

    has_large_body: bool
    """True while a request with more than `BODY_BYTES_MAX` is under way."""

    def __call__(self, request: Request) -> Awaitable[Response]: ...

    async def prepare(self) -> None:
        """Have the routes ready that `takes_large_body` asks; may be repeated."""
        ...

    def takes_large_body(self, method: str, target: str) -> bool:
        """True if such a request may have more than `BODY_BYTES_MAX`."""
        ...


class Visit(Protocol):
    """The admission that accepted this connection: while idle, it may be closed to make room for others."""

    def busy(self) -> None: ...

    def idle(self) -> None: ...


class _Refused(Exception):
    """The request is answered with this status and reason, and the connection is closed."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


async def serve_http(
    sock: socket.socket, visit: Visit, *, application: Application, own: OwnHost, bodies: BodyMemory
) -> None:
    """Serve one accepted connection until either side is done with it. Closes the socket.

    `bodies` is that of all connections of the port.

    `visit` is told to be busy while a request is being answered. Waiting for one, reading it, and waiting
    until the peer has read its answer are all idle: a peer that is slow in any of them locks out no other.
    """
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    try:
        await _Connection(stream, visit, application, own, bodies).serve()
    except (trio.BrokenResourceError, trio.ClosedResourceError, ConnectionError):
        pass
    except Exception:
        # The boundary: whatever a request can bring about ends with its own connection.
        log.exception("a connection ended by a bug in Geminga; all others go on")
    finally:
        await trio.aclose_forcefully(stream)


class _Connection:
    def __init__(
        self,
        stream: trio.SocketStream,
        visit: Visit,
        application: Application,
        own: OwnHost,
        bodies: BodyMemory,
    ) -> None:
        self._stream = stream
        self._visit = visit
        self._own = own
        self._bodies = bodies
        self._held_bytes = 0
        """Of the request under way, in `bodies`."""
        self._application = application
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._has_large_body = False
        self._local_host: str = stream.socket.getsockname()[0]
        self._peer = _address(stream.socket)

    async def serve(self) -> None:
        try:
            await self._serve()
        finally:
            self._let_go_of_body()

    async def _serve(self) -> None:
        while True:
            head = None
            try:
                head = await self._read_head()
                if head is None:
                    return
                body = await self._read_body(head)
                self._visit.busy()
                began_s = trio.current_time()
                response = await self._answer(head, body)
                self._log(head, response.status, began_s)
                self._visit.idle()
                del body
                self._let_go_of_body()
            except _Refused as refused:
                log.debug("%s: a request is refused: %d %r", self._peer, refused.status, str(refused))
                await self._refuse(refused.status, str(refused))
                return
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint, str(error))
                return
            await self._write(response, head, close=False)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    def _log(self, head: h11.Request, status: int, began_s: float) -> None:
        """One line for each request, at level debug; of an answer in parts, when its first part is ready."""
        if log.isEnabledFor(logging.DEBUG):
            took_ms = (trio.current_time() - began_s) * 1000
            target = head.target.decode("ascii", "replace")
            log.debug("%s: %s %s: %d in %.1f ms", self._peer, head.method.decode(), target, status, took_ms)

    # -- reading ---------------------------------------------------------------------------------------------

    async def _read_head(self) -> h11.Request | None:
        """The next request's line and headers, checked; None if the peer is done or was idle for too long."""
        with trio.move_on_after(IDLE_SECONDS) as idle:
            event = self._http.next_event()
            if event is h11.NEED_DATA and not await self._receive():
                return None
        if idle.cancelled_caught:
            return None
        with trio.move_on_after(HEAD_SECONDS) as slow:
            event = await self._next_event() if event is h11.NEED_DATA else event
        if slow.cancelled_caught:
            raise _Refused(408, f"the request's head took longer than {HEAD_SECONDS:.0f} s")
        if isinstance(event, h11.ConnectionClosed):
            return None
        assert isinstance(event, h11.Request)
        self._check_head(event)
        return event

    def _check_head(self, head: h11.Request) -> None:
        if len(head.target) > TARGET_BYTES_MAX:
            raise _Refused(414, f"the request target is longer than {TARGET_BYTES_MAX} bytes")
        if len(head.headers) > HEADERS_MAX:
            raise _Refused(431, f"more than {HEADERS_MAX} headers")
        names = [name for name, _ in head.headers]
        if b"transfer-encoding" in names and b"content-length" in names:
            # Two lengths for one body: what stands before us may believe the other one.
            raise _Refused(400, "both Content-Length and Transfer-Encoding")
        refusal = self._own.refusal(head.method.decode(), head.headers)
        if refusal is not None:
            raise _Refused(403, refusal)

    async def _read_body(self, head: h11.Request) -> bytes:
        for name, value in head.headers:
            if name == b"content-length" and int(value) > BODY_BYTES_MAX:
                return await self._read_large_body(head, int(value))
        return await self._read_up_to(head, BODY_BYTES_MAX)

    async def _read_large_body(self, head: h11.Request, size_bytes: int) -> bytes:
        target = head.target.decode("ascii", "replace")
        await self._application.prepare()
        takes_more = self._application.takes_large_body(head.method.decode(), target)
        limit_bytes = LARGE_BODY_BYTES_MAX if takes_more else BODY_BYTES_MAX
        if size_bytes > limit_bytes:
            raise _Refused(413, f"the body is larger than {limit_bytes} bytes")
        if self._application.has_large_body:
            raise _Refused(503, "another large request is under way; try again")
        self._application.has_large_body = self._has_large_body = True
        return await self._read_up_to(head, limit_bytes)

    def _let_go_of_body(self) -> None:
        self._bodies.release(self._held_bytes)
        self._held_bytes = 0
        if self._has_large_body:
            self._application.has_large_body = self._has_large_body = False

    async def _read_up_to(self, head: h11.Request, limit_bytes: int) -> bytes:
        if self._http.they_are_waiting_for_100_continue:
            await self._send(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
        parts: list[bytes] = []
        size_bytes = 0
        with trio.move_on_after(BODY_SECONDS) as slow:
            while True:
                event = await self._next_event()
                if isinstance(event, h11.EndOfMessage):
                    break
                assert isinstance(event, h11.Data)
                size_bytes += len(event.data)
                if size_bytes > limit_bytes:
                    raise _Refused(413, f"the body is larger than {limit_bytes} bytes")
                if not self._has_large_body:
                    self._hold_body(size_bytes)
                parts.append(bytes(event.data))
        if slow.cancelled_caught:
            raise _Refused(408, f"the request's body took longer than {BODY_SECONDS:.0f} s")
        if size_bytes > BODY_BYTES_MAX:
            # Copying so much, into memory that is touched for the first time, takes ten milliseconds.
            return await trio.to_thread.run_sync(b"".join, parts)
        return b"".join(parts)

    def _hold_body(self, size_bytes: int) -> None:
        try:
            self._bodies.hold(self._held_bytes, size_bytes)
        except TooManyBodies as error:
            raise _Refused(error.http_status, str(error)) from None
        self._held_bytes = size_bytes

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            await self._receive()
        return event  # type: ignore[return-value]

    async def _receive(self) -> bool:
        """Hand one chunk to h11; False at the end of the stream."""
        data = await self._stream.receive_some(RECEIVE_BYTES)
        self._http.receive_data(bytes(data))
        return bool(data)

    # -- answering -------------------------------------------------------------------------------------------

    async def _answer(self, head: h11.Request, body: bytes) -> Response:
        method = head.method.decode()
        target = head.target.decode("ascii", "replace")
        try:
            request = Request(
                method,
                target,
                body,
                self._local_host,
                accepts_gzip=_accepts_gzip(head),
                accept=_header(head, b"accept"),
                authorization=_header(head, b"authorization"),
                last_event_id=_header(head, b"last-event-id"),
            )
            response = await self._application(request)
            if response.parts is not None:
                return await self._with_first_part(response, response.parts)
            return response
        except MethodNotAllowed as error:
            return _error(405, str(error), ("Allow", error.allowed))
        except OperatorTokenWrong as error:
            return _error(error.http_status, str(error), ("WWW-Authenticate", "Bearer"))
        except GemingaError as error:
            if error.http_status >= 500 and not isinstance(error, PeerError):
                log.warning("%s %s: %s", method, target, error)
            return _error(error.http_status, str(error))
        except trio.BrokenResourceError:
            raise
        except Exception:
            # The boundary: a bug in one route must not take the connections of others down.
            log.exception("%s %s failed", method, target)
            return _error(500, "internal error; the broker's log has the details")

    async def _with_first_part(self, response: Response, parts: AsyncGenerator[bytes, None]) -> Response:
        """Errors before the first byte of the answer are answered with a status of their own."""
        try:
            first = await unless_gone(self._stream, self._http.receive_data, lambda: anext(parts, b""))
        except BaseException:
            await parts.aclose()
            raise
        return response._replace(body=first)

    async def _write_parts(self, response: Response, head: h11.Request | None) -> None:
        """Chunked, so that a peer can tell an answer that was broken off from a whole one."""
        assert response.parts is not None
        parts = response.parts
        async with aclosing(parts):
            headers = [*response.headers, ("Content-Type", response.content_type)]
            out = self._http.send(
                h11.Response(status_code=response.status, headers=headers, reason=_phrase(response.status))
            )
            await self._send(out)
            part = b"" if head is not None and head.method == b"HEAD" else response.body
            while part:
                out = self._http.send(h11.Data(data=part))
                part = b""  # one copy of a part waits for its peer, not two
                await self._send(out)
                try:
                    part = await anext(parts, b"")
                except GemingaError as error:
                    log.warning("an answer is broken off: %s", error)
                    raise trio.BrokenResourceError("the answer is broken off") from None
            await self._send(self._http.send(h11.EndOfMessage()))

    async def _write(self, response: Response, head: h11.Request | None, *, close: bool) -> None:
        if response.parts is not None:
            await self._write_parts(response, head)
            return
        headers = [*response.headers, ("Content-Length", str(len(response.body)))]
        if response.content_type:
            headers.append(("Content-Type", response.content_type))
        if response.status == 204:
            headers = list(response.headers)
        if close:
            headers.append(("Connection", "close"))
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        encoded = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]
        head_out = h11.Response(status_code=response.status, headers=encoded, reason=_phrase(response.status))
        out = self._http.send(head_out) or b""
        if response.body and not (head is not None and head.method == b"HEAD"):
            out += self._http.send(h11.Data(data=response.body)) or b""
        out += self._http.send(h11.EndOfMessage()) or b""
        await self._send(out)

    async def _refuse(self, status: int, reason: str) -> None:
        await self._write(_error(status, reason), None, close=True)
        await self._stream.send_eof()
        left = LINGER_BYTES_MAX
        with trio.move_on_after(LINGER_SECONDS):
            while left > 0 and (data := await self._stream.receive_some(RECEIVE_BYTES)):
                left -= len(data)

    async def _send(self, data: bytes | None) -> None:
        if not data:
            return
        self._bodies.send(len(data))
        try:
            with trio.move_on_after(WRITE_SECONDS) as slow:
                await self._stream.send_all(data)
        finally:
            self._bodies.sent(len(data))
        if slow.cancelled_caught:
            raise trio.BrokenResourceError("the peer does not read its answer")


def _address(sock: trio.socket.SocketType) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "a peer that has gone"
    return f"{host}:{port}"


def _accepts_gzip(head: h11.Request) -> bool:
    """By RFC 9110, 12.5.3: gzip by its name, else as any coding; a weight of 0 refuses it."""
    accepted: dict[str, bool] = {}
    for coding in _header(head, b"accept-encoding").lower().split(","):
        name, *parameters = (part.strip() for part in coding.split(";"))
        accepted[name] = all(_is_above_zero(text) for text in parameters)
    return accepted.get("gzip", accepted.get("x-gzip", accepted.get("*", False)))


def _is_above_zero(parameter: str) -> bool:
    name, _, weight = parameter.partition("=")
    if name.strip() != "q":
        return True
    try:
        return float(weight) > 0
    except ValueError:
        return False


def _header(head: h11.Request, wanted: bytes) -> str:
    """Empty if there is none; several are joined."""
    return ",".join(value.decode("latin-1") for name, value in head.headers if name == wanted)


def _phrase(status: int) -> bytes:
    return http.HTTPStatus(status).phrase.encode() if status in _STATUSES else b""


def _error(status: int, reason: str, *headers: tuple[str, str]) -> Response:
    return Response(status, msgspec.json.encode({"reason": reason}), "application/json", headers)
