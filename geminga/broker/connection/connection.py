"""One client's socket: read, feed the session, keep alive, write, close."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import trio

from geminga import limits
from geminga.broker.connection.handlers import HANDLERS
from geminga.broker.connection.session import Session, State
from geminga.broker.flow.outbox import Outbox
from geminga.broker.flow.publish_memory import UNRESERVED_BYTES_MAX, Reservation
from geminga.errors import ProtocolError
from geminga.wire import encoder

if TYPE_CHECKING:
    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topics import Topics

log = logging.getLogger("geminga.broker")

CHUNKS_PER_TURN_MAX = 8
"""So many chunks a connection may read in a row before the others have their turn."""
LAST_WORDS_SECONDS = 0.5
CONNECTIONS_FEW = 8
"""So many may receive large pieces however much of the memory is used: it is 2 MiB, and a frame that comes in
pieces is copied together."""
REQUESTS_OPEN_MAX = 1000
"""Requests of one connection that wait for an answer; at the limit its socket is not read."""


class Connections:
    """All connections of the binary port."""

    def __init__(
        self, topics: Topics, rooms: Rooms, *, service_url: Callable[[socket.socket], str], generation: int
    ) -> None:
        self._topics = topics
        self._rooms = rooms
        self._service_url = service_url
        self._generation = generation
        self._producers_named = 0
        self.active = 0
        self.created = 0

    def producer_name(self) -> str:
        """A name that no other producer ever had: the generation counts the starts of this data directory."""
        self._producers_named += 1
        return f"{self._rooms.settings.cluster}-{self._generation}-{self._producers_named - 1}"

    async def serve(self, sock: socket.socket, on_connected: Callable[[], None]) -> None:
        """Serve one client until it leaves, breaks the protocol, or the broker stops. Closes the socket.

        `on_connected` is called once it has sent CONNECT.
        """
        self.active += 1
        self.created += 1
        with sock:
            try:
                await self._serve(sock, on_connected)
            except Exception:
                # The boundary: whatever a client can bring about ends with its own connection.
                log.exception("a connection ended by a bug in Geminga; all others go on")
            finally:
                self.active -= 1

    async def _serve(self, sock: socket.socket, on_connected: Callable[[], None]) -> None:
        outbox = Outbox()
        try:
            host, port = sock.getpeername()[:2]
        except OSError:
            return
        async with trio.open_nursery() as nursery:
            session = Session(
                HANDLERS,
                outbox,
                self._topics,
                self._rooms,
                nursery,
                address=f"/{host}:{port}",
                service_url=self._service_url(sock),
                producer_names=self.producer_name,
            )
            nursery.start_soon(self._write, nursery, outbox, sock)
            nursery.start_soon(self._keep_alive, nursery, session, outbox, on_connected)
            frame = Reservation(
                lambda: session.decoder.partial_bytes, partial(self._end_stalled, nursery, session)
            )
            try:
                await self._read(sock, session, frame)
            except ProtocolError as error:
                log.warning("%s: connection closed: %s", session.address, error)
                with trio.move_on_after(LAST_WORDS_SECONDS):
                    await outbox.drained()
            except OSError:
                pass
            finally:
                self._rooms.publish_memory.release(frame)
                session.close()
                outbox.close()
                nursery.cancel_scope.cancel()

    async def _read(self, sock: socket.socket, session: Session, frame: Reservation) -> None:
        memory, decoder = self._rooms.publish_memory, session.decoder
        turns = 0
        while True:
            is_tight = self.active > CONNECTIONS_FEW and memory.is_tight()
            receive_bytes = limits.RECEIVE_BYTES_TIGHT if is_tight else limits.RECEIVE_BYTES
            frame_bytes, before_bytes = decoder.frame_bytes, decoder.partial_bytes
            if frame_bytes > UNRESERVED_BYTES_MAX:
                if frame.held_bytes < frame_bytes and not memory.try_reserve(frame, frame_bytes):
                    with self._held_back(session):
                        await memory.reserve(frame, frame_bytes)
                receive_bytes = max(receive_bytes, min(frame_bytes - before_bytes, limits.RECEIVE_BYTES))
            elif session.producers and not memory.has_room():
                with self._held_back(session):
                    await memory.wait_room()
            try:
                chunk = sock.recv(receive_bytes)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(sock)
                turns = 0
                continue
            if not chunk:
                return
            session.ping_unanswered = False
            session.feed(chunk)
            if frame.held_bytes and decoder.partial_bytes != before_bytes + len(chunk):
                memory.release(frame)  # it is whole, and another may have begun
            del chunk  # or each connection that waits below would keep one
            if session.throttled_until_s:
                await self._throttled(session)
            if not session.outbox.is_writable():
                with self._held_back(session):
                    await session.outbox.wait_writable()
            if session.requests_open >= REQUESTS_OPEN_MAX:
                with self._held_back(session):
                    await session.wait_requests_below(REQUESTS_OPEN_MAX)
            turns += 1
            if turns >= CHUNKS_PER_TURN_MAX:
                turns = 0
                await trio.lowlevel.checkpoint()

    async def _throttled(self, session: Session) -> None:
        left_s = session.throttled_until_s - self._rooms.clock.monotonic_s()
        session.throttled_until_s = 0.0
        if left_s > 0:
            with self._held_back(session):
                await trio.sleep(left_s)

    @contextlib.contextmanager
    def _held_back(self, session: Session) -> Iterator[None]:
        """While we do not read, the peer's PONG is not read either: its silence means nothing."""
        session.is_held_back = True
        try:
            yield
        finally:
            session.is_held_back = False
            session.ping_unanswered = False

    def _end_stalled(self, nursery: trio.Nursery, session: Session) -> None:
        if not session.is_held_back:  # else it is we who do not read
            log.warning("%s: connection closed: it sends a message too slowly for others", session.address)
            nursery.cancel_scope.cancel()

    async def _write(self, nursery: trio.Nursery, outbox: Outbox, sock: socket.socket) -> None:
        try:
            await outbox.run(sock)
        except OSError:
            nursery.cancel_scope.cancel()

    async def _keep_alive(
        self, nursery: trio.Nursery, session: Session, outbox: Outbox, on_connected: Callable[[], None]
    ) -> None:
        with trio.move_on_after(limits.HANDSHAKE_SECONDS):
            await session.connected.wait()
        if session.state is State.NEW:
            log.warning(
                "%s: connection closed: no CONNECT in %s s", session.address, limits.HANDSHAKE_SECONDS
            )
            nursery.cancel_scope.cancel()
            return
        on_connected()
        while True:
            await trio.sleep(self._rooms.settings.keep_alive_s)
            if session.ping_unanswered and not (session.is_held_back and outbox.is_writable()):
                log.warning("%s: connection closed: no answer to PING", session.address)
                nursery.cancel_scope.cancel()
                return
            session.ping_unanswered = True
            outbox.write(encoder.ping())
