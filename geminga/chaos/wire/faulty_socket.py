"""A client's socket that a relay can take over while the broker serves it."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar, cast

import trio

from geminga.chaos.rules.faults import Door, Faults
from geminga.chaos.rules.killing import Points
from geminga.chaos.wire.relay import Relay, peer_version

T = TypeVar("T")
Serve = Callable[[socket.socket, T], Awaitable[None]]


class FaultySocket:
    """The part of a socket that a connection uses. Without a relay, `recv`, `send` and `fileno` are the
    socket's own methods: nothing lies between.
    """

    __slots__ = ("_greeting", "_relayed", "_sock", "fileno", "recv", "send")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._relayed: socket.socket | None = None
        self._greeting = b""
        self.send = sock.send
        self.fileno = sock.fileno
        self.recv: Callable[[int], bytes] = self._recv_first

    def _recv_first(self, size: int) -> bytes:
        """The first bytes of a client say what it is; a relay that comes later has no other way to know."""
        self._greeting = self._sock.recv(size)
        self.recv = self._sock.recv
        return self._greeting

    def relay(self, door: Door, points: Points) -> Relay | None:
        """A relay, to be run by the caller, that owns the socket from now on; None if there is one already.
        Raises OSError if the system has no descriptor left.
        """
        if self._relayed is not None or self._sock.fileno() < 0:
            return None
        host, port = self._sock.getpeername()[:2]
        own, other = socket.socketpair()
        own.setblocking(False)
        other.setblocking(False)
        # Another descriptor of the same socket: the connection may be waiting for the first one right now.
        relay = Relay(door, points, self._sock.dup(), other, f"{host}:{port}")
        relay.version = peer_version(self._greeting)
        self._relayed = own
        self.recv, self.send, self.fileno = own.recv, own.send, own.fileno
        return relay

    def getpeername(self) -> tuple[str, int]:
        return cast("tuple[str, int]", self._sock.getpeername())

    def getsockname(self) -> tuple[str, int]:
        return cast("tuple[str, int]", self._sock.getsockname())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._relayed is not None:
            self._relayed.close()
        self._sock.close()


class WireFaults:
    """All sockets of the binary port."""

    def __init__(self, faults: Faults, nursery: trio.Nursery) -> None:
        """Relays run in `nursery`."""
        self._door = faults.doors["wire"]
        self._points = Points(faults.doors["process"])
        self._nursery = nursery
        self._sockets: set[FaultySocket] = set()
        # A relay is also what sees that a receipt was sent, which is a point of the process.
        self._door.on_armed.add(self._relay_all)
        self._points.door.on_armed.add(self._relay_all)

    def faulty(self, serve: Serve[T]) -> Serve[T]:
        """`serve` for a socket that a relay can take over."""

        async def serve_wrapped(sock: socket.socket, visit: T) -> None:
            wrapped = FaultySocket(sock)
            self._sockets.add(wrapped)
            if self._door.armed or self._points.door.armed:
                self._relay(wrapped)
            try:
                # A connection uses only the methods that the wrapped socket has.
                await serve(cast("socket.socket", wrapped), visit)
            finally:
                self._sockets.discard(wrapped)

        return serve_wrapped

    def _relay_all(self) -> None:
        for wrapped in self._sockets:
            self._relay(wrapped)

    def _relay(self, wrapped: FaultySocket) -> None:
        try:
            relay = wrapped.relay(self._door, self._points)
        except OSError:
            return  # reset meanwhile, or no descriptor left: this connection stays as it is
        if relay is not None:
            self._nursery.start_soon(relay.run)
