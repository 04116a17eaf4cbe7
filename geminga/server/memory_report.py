"""The memory of a running broker, part by part."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence

import msgspec

from geminga.admin.http.body_memory import BodyMemory
from geminga.bookie.running.bookie import Bookie
from geminga.broker.flow.statistics import MemoryPart, MemoryShare, MemoryStatistics
from geminga.broker.topic.rooms import Rooms
from geminga.broker.topic.topics import Topics
from geminga.config.memory_budget import SETTINGS, MemoryParts
from geminga.errors import StorageError
from geminga.limits import KIB
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import KeyValue
from geminga.storage.rocksdb import BlockCache

TOPIC_BYTES = 8 * KIB
"""Memory of a loaded topic without subscriptions."""
SUBSCRIPTION_BYTES = 3 * KIB
"""Memory of a subscription without consumers. `bench/many_topics.py` measures a topic with one
subscription.
"""

LOOKED_MAX = 1000
"""Subscriptions and topics between two yields: about a millisecond."""


class MemoryMeter:
    """Collects the figures of all parts when it is called, in about 20 us."""

    def __init__(
        self,
        parts: MemoryParts,
        bookie: Bookie,
        rooms: Rooms,
        block_cache: BlockCache,
        databases: Sequence[KeyValue],
        topics: Topics,
    ) -> None:
        self._parts = parts
        self._bookie = bookie
        self._rooms = rooms
        self._block_cache = block_cache
        self._databases = databases
        self._topics = topics
        self.bodies = BodyMemory()
        """Those of the admin port."""
        self._start_bytes = self._start_buffer_bytes = self._resident_at_start = 0

    def started(self) -> None:
        """Record the process's own use of memory, before the first client connects."""
        self._start_buffer_bytes = self._buffer_bytes()
        self._resident_at_start = resident_bytes()
        self._start_bytes = self._used(self._resident_at_start)["process"]

    def has_room(self) -> bool:
        """Whether half of what was free at the start still is. Work that no client waits for takes memory
        only then.
        """
        return resident_bytes() < (sum(self._parts) + self._resident_at_start) // 2

    def _buffer_bytes(self) -> int:
        """RocksDB's memory for all databases, without the cache that they share, which each of
        them counts.
        """
        blocks = self._block_cache.usage_bytes()
        return sum(database.memory_bytes() - blocks for database in self._databases)

    def _used(self, resident: int) -> dict[str, int]:
        bookie, rooms = self._bookie.statistics(), self._rooms
        used = {
            "write_cache": bookie.write_cache_bytes + bookie.flushing_bytes,
            "read_cache": bookie.read_cache_bytes,
            "block_cache": self._block_cache.usage_bytes(),
            "journal": min(bookie.queued_bytes, self._parts.journal),
            "publish": rooms.publish_memory.used_bytes,
            "tail_cache": rooms.tail_cache.statistics().bytes_used,
            "outboxes": rooms.send_memory.pending_bytes,
            "reads": rooms.read_memory.used_bytes,
            "client_metadata": rooms.client_metadata.used_bytes,
        }
        used["process"] = max(0, resident - sum(used.values()))
        return used

    def _shares(self, process_bytes: int, buffer_bytes: int) -> Generator[None, None, list[MemoryShare]]:
        loaded = tuple(self._topics.loaded.values())
        looked = subscriptions = delayed_bytes = 0
        for topic in loaded:
            for subscription in (None, *topic.subscriptions.values()):
                if (looked := looked + 1) % LOOKED_MAX == 0:
                    yield
                if subscription is not None:
                    subscriptions += 1
                    delayed_bytes += subscription.delayed.memory_bytes()
        shares = [
            MemoryShare("at_start", self._start_bytes, "interpreter, code, tables: before the first client"),
            MemoryShare(
                "topics",
                len(loaded) * TOPIC_BYTES + subscriptions * SUBSCRIPTION_BYTES,
                f"about, for {len(loaded)} loaded ones with {subscriptions} subscriptions",
            ),
            MemoryShare("delayed", delayed_bytes, "indexes of delayed messages"),
            MemoryShare(
                "http",
                self.bodies.held_bytes + self.bodies.sending_bytes,
                "requests and answers of the admin port that wait for their clients",
            ),
            MemoryShare(
                "rocksdb",
                max(0, buffer_bytes - self._start_buffer_bytes),
                "write buffers and table readers, since the start",
            ),
        ]
        rest_bytes = max(0, process_bytes - sum(share.used_bytes for share in shares))
        rest = "connections, what waits to be acknowledged, what is free and not given back"
        return [*shares, MemoryShare("rest", rest_bytes, rest)]

    def in_slices(self) -> Generator[None, None, MemoryStatistics]:
        """With the shares of `process`, for which each loaded topic is looked at; yields now and then."""
        found = self()
        used = next(part.used_bytes for part in found.parts if part.name == "process")
        shares = yield from self._shares(used, found.rocksdb_buffer_bytes)
        return msgspec.structs.replace(found, process=shares)

    def __call__(self) -> MemoryStatistics:
        """`process` is empty."""
        resident = resident_bytes()
        used, buffers = self._used(resident), self._buffer_bytes()
        tail = self._rooms.tail_cache.statistics()
        configured = self._parts._asdict()
        return MemoryStatistics(
            budget_bytes=sum(self._parts),
            resident_bytes=resident,
            rocksdb_buffer_bytes=buffers,
            publish_waits=self._rooms.publish_memory.waits,
            tail_entries_served=tail.entries_served,
            tail_bytes_served=tail.bytes_served,
            tail_entries_missed=tail.entries_missed,
            parts=[MemoryPart(name, SETTINGS[name], configured[name], used[name]) for name in configured],
            process=[],
        )


def resident_bytes() -> int:
    """The resident bytes of this process; 0 if the system does not report them."""
    if sys.platform != "linux":
        return 0
    import resource

    try:
        return int(RealDisk().read_file("/proc/self/statm").split()[1]) * resource.getpagesize()
    except StorageError:
        return 0
