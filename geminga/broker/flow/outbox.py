"""One connection's way out: frames are queued by plain calls and leave in as few writes as the socket takes.

Whoever delivers looks at `is_writable()` before it takes more from storage, so that a slow reader costs at
most `OUTBOX_BYTES_HIGH` and what was already on its way; receipts and answers are small and are always taken.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from geminga import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer = bytes | bytearray | memoryview

PARTS_PER_WRITE_MAX = 4096


class Outbox:
    """A queue of buffers in front of one socket; `run` is its only writer."""

    __slots__ = (
        "_blocked",
        "_idle",
        "_parts",
        "_sleeping",
        "_unblocked",
        "_wake",
        "bytes_sent",
        "closed",
        "on_writable",
        "pending_bytes",
    )

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._unblocked = trio.Event()
        self._sleeping = False
        self._blocked = False
        self.pending_bytes = 0
        self.bytes_sent = 0
        self.closed = False
        self.on_writable: set[Callable[[], None]] = set()
        """Called when the outbox falls below `OUTBOX_BYTES_LOW` after it had been above
        `OUTBOX_BYTES_HIGH`.
        """

    def write(self, data: Buffer | Sequence[Buffer]) -> None:
        """Queue one buffer or several, in order. Never blocks; after the close it does nothing."""
        if self.closed:
            return
        if isinstance(data, bytes | bytearray | memoryview):
            self._parts.append(data)
            self.pending_bytes += len(data)
        else:
            self._parts.extend(data)
            self.pending_bytes += sum(map(len, data))
        if self.pending_bytes > limits.OUTBOX_BYTES_HIGH:
            self._blocked = True
        if self._sleeping:
            self._sleeping = False
            self._wake.set()

    def is_writable(self) -> bool:
        """Whether more messages may be queued for this connection."""
        return not (self._blocked or self.closed)

    async def wait_writable(self) -> None:
        """Return once `is_writable()`, or closed. Cancelling leaves nothing behind."""
        while self._blocked and not self.closed:
            self._unblocked = trio.Event()
            await self._unblocked.wait()

    def close(self) -> None:
        """Drop what is queued and wake everyone who waits for room, so that they see `closed`."""
        self.closed = True
        self._parts.clear()
        self.pending_bytes = 0
        self._wake.set()
        self._idle.set()
        self._tell_writable()

    async def run(self, sock: socket.socket) -> None:
        """Write what is queued until cancelled or closed. Raises `OSError` when the peer is gone."""
        while not self.closed:
            if not self._parts:
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
        length = len(data)
        sent = 0
        while sent < length:
            try:
                sent += sock.send(data if sent == 0 else memoryview(data)[sent:])
            except BlockingIOError:
                await trio.lowlevel.wait_writable(sock)
        self.bytes_sent += length
        self.pending_bytes -= length
        if self._blocked and self.pending_bytes < limits.OUTBOX_BYTES_LOW:
            self._blocked = False
            self._tell_writable()
        await trio.lowlevel.checkpoint()

    def _tell_writable(self) -> None:
        self._unblocked.set()
        for tell in tuple(self.on_writable):
            tell()
