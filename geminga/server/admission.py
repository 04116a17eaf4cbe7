"""Bounds the connections of one port, and chooses which to close at the bound.

Only idle connections are ever closed for a new one, the longest idle one first. Each port defines idle: on
the binary port a connection that has not sent CONNECT, on the admin port one without a pending request. When
no connection is idle, no new one is accepted until one closes or becomes idle.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Awaitable, Callable

import trio

log = logging.getLogger("geminga.server")

FRESH_SECONDS = 0.1
"""A new connection has this long to send its first request before it may be closed to make room."""
WARNING_INTERVAL_S = 60.0

Handler = Callable[[socket.socket, "Visit"], Awaitable[None]]


class Visit:
    """One connection in the count of its port, idle at first."""

    __slots__ = ("_admission", "_scope")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._scope = trio.CancelScope()

    def busy(self) -> None:
        """The connection may not be closed to make room from now on."""
        self._admission.set_busy(self)

    def idle(self) -> None:
        """The connection may be closed to make room, after those that have been idle for longer."""
        self._admission.set_idle(self)

    async def serve(self, sock: socket.socket, handle: Handler) -> None:
        """Call `handle`, which closes the socket, even when it is cancelled because the visit ends."""
        try:
            with self._scope:
                await handle(sock, self)
        finally:
            self._admission.leave(self)

    def end(self) -> None:
        self._scope.cancel()


class Admission:
    """All connections of one port."""

    def __init__(self, port_name: str, connections_max: int) -> None:
        self._port_name = port_name
        self.connections_max = connections_max
        self.open = 0
        self.closed_for_others = 0
        self._idle_since_s: dict[Visit, float] = {}
        """Idle connections, in the order in which they became idle."""
        self._changed = trio.lowlevel.ParkingLot()
        self._warned_s = -math.inf

    def enter(self) -> Visit:
        """Count one more connection; `Visit.serve` removes it again."""
        self.open += 1
        visit = Visit(self)
        self.set_idle(visit)
        return visit

    def leave(self, visit: Visit) -> None:
        self.open -= 1
        self._idle_since_s.pop(visit, None)
        self._changed.unpark_all()

    def set_busy(self, visit: Visit) -> None:
        self._idle_since_s.pop(visit, None)

    def set_idle(self, visit: Visit) -> None:
        self._idle_since_s[visit] = trio.current_time()
        self._changed.unpark_all()

    def has_room(self) -> bool:
        return self.open < self.connections_max

    async def make_room(self) -> None:
        """Return once there is room for one more connection. Cancelling has closed at most one connection
        for it.
        """
        # Idle ones make room for new ones, as a client that has sent nothing loses nothing: it connects
        # again. If all are busy the newcomer waits, and the system's queue of connections holds those behind
        # it.
        while not self.has_room():
            fresh_until_s = self._fresh_until_s()
            if trio.current_time() >= fresh_until_s:
                self.close_longest_idle()
                fresh_until_s = math.inf
            with trio.move_on_at(fresh_until_s):
                await self._changed.park()

    def close_longest_idle(self) -> None:
        """Close the longest idle connection; does nothing if none is idle."""
        longest = next(iter(self._idle_since_s), None)
        if longest is not None:
            del self._idle_since_s[longest]
            longest.end()
            self.closed_for_others += 1
        self._warn()

    def _fresh_until_s(self) -> float:
        """Until when the longest idle connection is protected; infinite if none is idle."""
        # A connection that has just been accepted has not had the time to send anything: closing it for the
        # next one would, under a rush, let none through.
        since_s = next(iter(self._idle_since_s.values()), math.inf)
        if since_s == math.inf:
            self._warn()
        return since_s + FRESH_SECONDS

    def _warn(self) -> None:
        now_s = trio.current_time()
        if now_s - self._warned_s >= WARNING_INTERVAL_S:
            self._warned_s = now_s
            log.warning(
                "%d of at most %d connections to the %s are open: idle ones are closed for newcomers "
                "(%d so far), and the others wait (said once a minute)",
                self.open,
                self.connections_max,
                self._port_name,
                self.closed_for_others,
            )
