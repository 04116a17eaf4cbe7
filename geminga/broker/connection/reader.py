"""Reads one connection: when, how much at a time, and when the other connections have their turn.

No bytes are read ahead: a chunk is received, cut into commands and served before the next one. A turn may
end between two commands of a chunk; the next turn first serves the rest of the chunk.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import trio

from geminga import limits
from geminga.broker.connection.session import Session
from geminga.broker.connection.turns import SLICE_COMMANDS, TURN_S, Turn
from geminga.broker.flow.publish_memory import PROGRESS_S, SMALL_FRAME_BYTES_MAX, LargeFrame, PublishMemory
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import BadFrame, Command, Sends, singly
from geminga.wire.parse import ack_parts

# All of a chunk is cut into commands in one go, which no turn can interrupt, so the size of a chunk follows
# from what was in the last one. Large chunks are worth it: fewer system calls, and fewer frames that come in
# pieces.
CHUNK_COMMANDS_MAX = 256
"""A chunk with more commands was too large; the next one is smaller."""
CHUNK_COMMANDS_MIN = 64
"""After a chunk with at most this many commands, the next one may be larger."""
# The number of commands alone was not enough: an acknowledgement may name thousands of messages. A client
# that sent such commands without end kept the loop for 100 ms at a time, and a publisher's round trip beside
# it fell from 135 to 30 ms with this bound.
CHUNK_S_MAX = 2 * TURN_S
"""A chunk that kept the loop longer than this was too large as well. After a chunk that took a quarter, the
next one may be larger.
"""
FEW_COMMANDS = 8
"""A chunk with at most this many commands was most likely all that had arrived: the reader waits to be
woken.
"""
REQUESTS_OPEN_MAX = 1000
"""The limit of requests of one connection that wait for an answer; at the limit its socket is not read."""


def next_receive_bytes(receive_bytes: int, chunk_bytes: int, commands: int, took_s: float) -> int:
    """How much to receive next, after a chunk of `chunk_bytes` (of `receive_bytes` at most) with this many
    commands, whose longest slice kept the loop this long.
    """
    if commands > CHUNK_COMMANDS_MAX or took_s > CHUNK_S_MAX:
        # From what came, not from what was allowed: a short chunk with many commands would hardly get
        # smaller.
        return max(limits.RECEIVE_BYTES_MIN, min(receive_bytes, chunk_bytes) // 4)
    # Only a full chunk shows that the client sends more than is received at a time.
    if chunk_bytes >= receive_bytes and commands <= CHUNK_COMMANDS_MIN and took_s <= CHUNK_S_MAX / 4:
        return min(limits.RECEIVE_BYTES, receive_bytes * 4)
    return receive_bytes


class Reader:
    """Reads a connection's socket, and passes the commands to its session."""

    def __init__(
        self,
        sock: socket.socket,
        session: Session,
        frame: LargeFrame,
        turn: Turn,
        *,
        is_crowded: Callable[[], bool],
    ) -> None:
        """`is_crowded()` is true if there are too many connections for all to receive large chunks."""
        self._sock = sock
        self._session = session
        self._decoder = session.decoder
        self._memory: PublishMemory = session.rooms.publish_memory
        self._frame = frame
        self._turn = turn
        self._is_crowded = is_crowded
        self._receive_bytes = limits.RECEIVE_BYTES_FIRST

    async def run(self) -> None:
        """Return when the peer has left. Raises `ProtocolError` and `OSError`. After an error or when
        cancelled, commands that were not served are lost, and the caller releases the frame.
        """
        session, decoder, frame, turn = self._session, self._decoder, self._frame, self._turn
        monotonic_s = session.rooms.clock.monotonic_s
        more_expected = True
        while True:
            frame_bytes, before_bytes = decoder.frame_bytes, decoder.partial_bytes
            if frame_bytes > SMALL_FRAME_BYTES_MAX:
                chunk = await self._receive_large(frame_bytes, before_bytes)
            else:
                chunk = await self._receive(expected=more_expected)
            if not chunk:
                return
            session.heard()
            began_s = monotonic_s()
            try:
                commands = decoder.feed(chunk)
            except BadFrame as error:
                # What came before the bad frame was valid, and counts as if it had come in a chunk of its
                # own.
                await self._serve_singly(singly(error.commands))
                raise
            count = commands_left = decoder.frames
            chunk_bytes = len(chunk)
            del chunk  # or each connection that waits below would keep one
            if decoder.has_long_ack:
                took_s = await self._serve_singly(singly(commands))
                commands_left = 0
            elif count > SLICE_COMMANDS:
                cut_s = monotonic_s() - began_s
                commands_left, slice_s = await self._serve_slices(commands)
                took_s = max(cut_s, slice_s)
            else:
                session.serve(commands)
                took_s = monotonic_s() - began_s
            more_expected = count > FEW_COMMANDS or chunk_bytes >= self._receive_bytes
            self._receive_bytes = next_receive_bytes(self._receive_bytes, chunk_bytes, count, took_s)
            del commands  # they refer to the chunk
            if frame_bytes > SMALL_FRAME_BYTES_MAX and decoder.partial_bytes != before_bytes + chunk_bytes:
                self._memory.hand_on(frame)  # it is whole, and another may have begun
            # Back-pressure comes last: what was read is served whatever the limits are, as in Pulsar, since a
            # SEND that was read cannot be refused without failing its producer.
            if session.throttled_until_s:
                await self._throttled()
            if session.outbox.is_behind():
                await self._hold_back(session.outbox.wait_taken)
            if session.requests_open >= REQUESTS_OPEN_MAX:
                await self._hold_back(self._requests_answered)
            if turn.is_over_with_chunk(commands_left):
                await turn.end()

    async def _serve_slices(self, commands: list[Command]) -> tuple[int, float]:
        """Serve commands that may be too many for one turn. Returns how many the turn has not counted yet,
        and the duration of the longest slice.
        """
        session, turn, monotonic_s = self._session, self._turn, self._session.rooms.clock.monotonic_s
        begin, frames, longest_s = 0, 0, 0.0
        for at, command in enumerate(commands, 1):
            frames += len(command.entries) if isinstance(command, Sends) else 1
            if frames < SLICE_COMMANDS or at == len(commands):
                continue
            began_s = monotonic_s()
            session.serve(commands[begin:at])
            longest_s = max(longest_s, monotonic_s() - began_s)
            if turn.is_over(frames):
                await turn.end()
            begin, frames = at, 0
        session.serve(commands[begin:])
        return frames, longest_s

    async def _serve_singly(self, commands: Iterable[Command]) -> float:
        """Serve commands with an acknowledgement among them that may name 400,000 entries: 0.3 s in one turn.
        Nothing else of the connection is served between its parts. Returns the duration of the longest step.
        """
        session, turn, monotonic_s = self._session, self._turn, self._session.rooms.clock.monotonic_s
        longest_s = 0.0
        for command in commands:
            parts = ack_parts(command) if isinstance(command, pb.CommandAck) else (command,)
            for part in parts:
                began_s = monotonic_s()
                session.serve([part])
                longest_s = max(longest_s, monotonic_s() - began_s)
                if turn.is_over(1 if part is command else SLICE_COMMANDS):
                    await turn.end()
        return longest_s

    async def _receive(self, *, expected: bool) -> bytes:
        """The next chunk, outside a large frame. Waits for the socket first unless bytes are `expected`."""
        session, memory, sock = self._session, self._memory, self._sock
        while True:
            # A connection without producers brings no entries, so it is read however full the memory is.
            if session.producers and not memory.has_room():
                with session.held_back():
                    await memory.wait_room()
                self._turn.begin()
            if self._receive_bytes > limits.RECEIVE_BYTES_TIGHT and self._is_crowded() and memory.is_tight():
                self._receive_bytes = limits.RECEIVE_BYTES_TIGHT
            # trio's `wait_readable` costs a turn of the loop, a failed `recv` a system call: after a chunk
            # with few commands the wait is the cheaper one.
            if expected:
                try:
                    return sock.recv(self._receive_bytes)
                except BlockingIOError:
                    pass
            expected = True
            await trio.lowlevel.wait_readable(sock)
            self._turn.begin()

    async def _receive_large(self, frame_bytes: int, received_bytes: int) -> bytes:
        """The next chunk of a large frame, which is received only in its turn."""
        memory, frame, sock = self._memory, self._frame, self._sock
        if not frame.held_bytes:
            memory.begin(frame, received_bytes)
        # Beyond the frame's end, as beyond any other: the rest of the chunk is the beginning of what follows,
        # and stopping at the end would double the receive calls of middling messages.
        wanted_bytes = min(frame_bytes - received_bytes + limits.RECEIVE_BYTES_FIRST, limits.RECEIVE_BYTES)
        wanted_bytes = max(wanted_bytes, self._receive_bytes)
        while True:
            # A turn reserves memory for the whole frame. A sender that has nothing to send at this moment
            # gives it back below, so that silent connections cannot reserve all of the memory.
            had_turn = frame.has_turn
            if not had_turn and not memory.try_take_turn(frame, frame_bytes, received_bytes):
                with self._session.held_back():
                    await memory.take_turn(frame, frame_bytes, received_bytes)
                self._turn.begin()
            try:
                chunk = sock.recv(wanted_bytes)
            except BlockingIOError:
                pass
            else:
                if not frame.is_progressing(received_bytes + len(chunk)):
                    memory.lose_turn(frame, received_bytes + len(chunk))
                return chunk
            if not had_turn:
                memory.leave_turn(frame, received_bytes)  # nothing to receive in it
                came = await self._readable_by(trio.current_time() + PROGRESS_S)
            else:
                came = frame.is_progressing(received_bytes)
                if came:
                    await self._readable_by(frame.progress_due_s)
            if not came:
                # The frame now counts as lost: if others need its memory it is disconnected. If not, its
                # sender may go on whenever it likes.
                memory.lose_turn(frame, received_bytes)
                await self._readable_by(math.inf)

    async def _readable_by(self, deadline_s: float) -> bool:
        """Sleep until the socket is readable; False if it is not readable by then."""
        with trio.move_on_at(deadline_s) as waiting:
            await trio.lowlevel.wait_readable(self._sock)
        self._turn.begin()
        return not waiting.cancelled_caught

    async def _hold_back(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Do not read until `wait()` returns. `wait` must sleep, because another turn begins afterwards."""
        # Here the broker is the slow one, but a frame's memory is as lost to others as with a slow sender, so
        # its turn lasts no longer than that of one. If it is kept, its sender gets a whole new period.
        with self._session.held_back():
            if self._frame.has_turn:
                with trio.move_on_after(PROGRESS_S) as waiting:
                    await wait()
                if waiting.cancelled_caught:
                    self._memory.lose_turn(self._frame, self._decoder.partial_bytes)
                    await wait()
                else:
                    self._frame.restart_watch(self._decoder.partial_bytes)
            else:
                await wait()
        self._turn.begin()

    async def _throttled(self) -> None:
        left_s = self._session.throttled_for_s()
        if left_s > 0:
            await self._hold_back(partial(trio.sleep, left_s))

    async def _requests_answered(self) -> None:
        await self._session.wait_requests_below(REQUESTS_OPEN_MAX)
