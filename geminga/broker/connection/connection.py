"""One client's socket: reads, feeds the session, keeps the connection alive, writes, closes."""

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

# Answers to what came before a protocol error should still reach the client. One that does not read may not
# keep the connection open for that.
LAST_WORDS_SECONDS = 0.5
# A frame that comes in pieces is copied together, which costs a busy publisher more than the memory is worth:
# these pieces take 2 MiB at most.
CONNECTIONS_FEW = 8
"""Up to this number, connections receive large pieces even if much of the memory is used."""


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
        """A unique producer name. Its generation is an id that each start of this data directory
        takes once.
        """
        # Deduplication keeps sequence ids by name beyond a restart. A counter alone would give a new producer
        # the name of an old one after it, and its first messages would be taken for duplicates.
        self._producers_named += 1
        return f"{self._rooms.settings.cluster}-{self._generation}-{self._producers_named - 1}"

    async def serve(self, sock: socket.socket, on_connected: Callable[[], None]) -> None:
        """Serve one client until it leaves, breaks the protocol, or the broker stops. Closes the socket.

        `on_connected` is called once the client has sent CONNECT.
        """
        self.active += 1
        self.created += 1
        with sock:
            try:
                await self._serve(sock, on_connected)
            except Exception:
                # The connection boundary. A bug that one client triggers must not end the broker for all
                # others, so its connection is closed; the error is never swallowed further down.
                log.exception("a connection ended by a bug in Geminga; all others go on")
            finally:
                self.active -= 1

    async def _serve(self, sock: socket.socket, on_connected: Callable[[], None]) -> None:
        outbox = Outbox(self._rooms.send_memory, self._rooms.outgoing)
        try:
            host, port = sock.getpeername()[:2]
        except OSError:
            return  # reset by the client between accept and here
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
                pass  # the client is gone; clients that are killed end this way, so it is not worth a line
            finally:
                self._rooms.publish_memory.release(frame)
                session.end()
                # Requests under way are cancelled with their client: each undoes what it began, or runs in
                # the nursery of the topics if it must not stop half-way (`Topics._to_the_end`).
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await session.leave()
                outbox.close()

    def _is_crowded(self) -> bool:
        return self.active > CONNECTIONS_FEW

    def _end_lost(self, nursery: trio.Nursery, session: Session) -> None:
        log.warning(
            "%s: connection closed: it stopped in the middle of a message, and other publishers need the "
            "memory of the part that has arrived",
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
        # A connection without CONNECT holds a descriptor and may be no client at all: a port scan, a health
        # check, an HTTP request that went to the wrong port.
        with trio.move_on_after(limits.HANDSHAKE_SECONDS):
            await session.connected.wait()
        if session.state is State.NEW:
            log.warning(
                "%s: connection closed: no CONNECT in %s s", session.address, limits.HANDSHAKE_SECONDS
            )
            nursery.cancel_scope.cancel()
            return
        on_connected()
        # Pulsar's scheme (`PulsarHandler`): a PING at each interval, and the end if nothing at all has come
        # by the next one. So a dead peer is found within two intervals.
        while True:
            await trio.sleep(self._rooms.settings.keep_alive_s)
            if session.is_silent():
                log.warning("%s: connection closed: no answer to PING", session.address)
                nursery.cancel_scope.cancel()
                return
            session.ping()
