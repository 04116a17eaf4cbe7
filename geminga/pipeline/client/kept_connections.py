"""Connections that a process keeps between the ranges that it reads, for the next one on the same broker."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from geminga.clock import RealClock
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.errors import Access, BrokerUnreachable

CONNECTIONS_MAX = 16
IDLE_SECONDS_MAX = 25.0
"""Less than the 30 s after which brokers send a PING, which an idle connection would not answer."""
OWNERS_MAX = 10_000
_LOOK_SECONDS = 0.001
_CLOCK = RealClock()


@dataclass(frozen=True)
class _Kept:
    access: Access
    connection: Connection
    since_s: float


class KeptConnections:
    """Of one process, for any of its threads. What was inherited by a fork is forgotten, not used."""

    def __init__(
        self, connections_max: int = CONNECTIONS_MAX, idle_seconds_max: float = IDLE_SECONDS_MAX
    ) -> None:
        self._connections_max = connections_max
        self._idle_seconds_max = idle_seconds_max
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[_Kept] = []
        self._owners: dict[tuple[Access, str], str] = {}
        self._watching: threading.Timer | None = None

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, access: Access, topic: str) -> Connection | None:
        """One to the broker that served the topic last and that is still there; the caller's from now on."""
        self._check_process()
        with self._lock:
            url = self._owners.get((access, topic))
            found = next((k for k in self._idle if k.access == access and k.connection.url == url), None)
            if found is None:
                return None
            self._idle.remove(found)
        connection = found.connection
        try:
            connection.forget_arrived()
            connection.receive(_LOOK_SECONDS)
        except BrokerUnreachable:
            connection.close()
            return None
        return connection

    def give(self, access: Access, topic: str, connection: Connection) -> None:
        """Keep a connection that has no consumer any more; the one that is idle longest makes room."""
        self._check_process()
        with self._lock:
            if len(self._owners) >= OWNERS_MAX:
                self._owners.clear()
            self._owners[access, topic] = connection.url
            self._idle.append(_Kept(access, connection, _CLOCK.monotonic_s()))
            spare = self._idle[: max(len(self._idle) - self._connections_max, 0)]
            del self._idle[: len(spare)]
            self._watch()
        for kept in spare:
            kept.connection.close()

    def close(self) -> None:
        """Those that are idle now."""
        with self._lock:
            idle, self._idle = self._idle, []
        for kept in idle:
            kept.connection.close()

    def _watch(self) -> None:
        """Have a thread close what stays idle; it ends when nothing is left."""
        if self._watching is None and self._idle:
            left = self._idle[0].since_s + self._idle_seconds_max - _CLOCK.monotonic_s()
            self._watching = threading.Timer(max(left, 0.0), self._close_idle)
            self._watching.daemon = True
            self._watching.start()

    def _close_idle(self) -> None:
        with self._lock:
            until_s = _CLOCK.monotonic_s() - self._idle_seconds_max
            old = [kept for kept in self._idle if kept.since_s <= until_s]
            self._idle = [kept for kept in self._idle if kept.since_s > until_s]
            self._watching = None
            self._watch()
        for kept in old:
            kept.connection.close()

    def _check_process(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lock = threading.Lock()
            self._idle, self._owners, self._watching = [], {}, None


KEPT = KeptConnections()
"""Those of this process: a Python worker of Spark reads one range after the other."""
