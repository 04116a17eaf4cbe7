"""One client's socket: read, feed the session, keep alive, write, close."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from geminga import limits
from geminga.broker.connection.handlers import HANDLERS
from geminga.broker.connection.reader import Reader
from geminga.broker.connection.session import Session, State
from geminga.broker.connection.turns import Turn, Turns
from geminga.broker.flow.outbox import Outbox
from geminga.broker.flow.publish_memory import LargeFrame
from geminga.errors import ProtocolError

if TYPE_CHECKING:
    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topics import Topics

log = logging.getLogger("geminga.broker")

LAST_WORDS_SECONDS = 0.5
CONNECTIONS_FEW = 8
"""So many may receive large pieces however much of the memory is used: it is 2 MiB, and a frame that comes in
pieces is copied together."""


class Connections:
    """All connections of the binary port."""

    def __init__(
        self, topics: Topics, rooms: Rooms, *, service_url: Callable[[socket.socket], str], generation: int
    ) -> None:
        self._topics = topics
        self._rooms = rooms
        self._service_url = service_url
        self._generation = generation
        self._turns = Turns()
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
        outbox = Outbox(self._rooms.send_memory, self._rooms.outgoing)
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
            nursery.start_soon(self._keep_alive, nursery, session, on_connected)
            frame = LargeFrame(partial(self._end_lost, nursery, session))
            turn = Turn(self._turns, self._rooms.clock)
            reader = Reader(sock, session, frame, turn, is_crowded=self._is_crowded)
            try:
                await reader.run()
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

    def _is_crowded(self) -> bool:
        return self.active > CONNECTIONS_FEW

    def _end_lost(self, nursery: trio.Nursery, session: Session) -> None:
        log.warning(
            "%s: connection closed: it stopped in the middle of a message, and other publishers need the "
            "memory that the part takes which has come",
            session.address,
        )
        nursery.cancel_scope.cancel()

    async def _write(self, nursery: trio.Nursery, outbox: Outbox, sock: socket.socket) -> None:
        try:
            await outbox.run(sock)
        except OSError:
            nursery.cancel_scope.cancel()

    async def _keep_alive(
        self, nursery: trio.Nursery, session: Session, on_connected: Callable[[], None]
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
            if session.is_silent():
                log.warning("%s: connection closed: no answer to PING", session.address)
                nursery.cancel_scope.cancel()
                return
            session.ping()
