"""Copies bytes between a client's socket and the broker's end of a pair, and applies rules to each frame."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from typing import Final, NamedTuple

import trio

from geminga import limits
from geminga.chaos.rules.deciding import Armed, Facts
from geminga.chaos.rules.faults import Door
from geminga.chaos.rules.killing import Points
from geminga.chaos.wire.frames import Frames, Piece
from geminga.wire import pulsar_pb2 as pb

READ_BYTES: Final = 64 * limits.KIB
HELD_BYTES_MAX: Final = limits.MIB
"""Of one direction: it bounds the rate at a latency, as a window does."""
THROTTLE_S: Final = 0.02
"""A throttled direction sends what its rate allows in this time at once."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: the close of the socket sends a reset."""


class _Leaving(NamedTuple):
    """Bytes that leave at a time, and then the end of the direction ("half-close") or of the connection
    ("cut", "close").
    """

    due_s: float
    data: bytes
    bytes_per_s: int = 0
    end: str = ""
    is_receipt: bool = False


def peer_version(connect: bytes) -> str:
    """The version that a client names in its CONNECT frame; "" if these bytes have none."""
    command = pb.BaseCommand()
    size = int.from_bytes(connect[4:8], "big")
    try:
        command.ParseFromString(connect[8 : 8 + size])
    except Exception:  # the generated code raises its own DecodeError, a ValueError in some versions
        return ""
    return command.connect.client_version


class Relay:
    """One connection. `run` ends when both directions have."""

    def __init__(
        self, door: Door, points: Points, client: socket.socket, broker: socket.socket, address: str
    ) -> None:
        """Takes over both sockets, which do not block."""
        self._door = door
        self.points = points
        self._client = client
        self._broker = broker
        self.address = address
        self.version = ""

    async def run(self) -> None:
        """Return when the connection has ended. Closes both sockets, also when cancelled."""
        with self._client, self._broker:
            async with trio.open_nursery() as nursery:
                inward = _Direction(self, self._door, "in", self._client, self._broker)
                outward = _Direction(self, self._door, "out", self._broker, self._client)
                nursery.start_soon(inward.run, nursery.cancel_scope)
                nursery.start_soon(outward.run, nursery.cancel_scope)

    def hear_connect(self, frame: bytes) -> None:
        self.version = peer_version(frame) or self.version

    def reset(self) -> None:
        """Let the client see a reset once all copies of its socket are closed; the broker sees the end."""
        with contextlib.suppress(OSError):
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class _Direction:
    def __init__(
        self, relay: Relay, door: Door, name: str, source: socket.socket, sink: socket.socket
    ) -> None:
        self._relay = relay
        self._door = door
        self._name = name
        self._source = source
        self._sink = sink
        self._frames = Frames()
        self._leaving: deque[_Leaving] = deque()
        self._held_bytes = 0
        self._changed = trio.Event()
        self._hit: tuple[Armed, ...] = ()
        """The rules that have hit the current frame."""
        self._last_due_s = 0.0

    async def run(self, connection: trio.CancelScope) -> None:
        """Copy until the source ends. A failed socket ends the whole connection."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, connection)
                await self._read()
        except* OSError:
            connection.cancel()

    async def _read(self) -> None:
        while True:
            while self._held_bytes >= HELD_BYTES_MAX:
                await self._change()
            # Waits first, even if there are bytes: the reader of this connection may still wait for the
            # client's own socket, and is woken by the same bytes.
            await trio.lowlevel.wait_readable(self._source)
            try:
                data = self._source.recv(READ_BYTES)
            except BlockingIOError:
                continue
            if not data:
                # The broker never ends only its own direction: it has closed the connection.
                end = "half-close" if self._name == "in" else "close"
                self._put(_Leaving(self._last_due_s, self._frames.rest(), end=end))
                return
            for piece in self._frames.cut(data):
                self._take(piece)

    def _take(self, piece: Piece) -> None:
        """Decide what becomes of the piece."""
        if piece.is_first:
            if piece.command == "CONNECT":
                self._relay.hear_connect(piece.data)
            self._hit = self._door.hit(self._facts(piece)) if self._door.armed else ()
        data, rate, end, delay_s = piece.data, 0, "", 0.0
        for armed in self._hit:
            rule = armed.rule
            if rule.kind == "latency":
                delay_s += rule.latency_ms / 1000
            elif rule.kind == "throttle":
                rate = min(rate or rule.bytes_per_s, rule.bytes_per_s)
            elif rule.kind == "flip" and piece.is_first:
                data = flipped(data, armed)
            elif rule.kind in ("cut", "half-close"):
                data, end = b"", rule.kind
        # Never before an earlier frame: a delay that ends, or that is shorter, does not reorder a stream.
        due_s = max(self._last_due_s, trio.current_time() + delay_s)
        self._last_due_s = due_s
        self._put(_Leaving(due_s, data, rate, end, piece.command == "SEND_RECEIPT"))

    def _facts(self, piece: Piece) -> Facts:
        relay = self._relay
        return Facts(client=relay.address, version=relay.version, command=piece.command, direction=self._name)

    def _put(self, leaving: _Leaving) -> None:
        self._leaving.append(leaving)
        self._held_bytes += len(leaving.data)
        self._tell()

    async def _write(self, connection: trio.CancelScope) -> None:
        while True:
            while not self._leaving:
                await self._change()
            leaving = self._leaving.popleft()
            await trio.sleep_until(leaving.due_s)
            await self._send(leaving.data, leaving.bytes_per_s)
            if leaving.is_receipt:
                self._relay.points.passed("receipt-sent")
            self._held_bytes -= len(leaving.data)
            self._tell()
            if leaving.end == "half-close":
                with contextlib.suppress(OSError):
                    self._sink.shutdown(socket.SHUT_WR)
                await self._drop()
            if leaving.end == "cut":
                self._relay.reset()
            if leaving.end:
                connection.cancel()
                return

    async def _drop(self) -> None:
        """Drop what still comes for a direction that has ended, so that its sender is not blocked. Return
        when the sender has closed the connection.
        """
        while not any(leaving.end in ("close", "cut") for leaving in self._leaving):
            self._leaving.clear()
            self._held_bytes = 0
            self._tell()
            await self._change()

    async def _send(self, data: bytes, bytes_per_s: int) -> None:
        step = max(1, int(bytes_per_s * THROTTLE_S)) if bytes_per_s else len(data)
        at = 0
        while at < len(data):
            try:
                sent = self._sink.send(memoryview(data)[at : at + step])
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sink)
                continue
            at += sent
            if bytes_per_s:
                await trio.sleep(sent / bytes_per_s)

    async def _change(self) -> None:
        await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def flipped(data: bytes, armed: Armed) -> bytes:
    """The data with one bit flipped, chosen by the rule's generator."""
    place = armed.random.randrange(len(data) * 8)
    damaged = bytearray(data)
    damaged[place // 8] ^= 1 << place % 8
    return bytes(damaged)
