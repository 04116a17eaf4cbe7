"""What the memory of a running broker is used for, part by part."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from geminga.bookie.bookie import Bookie
from geminga.broker.publish_memory import PublishMemory
from geminga.broker.statistics import MemoryPart, MemoryStatistics
from geminga.disk import RealDisk
from geminga.errors import StorageError
from geminga.key_value import BlockCache, KeyValue
from geminga.managed_ledger.tail_cache import TailCache
from geminga.memory_budget import SETTINGS, MemoryParts


class MemoryMeter:
    """Asks each part when it is called; nothing is counted here. On the loop, some 20 us."""

    def __init__(
        self,
        parts: MemoryParts,
        bookie: Bookie,
        publish: PublishMemory,
        tail_cache: TailCache,
        block_cache: BlockCache,
        databases: Sequence[KeyValue],
    ) -> None:
        self._parts = parts
        self._bookie = bookie
        self._publish = publish
        self._tail_cache = tail_cache
        self._block_cache = block_cache
        self._databases = databases

    def __call__(self) -> MemoryStatistics:
        bookie, tail = self._bookie.statistics(), self._tail_cache.statistics()
        blocks = self._block_cache.usage_bytes()
        # Each database counts the cache that all of them share.
        buffers = sum(database.memory_bytes() - blocks for database in self._databases)
        used = {
            "write_cache": bookie.write_cache_bytes + bookie.flushing_bytes,
            "read_cache": bookie.read_cache_bytes,
            "block_cache": blocks,
            "journal": min(bookie.queued_bytes, self._parts.journal),
            "publish": self._publish.used_bytes,
            "tail_cache": tail.bytes_used,
        }
        resident = resident_bytes()
        used["process"] = max(0, resident - sum(used.values()))
        configured = self._parts._asdict()
        return MemoryStatistics(
            budget_bytes=sum(self._parts),
            resident_bytes=resident,
            rocksdb_buffer_bytes=buffers,
            publish_waits=self._publish.waits,
            tail_entries_served=tail.entries_served,
            tail_bytes_served=tail.bytes_served,
            tail_entries_missed=tail.entries_missed,
            parts=[MemoryPart(name, SETTINGS[name], configured[name], used[name]) for name in configured],
        )


def resident_bytes() -> int:
    """Of this process; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    import resource

    try:
        return int(RealDisk().read_file("/proc/self/statm").split()[1]) * resource.getpagesize()
    except StorageError:
        return 0
