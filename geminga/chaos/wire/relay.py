"""Copies bytes between a client's socket and the broker's end of a pair, and applies rules to each frame."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from typing import Final, NamedTuple

import trio

from geminga import limits
from geminga.chaos.rules.can_hit import kinds_at
from geminga.chaos.rules.deciding import Armed, Facts
from geminga.chaos.rules.faults import Door
from geminga.chaos.rules.killing import Points, has
from geminga.chaos.rules.waiting import STEP_S, wait_while
from geminga.chaos.wire.answers import error_answer, request_bytes
from geminga.chaos.wire.frames import Frames, Piece
from geminga.wire import pulsar_pb2 as pb

READ_BYTES: Final = 64 * limits.KIB
HELD_BYTES_MAX: Final = limits.MIB
"""Of one direction: it bounds the rate at a latency, as a window does."""
WRITABLE_S: Final = 0.001
"""A socket that takes bytes is seen to before this ends: the loop looks at sockets before deadlines."""
THROTTLE_S: Final = 0.02
"""A throttled direction sends what its rate allows in this time at once."""
_OF_UNKNOWN: Final = kinds_at("wire", "unknown") - {"black-hole"}
"""Kinds for bytes of an unknown frame: to drop a part of a frame would break the framing of what follows."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: the close of the socket sends a reset."""


class _Leaving(NamedTuple):
    """Bytes that leave at a time, and then the end of the direction ("half-close") or of the connection
    ("cut", "close"). One leaves after the other, so a shorter delay does not reorder a stream.
    """

    read_s: float
    """When the bytes came; they leave at once, or after the delays."""
    data: bytes
    delays: tuple[tuple[Armed, float], ...] = ()
    """Rules with the seconds that each of them holds the bytes up, unless it is over before."""
    hit: tuple[Armed, ...] = ()
    """The rules that say how fast the bytes leave."""
    is_first: bool = False
    """Whether a frame begins with them."""
    end: str = ""
    is_receipt: bool = False
    answer: bytes = b""
    """Leaves in the other direction instead of the data."""


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
            outward = _Direction(self, self._door, "out", self._broker, self._client)
            inward = _Direction(self, self._door, "in", self._client, self._broker, outward)
            # The broker may have written a part of a frame. The rest is written as soon as the client's
            # socket takes more, to the pair from now on, and is seen before any answer of ours.
            with trio.move_on_after(WRITABLE_S) as full:
                await trio.lowlevel.wait_writable(self._client)
            if full.cancelled_caught:
                outward.begin_within_a_frame()
            async with trio.open_nursery() as nursery:
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
        self,
        relay: Relay,
        door: Door,
        name: str,
        source: socket.socket,
        sink: socket.socket,
        answers: _Direction | None = None,
    ) -> None:
        """`answers` is the direction of answers to what comes here."""
        self._answers = answers
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
        self._delays: tuple[tuple[Armed, float], ...] = ()
        """Of each piece of the current frame."""
        self._is_between = True
        """Whether what was put last has ended a frame."""
        self._inserted: deque[bytes] = deque()
        """Frames of our own that wait for the end of a frame."""
        self._inserted_bytes = 0
        self._request: bytearray | None = None
        """The beginning of a request that will be answered with an error, until it is long enough."""

    def begin_within_a_frame(self) -> None:
        self._is_between = False

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
                self._put(_Leaving(0.0, self._frames.rest(), end=end))
                return
            for piece in self._frames.cut(data):
                self._take(piece)

    def _take(self, piece: Piece) -> None:
        """Decide what becomes of the piece."""
        if piece.is_first:
            self._begin(piece)
        data, end, answer = piece.data, "", b""
        for armed in self._hit:
            kind = armed.rule.kind
            if kind == "flip" and piece.is_first and data:
                data = flipped(data, armed)
            elif kind in ("cut", "half-close"):
                data, end = b"", kind
            elif kind == "black-hole":
                data, self._request = b"", None
            elif kind == "error":
                data = b""
        if self._request is not None:
            answer = self._answer_to(self._request, piece)
        if data or end or answer:
            is_receipt = piece.command == "SEND_RECEIPT" and bool(data)
            now_s = trio.current_time()
            self._put(_Leaving(now_s, data, self._delays, self._hit, piece.is_first, end, is_receipt, answer))
        self._is_between = piece.is_last
        self._put_inserted()

    def _begin(self, piece: Piece) -> None:
        """Decide which rules hit the frame that begins."""
        if piece.command:
            self._is_between = True
            self._put_inserted()
        if piece.command == "CONNECT":
            self._relay.hear_connect(piece.data)
        self._hit = ()
        if self._door.armed:
            kinds = kinds_at("wire", self._name) if piece.command else _OF_UNKNOWN
            self._hit = self._door.hit(self._facts(piece), kinds)
        self._delays = tuple((one, one.delay_s()) for one in self._hit if one.rule.kind == "latency")
        self._request = bytearray() if has(self._hit, "error") else None

    def _answer_to(self, request: bytearray, piece: Piece) -> bytes:
        """The answer to the request that this piece belongs to, once it has come far enough."""
        request += piece.data
        if len(request) < request_bytes(request):
            return b""
        self._request = None
        rule = next(one.rule for one in self._hit if one.rule.kind == "error")
        return error_answer(bytes(request), rule.error, rule.message or f"{rule.error} (injected)")

    async def insert(self, frame: bytes) -> None:
        """Send a frame of our own behind a whole frame. Waits while this direction is full."""
        # What waits for the end of a frame does not count as held, or that end would never be read.
        while self._held_bytes + self._inserted_bytes >= HELD_BYTES_MAX:
            await self._change()
        self._inserted.append(frame)
        self._inserted_bytes += len(frame)
        self._put_inserted()

    def _put_inserted(self) -> None:
        while self._is_between and self._inserted:
            frame = self._inserted.popleft()
            self._inserted_bytes -= len(frame)
            self._put(_Leaving(0.0, frame))

    def _facts(self, piece: Piece) -> Facts:
        relay = self._relay
        return Facts(client=relay.address, version=relay.version, command=piece.command, direction=self._name)

    def _put(self, leaving: _Leaving) -> None:
        self._leaving.append(leaving)
        self._held_bytes += len(leaving.data) + len(leaving.answer)
        self._tell()

    async def _write(self, connection: trio.CancelScope) -> None:
        while True:
            while not self._leaving:
                await self._change()
            leaving = self._leaving.popleft()
            await self._until_due(leaving)
            if leaving.answer and self._answers is not None:
                await self._answers.insert(leaving.answer)
            await self._send(leaving)
            if leaving.is_receipt:
                self._relay.points.passed("receipt-sent")
            self._held_bytes -= len(leaving.data) + len(leaving.answer)
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

    async def _until_due(self, leaving: _Leaving) -> None:
        """Return when no delay holds it up any more, soon after the end of a rule."""
        while leaving.delays:
            delay_s = sum(delay_s for armed, delay_s in leaving.delays if not self._door.is_over(armed))
            left_s = leaving.read_s + delay_s - trio.current_time()
            if left_s <= 0:
                return
            await trio.sleep(min(left_s, STEP_S))

    async def _drop(self) -> None:
        """Drop what still comes for a direction that has ended, so that its sender is not blocked. Return
        when the sender has closed the connection.
        """
        while not any(leaving.end in ("close", "cut") for leaving in self._leaving):
            self._leaving.clear()
            self._held_bytes = 0
            self._tell()
            await self._change()

    async def _send(self, leaving: _Leaving) -> None:
        """Send the data, in the pieces and at the rate of rules that are not over."""
        rest = memoryview(leaving.data)
        while rest:
            is_begun = len(rest) < len(leaving.data) or not leaving.is_first
            for armed in self._lasting(leaving.hit, "slice") if is_begun else ():
                await trio.lowlevel.checkpoint()  # what was sent may be read alone, also without a latency
                await wait_while(self._door, armed, armed.rule.latency_ms / 1000)
            sizes = [armed.rule.slice_bytes for armed in self._lasting(leaving.hit, "slice")]
            size_bytes = min(sizes, default=len(rest))
            await self._send_slice(rest[:size_bytes], leaving.hit)
            rest = rest[size_bytes:]

    async def _send_slice(self, rest: memoryview, hit: tuple[Armed, ...]) -> None:
        while rest:
            rates = [armed.rule.bytes_per_s for armed in self._lasting(hit, "throttle")]
            step = max(1, int(min(rates) * THROTTLE_S)) if rates else len(rest)
            try:
                sent = self._sink.send(rest[:step])
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sink)
                continue
            rest = rest[sent:]
            if rates:
                await trio.sleep(sent / min(rates))

    def _lasting(self, hit: tuple[Armed, ...], kind: str) -> list[Armed]:
        """Those of this kind that are not over."""
        return [one for one in hit if one.rule.kind == kind and not self._door.is_over(one)]

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
