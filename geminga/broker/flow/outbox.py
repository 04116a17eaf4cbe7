"""The frames for one connection: plain calls queue them, and as few writes as possible send them.

`Outgoing` sends the frames of a turn of the loop at its end, without waking a task. The outbox's own task
sends large frames, and bytes that the socket does not take at once.

Dispatch checks `is_writable()` before it reads more from storage, and reads no more than `room_bytes()`. So
a slow peer costs at most `OUTBOX_BYTES_HIGH` and one read. `SendMemory` bounds the bytes in all outboxes.
Receipts and answers are small and always accepted.
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

# A join of many small frames is one copy of them all, and nothing else runs meanwhile.
PARTS_PER_WRITE_MAX = 4096
# The copy into the socket is made in the loop. At the end of a turn all outboxes send one after the other, so
# one connection's megabytes would delay the receipts of all others.
LEAVING_BYTES_MAX = 64 * limits.KIB
"""The task sends larger outboxes, so that each piece waits for the turns of others."""
STALL_S = 2.0
"""The period of a watch. A peer that takes less than `STALL_BYTES` in it, while others wait for the memory
of its outbox, is disconnected.
"""
STALL_BYTES = 64 * limits.KIB
"""See `STALL_S`."""

# Without this an outbox kept all of a write until its last byte was taken: eight peers that did not read 4 MB
# messages filled the memory, and peers that did read got a tenth of their rate.
RELEASE_BYTES_MIN = 256 * limits.KIB
"""When memory is tight and a part of this size was sent, the rest is copied, so that the sent part is
released.
"""


class PeerTooSlow(OSError):
    """The peer does not read, and others need the memory of its unsent bytes."""


class _Watch(NamedTuple):
    """A period in which a peer has to take `STALL_BYTES`."""

    until_s: float
    left_bytes: int
    """Bytes of the write that were unsent when the watch began."""


class Outbox:
    """A queue of buffers in front of one socket. `run` is its only task, and `send_now` sends while that
    task sleeps.
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
        """`outgoing` calls `send_now` at the end of a turn; without `outgoing` the task sends everything."""
        self._memory = memory
        self._outgoing = outgoing
        self._sock: socket.socket | None = None
        self._parts: list[Buffer] = []
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._unblocked = trio.Event()
        # Set by the task before it waits, reset by the one that wakes it: two writers wake it once.
        self._sleeping = False
        self._is_leaving = False
        """Whether the outbox was added to `outgoing` in this turn."""
        # Two marks, as dispatch would otherwise fill each byte that leaves with one small read: full at the
        # high one, writable again at the low one.
        self._blocked = False
        self._is_held = False
        """Memory was tight at the last write: the outbox accepts no more messages until the socket has taken
        all bytes and can take more.
        """
        self.pending_bytes = 0
        self.bytes_sent = 0
        self.closed = False
        self.on_writable: set[Callable[[], None]] = set()
        """Called when `is_writable()` may have become true."""

    def write(self, data: Buffer | Sequence[Buffer]) -> None:
        """Queue one or several buffers, in order. Never blocks. Does nothing after the close."""
        # Subscriptions and requests still write for a moment after the connection is gone. They need not
        # check.
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
            # A woken task costs a turn of the loop, which is most of what a single message costs.
            is_large = self.pending_bytes > LEAVING_BYTES_MAX
            if is_large or outgoing is None or not outgoing.is_sending or self.is_behind():
                self._wake_task()
            elif not self._is_leaving:
                self._is_leaving = True
                outgoing.add(self)

    def send_now(self) -> None:
        """At the end of a turn: write as much to the socket as it takes. The outbox's task sends the rest in
        the next turn.
        """
        self._is_leaving = False
        # trio has decided by now whether the loop may sleep, so a task that is woken here would stay asleep
        # until the next event. `_wake_task_soon` goes through trio's queue, which ends that sleep.
        sock = self._sock
        if not self._sleeping or not self._parts or sock is None:
            return
        # Room that comes back is announced to other outboxes' subscriptions, which wakes their tasks.
        if self._memory.has_waiting():
            self._wake_task_soon()
            return
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            sent = sock.send(data)
        except OSError:
            self._wake_task_soon()  # the task gets the same error, and has the connection closed
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
        """How many bytes of messages to read at once for this connection while it `is_writable()`. A single
        larger message may be sent alone.
        """
        return self._memory.read_bytes_max(limits.OUTBOX_BYTES_HIGH - self.pending_bytes)

    def has_room(self) -> None:
        """`SendMemory` calls this when memory is no longer full."""
        self._tell_writable()

    def is_behind(self) -> bool:
        """Whether the peer has to take its unsent bytes before its socket is read again."""
        # The memory that others hold is no part of this. It once was: the reader took that for unread answers
        # of its own peer, waited for nothing, and one flood of ACKs kept the loop as long as it lasted.
        return (self._blocked or self._is_held) and not self.closed

    async def wait_taken(self) -> None:
        """Return once the peer is not behind, or the outbox is closed. Cancelling has no effect on the
        outbox.
        """
        # In a loop: another request of the connection may have written a large answer since the event.
        while self.is_behind():
            self._unblocked = trio.Event()
            await self._unblocked.wait()

    def refuse(self) -> None:
        """Take nothing more from now on. `close` is still to be called."""
        self.closed = True

    def close(self) -> None:
        """Drop all queued frames and wake all tasks that wait for room, so that they see `closed`."""
        # First, so that what is called below cannot queue anything more.
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
                # Checked only with an empty queue: "held" ends when the system has all of the bytes.
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
            self._wake_task()  # the task sets `_idle` when it has sent everything
            await self._idle.wait()

    async def _write_some(self, sock: socket.socket) -> None:
        parts = self._parts
        if len(parts) > PARTS_PER_WRITE_MAX:
            self._parts = parts[PARTS_PER_WRITE_MAX:]
            parts = parts[:PARTS_PER_WRITE_MAX]
        else:
            self._parts = []
        data = b"".join(parts)
        parts.clear()  # the joined copy is enough: both would hold the bytes twice while the peer is slow
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
        # A socket that takes everything never makes this task sleep. Other connections have to get a turn.
        if self._parts:
            await trio.lowlevel.checkpoint()

    def _taken(self, size_bytes: int) -> None:
        """The system has taken these bytes: they no longer belong to the outbox."""
        self.bytes_sent += size_bytes
        self.pending_bytes -= size_bytes
        self._memory.give(size_bytes)

    async def _wait_for_peer(self, sock: socket.socket, left_bytes: int, watch: _Watch | None) -> _Watch:
        """Return when the socket may take more of the current write, or a watch has ended. `watch` is the
        result of the previous call. Raises `PeerTooSlow` rather than let others wait.
        """
        # A slow peer keeps its connection as long as it is in no other's way: an application may pause for
        # hours with a full receive queue, and Pulsar would not disconnect it either.
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
            "/%s:%s: connection closed: the client does not read, and others need the memory of its %d unsent"
            " bytes; messages that it has not acknowledged are redelivered",
            host,
            port,
            self.pending_bytes,
        )
        raise PeerTooSlow

    async def _let_go(self, sock: socket.socket) -> None:
        """The system has taken all bytes. While memory is tight, wait until it can take more."""
        # The system's buffer took one small read, whether or not the peer reads. That the socket is writable
        # again shows that the peer has read: only then it gets the next one.
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
    """Sends the outboxes that were written to in a turn of the loop at its end, each in one write. One per
    broker.
    """

    # A message that comes alone took six turns of the loop when each receipt and each delivery woke a task.
    # It takes two and a half since these bytes leave with the turn that wrote them.

    __slots__ = ("_outboxes", "is_sending")

    def __init__(self) -> None:
        self._outboxes: list[Outbox] = []
        """Contains each connection's outbox at most once."""
        self.is_sending = False
        """Whether `send_all` is called at the end of each turn. Otherwise nothing may be added."""

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Within this context the caller calls `send_all` at the end of each turn."""
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
        """Send all added outboxes; call this at the end of a turn."""
        if self._outboxes:
            outboxes, self._outboxes = self._outboxes, []
            for outbox in outboxes:
                outbox.send_now()
