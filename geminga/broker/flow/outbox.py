"""One connection's way out: frames are queued by plain calls and leave in as few writes as the socket takes.

What is written during a turn of the loop leaves at its end, by `Outgoing`, without a task being woken for it;
what is large, or does not leave at once, is the part of the outbox's task.

Dispatch looks at `is_writable()` before it takes more from storage, and reads no more than `room_bytes()`, so
that a slow peer costs at most `OUTBOX_BYTES_HIGH` and one read. What all outboxes hold is bounded by
`SendMemory`. Receipts and answers are small and are always taken.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import trio

from geminga import limits
from geminga.broker.flow.send_memory import SendMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer = bytes | bytearray | memoryview

log = logging.getLogger("geminga.broker")

PARTS_PER_WRITE_MAX = 4096
LEAVING_BYTES_MAX = 64 * limits.KIB
"""More than this is the task's to send: it takes its turn among the others for each piece."""
STALL_S = 2.0
"""So long a peer may take less than..."""
STALL_BYTES = 64 * limits.KIB
"""...this while others wait for the memory that its outbox holds; then it is disconnected."""

RELEASE_BYTES_MIN = 256 * limits.KIB
"""So much of what is being sent is worth a copy of the rest when memory is tight."""


class PeerTooSlow(OSError):
    """The peer does not read, and others need the memory of what waits for it."""


class _Watch(NamedTuple):
    """A peer is looked at until then."""

    until_s: float
    left_bytes: int
    """Of what is being sent, when the watch began."""


class Outbox:
    """A queue of buffers in front of one socket; `run` is its only task, and what it finds no time for leaves
    by `send_now` while it sleeps.
    """

    __slots__ = (
        "_blocked",
        "_idle",
        "_is_held",
        "_is_leaving",
        "_memory",
        "_outgoing",
        "_parts",
        "_sleeping",
        "_sock",
        "_unblocked",
        "_wake",
        "bytes_sent",
        "closed",
        "on_writable",
        "pending_bytes",
    )

    def __init__(self, memory: SendMemory, outgoing: Outgoing | None = None) -> None:
        """`outgoing` is what calls `send_now` at the end of a turn; without one the task sends all."""
        self._memory = memory
        self._outgoing = outgoing
        self._sock: socket.socket | None = None
        self._parts: list[Buffer] = []
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._unblocked = trio.Event()
        self._sleeping = False
        self._is_leaving = False
        """Handed to `outgoing`, for the end of this turn."""
        self._blocked = False
        self._is_held = False
        """Memory was tight at the last write: nothing more until the socket has taken all and can take more.
        """
        self.pending_bytes = 0
        self.bytes_sent = 0
        self.closed = False
        self.on_writable: set[Callable[[], None]] = set()
        """Called when `is_writable()` may have become true."""

    def write(self, data: Buffer | Sequence[Buffer]) -> None:
        """Queue one buffer or several, in order. Never blocks; after the close it does nothing."""
        if self.closed:
            return
        if isinstance(data, bytes | bytearray | memoryview):
            self._parts.append(data)
            size_bytes = len(data)
        else:
            self._parts.extend(data)
            size_bytes = sum(map(len, data))
        self.pending_bytes += size_bytes
        if self._memory.take(size_bytes):
            self._is_held = True
        if self.pending_bytes > limits.OUTBOX_BYTES_HIGH:
            self._blocked = True
        if self._sleeping:
            outgoing = self._outgoing
            is_large = self.pending_bytes > LEAVING_BYTES_MAX
            if is_large or outgoing is None or not outgoing.is_sending or self.is_behind():
                self._wake_task()
            elif not self._is_leaving:
                self._is_leaving = True
                outgoing.add(self)

    def send_now(self) -> None:
        """At the end of a turn: give the socket what was written, if it takes it. Wakes no task, as nothing
        may there: what has to wait for the peer, or to be told, is left to the outbox's own task in the next
        turn.
        """
        self._is_leaving = False
        sock = self._sock
        if not self._sleeping or not self._parts or sock is None:
            return
        if self._memory.has_waiting():
            self._wake_task_soon()
            return
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            sent = sock.send(data)
        except OSError:
            self._wake_task_soon()  # it meets the same
            return
        if sent == len(data):
            parts.clear()
        else:
            self._parts = [memoryview(data)[sent:]]
            self._wake_task_soon()
        self._taken(sent)

    def _wake_task(self) -> None:
        if self._sleeping:
            self._sleeping = False
            self._wake.set()

    def _wake_task_soon(self) -> None:
        trio.lowlevel.current_trio_token().run_sync_soon(self._wake_task)

    def is_writable(self) -> bool:
        """Whether more messages may be queued for this connection. If not, `on_writable` is called later."""
        if self.closed or self.is_behind():
            return False
        memory = self._memory
        if memory.pending_bytes >= memory.full_bytes:
            memory.wait(self.has_room)
            return False
        return True

    def room_bytes(self) -> int:
        """How many bytes of messages to read for this connection at once, while it `is_writable()`. One
        message that is larger may go alone.
        """
        return self._memory.read_bytes_max(limits.OUTBOX_BYTES_HIGH - self.pending_bytes)

    def has_room(self) -> None:
        """Memory is not full any more: for `SendMemory`, which was asked to tell."""
        self._tell_writable()

    def is_behind(self) -> bool:
        """Whether the peer has to take what waits for it before it is listened to. What others hold is no
        part of it: a connection is read on while they fill all of the memory.
        """
        return (self._blocked or self._is_held) and not self.closed

    async def wait_taken(self) -> None:
        """Return once the peer is not behind, or the outbox is closed. Cancelling leaves nothing behind."""
        while self.is_behind():
            self._unblocked = trio.Event()
            await self._unblocked.wait()

    def close(self) -> None:
        """Drop what is queued and wake everyone who waits for room, so that they see `closed`."""
        self.closed = True
        self._parts.clear()
        pending_bytes, self.pending_bytes = self.pending_bytes, 0
        self._memory.leave(self.has_room)
        self._memory.give(pending_bytes)
        self._wake.set()
        self._idle.set()
        self._tell_writable()

    async def run(self, sock: socket.socket) -> None:
        """Write what is queued until cancelled or closed. Raises `OSError` when the peer is gone, or has to
        be disconnected.
        """
        self._sock = sock
        while not self.closed:
            if not self._parts:
                if self._is_held:
                    await self._let_go(sock)
                    continue
                self._idle.set()
                self._idle = trio.Event()
                self._wake = trio.Event()
                self._sleeping = True
                await self._wake.wait()
                continue
            await self._write_some(sock)

    async def drained(self) -> None:
        """Return when everything queued has been handed to the socket, or the outbox is closed."""
        while self.pending_bytes and not self.closed:
            self._wake_task()  # which says when it is idle again
            await self._idle.wait()

    async def _write_some(self, sock: socket.socket) -> None:
        parts = self._parts
        if len(parts) > PARTS_PER_WRITE_MAX:
            self._parts = parts[PARTS_PER_WRITE_MAX:]
            parts = parts[:PARTS_PER_WRITE_MAX]
        else:
            self._parts = []
        data = b"".join(parts)
        parts.clear()
        sent = 0
        watch: _Watch | None = None
        while sent < len(data):
            try:
                sent += sock.send(data if sent == 0 else memoryview(data)[sent:])
            except BlockingIOError:
                if sent >= RELEASE_BYTES_MIN and self._memory.is_tight():
                    data = data[sent:]
                    self._taken(sent)
                    sent = 0
                watch = await self._wait_for_peer(sock, len(data) - sent, watch)
                if self.closed:
                    return
        self._taken(sent)
        if self._blocked and self.pending_bytes < limits.OUTBOX_BYTES_LOW:
            self._blocked = False
            self._tell_writable()
        if self._parts:
            await trio.lowlevel.checkpoint()

    def _taken(self, size_bytes: int) -> None:
        """The system has it, and we let it go."""
        self.bytes_sent += size_bytes
        self.pending_bytes -= size_bytes
        self._memory.give(size_bytes)

    async def _wait_for_peer(self, sock: socket.socket, left_bytes: int, watch: _Watch | None) -> _Watch:
        """Return when the socket may take more of what is being sent, or a watch has ended. `watch` is what
        this returned the last time. Raises `PeerTooSlow` rather than let others wait.
        """
        now_s = trio.current_time()
        if watch is None:
            watch = _Watch(now_s + STALL_S, left_bytes)
        elif now_s >= watch.until_s:
            if watch.left_bytes - left_bytes < STALL_BYTES and self._memory.is_wanted():
                self._disconnect(sock)
            watch = _Watch(now_s + STALL_S, left_bytes)
        with trio.move_on_at(watch.until_s):
            await trio.lowlevel.wait_writable(sock)
        return watch

    def _disconnect(self, sock: socket.socket) -> None:
        host, port = sock.getpeername()[:2]
        log.warning(
            "/%s:%s: connection closed: it does not read, and others wait for the memory of the %d bytes that"
            " wait for it; what was not acknowledged is sent again",
            host,
            port,
            self.pending_bytes,
        )
        raise PeerTooSlow

    async def _let_go(self, sock: socket.socket) -> None:
        """All is with the system. That says nothing of the peer: while memory is tight, wait until the
        system wants more.
        """
        if self._memory.is_tight():
            await trio.lowlevel.wait_writable(sock)
        self._is_held = False
        if not self._blocked:
            self._tell_writable()

    def _tell_writable(self) -> None:
        self._unblocked.set()
        for tell in tuple(self.on_writable):
            tell()


class Outgoing:
    """What leaves at the end of a turn of the loop: the outboxes that were written to in it, each in one
    write. One per broker.

    To wake a task for each would cost a further turn of the loop, which is most of what a single message
    costs.
    """

    __slots__ = ("_outboxes", "is_sending")

    def __init__(self) -> None:
        self._outboxes: list[Outbox] = []
        """At most one place for each connection."""
        self.is_sending = False
        """Whether `send_all` is called at the end of each turn: else nothing may be added."""

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Meanwhile the caller has `send_all` called at the end of each turn."""
        self.is_sending = True
        try:
            yield
        finally:
            self.is_sending = False
            self.send_all()

    def add(self, outbox: Outbox) -> None:
        """Have `outbox.send_now()` called at the end of this turn."""
        self._outboxes.append(outbox)

    def send_all(self) -> None:
        """At the end of a turn."""
        if self._outboxes:
            outboxes, self._outboxes = self._outboxes, []
            for outbox in outboxes:
                outbox.send_now()
