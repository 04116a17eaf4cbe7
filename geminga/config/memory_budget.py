"""One memory budget for the process, and the share of each part. docs/memory.md has the table.

The three caches get BookKeeper's shares of its direct memory: a quarter for writing, a quarter for reading,
a tenth for RocksDB's blocks. Here the budget is for the whole process, so it also covers the process itself.
The broker gets what the bookie and the process leave, in Pulsar's proportions: half for publishers, a fifth
for the tail cache. The rest is for reads for consumers, their unsent bytes, and clients' metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from geminga.limits import ENTRY_BYTES_MAX, MIB

PROCESS_BYTES = 48 * MIB
"""Interpreter, code, RocksDB's write buffers: resident while all caches are empty."""
PUBLISH_BYTES_MIN = 6 * MIB
TAIL_CACHE_BYTES_MIN = 4 * MIB
CONSUMERS_BYTES_MIN = 3 * MIB // 4
"""The minimum for reads, unsent bytes, and clients' metadata: the broker works with this, if slowly."""
BUDGET_MB_MIN = 160
BUDGET_MB_MAX = 1024 * 1024


class MemoryParts(NamedTuple):
    """Bytes that each part may take."""

    write_cache: int
    read_cache: int
    block_cache: int
    journal: int
    publish: int
    tail_cache: int
    outboxes: int
    reads: int
    client_metadata: int
    process: int = PROCESS_BYTES


SETTINGS = {
    "write_cache": "dbStorage_writeCacheMaxSizeMb",
    "read_cache": "dbStorage_readAheadCacheMaxSizeMb",
    "block_cache": "dbStorage_rocksDB_blockCacheSize",
    "journal": "journalMaxMemorySizeMb",
    "publish": "maxMessagePublishBufferSizeInMB",
    "tail_cache": "managedLedgerCacheSizeMB",
    "outboxes": "",
    "reads": "",
    "client_metadata": "",
    "process": "",
}
"""The setting of each part: BookKeeper's and Pulsar's own. Empty: the part is set with the budget only."""


class MemorySettings(Protocol):
    """The settings in `Config` about memory; below zero: not set."""

    @property
    def memory_mb(self) -> int: ...
    @property
    def db_storage_write_cache_max_size_mb(self) -> int: ...
    @property
    def db_storage_read_ahead_cache_max_size_mb(self) -> int: ...
    @property
    def db_storage_rocks_db_block_cache_size(self) -> int: ...
    @property
    def journal_max_memory_size_mb(self) -> int: ...
    @property
    def max_message_publish_buffer_size_in_mb(self) -> int: ...
    @property
    def managed_ledger_cache_size_mb(self) -> int: ...


def memory_parts(config: MemorySettings) -> MemoryParts:
    """The memory that each part of the process may take."""
    given = {
        "write_cache": config.db_storage_write_cache_max_size_mb * MIB,
        "read_cache": config.db_storage_read_ahead_cache_max_size_mb * MIB,
        "block_cache": config.db_storage_rocks_db_block_cache_size,
        "journal": config.journal_max_memory_size_mb * MIB,
        "publish": config.max_message_publish_buffer_size_in_mb * MIB,
        "tail_cache": config.managed_ledger_cache_size_mb * MIB,
    }
    return divide(config.memory_mb * MIB, {name: size for name, size in given.items() if size >= 0})


def beyond_budget(config: MemorySettings) -> str:
    """The text of an error if the parts add up to more than the budget; else empty."""
    parts = memory_parts(config)
    total_mb = -(-sum(parts) // MIB)
    if total_mb <= config.memory_mb:
        return ""
    listed = ", ".join(f"{SETTINGS[name] or name} {size / MIB:g}" for name, size in parts._asdict().items())
    return (
        f"the parts of the memory add up to {total_mb} MB, more than the budget of {config.memory_mb} MB"
        f" (--memory {total_mb}M would do): {listed}"
    )


def divide(budget_bytes: int, given: Mapping[str, int]) -> MemoryParts:
    """The parts of a budget. `given` are parts with a setting of their own.

    The other parts keep their share, except that the broker's shrink, down to their minimum, if they would
    not fit. The sum is at most the budget if the given parts leave room for the others.
    """
    shares = _shares(budget_bytes)
    fixed = {name: given.get(name, share) for name, share in shares.items()}
    natural = budget_bytes - sum(shares.values()) - PROCESS_BYTES
    brokers = min(natural, budget_bytes - sum(fixed.values()) - PROCESS_BYTES)
    publish = max(PUBLISH_BYTES_MIN, brokers // 2)
    tail_cache = max(TAIL_CACHE_BYTES_MIN, brokers // 5)
    consumers = max(CONSUMERS_BYTES_MIN, brokers - publish - tail_cache)
    publish, tail_cache = given.get("publish", publish), given.get("tail_cache", tail_cache)
    left = budget_bytes - sum(fixed.values()) - PROCESS_BYTES - publish - tail_cache
    consumers = max(CONSUMERS_BYTES_MIN, min(consumers, left))
    outboxes, reads = consumers * 5 // 12, consumers // 3
    return MemoryParts(
        **fixed,
        publish=publish,
        tail_cache=tail_cache,
        outboxes=outboxes,
        reads=reads,
        client_metadata=consumers - outboxes - reads,
        process=PROCESS_BYTES,
    )


def _shares(budget_bytes: int) -> dict[str, int]:
    return {
        "write_cache": budget_bytes // 4,
        "read_cache": budget_bytes // 4,
        "block_cache": budget_bytes // 10,
        "journal": budget_bytes // 48,
    }


assert sum(divide(BUDGET_MB_MIN * MIB, {})) == BUDGET_MB_MIN * MIB, "the least budget has room for all"
assert PUBLISH_BYTES_MIN >= ENTRY_BYTES_MAX, "the largest message must fit"
