"""Watches of the metadata tree. They report changes, and never make a write wait for a slow watcher."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import trio

WATCH_CHANGES_MAX = 256
"""How many changes a watcher may lag behind before one RESYNC replaces them."""


class ChangeKind(enum.Enum):
    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    RESYNC = "resync"
    """The watcher has missed changes: read everything below the watched prefixes again."""


class Change(NamedTuple):
    """One durable change. `version` is the node's new version; for a deleted node the last one; for RESYNC
    -1.

    `path` of a RESYNC is the first watched prefix.
    """

    path: str
    kind: ChangeKind
    version: int


class _Watcher:
    __slots__ = ("changes_max", "prefixes", "resync_sent", "send")

    def __init__(
        self, prefixes: tuple[str, ...], send: trio.MemorySendChannel[Change], changes_max: int
    ) -> None:
        self.prefixes = prefixes
        self.send = send
        self.changes_max = changes_max
        self.resync_sent = False

    def offer(self, change: Change) -> None:
        buffered = self.send.statistics().current_buffer_used
        if self.resync_sent:
            # The RESYNC is the newest item, so it is unread as long as anything is; it covers this change
            # too.
            if buffered:
                return
            self.resync_sent = False
        # Told once, and not by a closed channel: the watcher reads its subtree again and goes on with the
        # same watch.
        if buffered >= self.changes_max:
            change = Change(self.prefixes[0], ChangeKind.RESYNC, -1)
            self.resync_sent = True
        try:
            self.send.send_nowait(change)
        except trio.BrokenResourceError:
            pass  # The receiver closed its end early and leaves soon.


def _prefixes_of(path: str) -> Iterator[str]:
    """The node and all above it, "/" the last."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield "/"


class Watchers:
    """The open watches of one store. All methods run on the trio loop and never wait."""

    def __init__(self, changes_max: int = WATCH_CHANGES_MAX) -> None:
        self._changes_max = changes_max
        self._watchers: set[_Watcher] = set()
        # With 1,000 watched patterns, each of two prefixes, asking every watcher took 12 ms for ten topics.
        self._by_prefix: dict[str, set[_Watcher]] = {}
        self._closed = False

    @contextmanager
    def watch(self, *prefixes: str) -> Iterator[trio.MemoryReceiveChannel[Change]]:
        """Changes of the nodes `prefixes` and all below them that become durable while the context is open,
        in order.
        """
        # One slot more than changes: the last is for RESYNC.
        send, receive = trio.open_memory_channel[Change](self._changes_max + 1)
        watcher = _Watcher(prefixes, send, self._changes_max)
        self._watchers.add(watcher)
        for prefix in prefixes:
            self._by_prefix.setdefault(prefix, set()).add(watcher)
        # A watch that begins while the store stops ends at once: its reader would wait for changes that never
        # come.
        if self._closed:
            send.close()
        try:
            with send, receive:
                yield receive
        finally:
            self._watchers.discard(watcher)
            for prefix in prefixes:
                self._by_prefix[prefix].discard(watcher)
                if not self._by_prefix[prefix]:
                    del self._by_prefix[prefix]

    def publish(self, change: Change) -> None:
        found: set[_Watcher] = set()  # once, also where one watcher watches a node and one above it
        for prefix in _prefixes_of(change.path):
            found |= self._by_prefix.get(prefix, frozenset())
        for watcher in found:
            watcher.offer(change)

    def close(self) -> None:
        """End every channel after its queued changes; later watches get an ended channel."""
        self._closed = True
        for watcher in self._watchers:
            watcher.send.close()

    def __len__(self) -> int:
        return len(self._watchers)
