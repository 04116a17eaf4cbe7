"""The bell's descriptors in the loop's own epoll object. Linux.

They are registered edge-triggered, once and for good: no task waits for them, and neither a read nor a new
registration follows an event. trio ignores these events, but its wait ends.
"""

from __future__ import annotations

import os
import select
import socket
from collections import defaultdict

import trio

# Two bytes: the thread takes one of them to wake up, and leaves the other one until it sleeps again.
_TOKEN = b"\0\0"


class Edges:
    """Two ways to end the loop's wait, and one to end the thread's.

    The thread sleeps in a read of a stream socket, for the second byte of the last token and the first byte
    of the next. The kernel takes the former out of the buffer at once, and tells the writer, the loop, that
    there is room: that edge is the ring. So one call rings and sleeps, and needs the interpreter's lock only
    after the next wake-up. With a ring of its own in front, the loop woke up while the thread wanted the lock
    back to fall asleep, and they passed it to and fro: four futex calls for a group.

    The loop wakes the thread by a send, which lets go of the lock, so that a thread that preempts the loop
    can work. `SimpleQueue.put` keeps it: the thread woke up, waited for the lock, and was woken again.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(True)
        # For a thread that does not sleep, and for the loop itself.
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        epoll.register(self._ours, select.EPOLLOUT | select.EPOLLET)
        epoll.register(self._eventfd, select.EPOLLIN | select.EPOLLET)
        self._ours.send(_TOKEN)
        self._theirs.recv(1)

    def ring(self) -> None:
        # It is never read: each write is an edge, and it takes 2 ** 64 of them to fill it.
        os.eventfd_write(self._eventfd, 1)

    def sleep(self) -> None:
        # A signal may end the read after the old token's byte.
        if len(self._theirs.recv(2, socket.MSG_WAITALL)) < 2:
            self._theirs.recv(1)

    def wake(self) -> None:
        try:
            self._ours.send(_TOKEN)
        except BlockingIOError:
            pass  # it is full of tokens, so the thread will not sleep

    def close(self) -> None:
        self._epoll.unregister(self._ours)
        self._epoll.unregister(self._eventfd)
        self._ours.close()
        self._theirs.close()
        os.close(self._eventfd)


def edges_of_loop() -> Edges | None:
    """Call on the loop. None if this system, or trio, is not as it is known here."""
    epoll = _epoll_of_loop()
    if epoll is None or not hasattr(os, "eventfd") or not _tells_of_room_in_a_read():
        return None
    return Edges(epoll)


def _epoll_of_loop() -> select.epoll | None:
    # There is no public way. The public ways to wait for a descriptor, such as `wait_readable`, register it
    # for one event: each ring cost a read, a registration and a task's turn.
    try:
        manager = trio._core._run.GLOBAL_RUN_CONTEXT.runner.io_manager
        epoll, waiters = manager._epoll, manager._registered
    except AttributeError:
        return None
    # trio looks up each event's descriptor in this dictionary. Without a default it would fail for ours.
    return epoll if isinstance(epoll, select.epoll) and isinstance(waiters, defaultdict) else None


def _tells_of_room_in_a_read() -> bool:
    """Whether a read that waits for more takes what is there, and the writer gets an edge for it. Linux does
    that; other kernels that run its programs are asked.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs, select.epoll() as epoll:
        ours.send(_TOKEN)
        theirs.recv(1)
        epoll.register(ours, select.EPOLLOUT | select.EPOLLET)
        epoll.poll(0)
        taken = theirs.recv(2, socket.MSG_WAITALL | socket.MSG_DONTWAIT)
        return len(taken) == 1 and bool(epoll.poll(0))
