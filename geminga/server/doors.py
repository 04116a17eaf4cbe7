"""The listening sockets of both ports, and the bounds on their connections."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from geminga.server import listener
from geminga.server.admission import Admission, Handler
from geminga.server.descriptors import Division
from geminga.server.room_settings import ListenSettings


class Sockets(NamedTuple):
    """Open as long as the process serves, also between two openings of the data directory: connections then
    wait in the system's queue.
    """

    binary: list[socket.socket]
    web: list[socket.socket]


def bind_all(listening: contextlib.ExitStack, wanted: ListenSettings) -> Sockets:
    """Raises `OSError`. `listening` closes the sockets."""
    sockets = Sockets([], [])
    for made, port in zip(sockets, (wanted.binary_port, wanted.web_port), strict=True):
        made += listener.bind(wanted.host, port)
        for sock in made:
            listening.enter_context(sock)
    return sockets


class Doors:
    """The sockets, and the bounds on the connections of one service."""

    def __init__(self, sockets: Sockets, division: Division) -> None:
        self.binary, self.web = sockets
        self.to_binary = Admission("binary port", division.binary_connections_max)
        self.to_web = Admission("admin port", division.web_connections_max)

    def close(self) -> None:
        """Refuse connections from now on."""
        for sock in (*self.binary, *self.web):
            sock.close()

    async def accept(
        self,
        service: trio.Nursery,
        binary: Sequence[tuple[socket.socket, Handler]],
        web: Sequence[tuple[socket.socket, Handler]],
        scope: trio.CancelScope,
    ) -> None:
        """Accept connections until `scope` is cancelled; they are served in `service`."""
        with scope:
            async with trio.open_nursery() as accepting:
                for handlers, admission in ((binary, self.to_binary), (web, self.to_web)):
                    for sock, handle in handlers:
                        accepting.start_soon(_accept, sock, service, admission, handle)

    def make_room_soon(self) -> Callable[[], None]:
        """A function for any thread, which frees a few descriptors by closing idle connections."""
        token = trio.lowlevel.current_trio_token()

        def make_room() -> None:
            self.to_web.close_longest_idle()
            self.to_binary.close_longest_idle()

        return functools.partial(token.run_sync_soon, make_room, idempotent=True)


async def _accept(sock: socket.socket, service: trio.Nursery, admission: Admission, handle: Handler) -> None:
    # A duplicate, since it is closed with the task.
    await listener.accept_forever(sock.dup(), service, admission, handle)
