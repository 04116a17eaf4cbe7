"""The wires of the bookie, memory, addresses and the delivery log. See rows.py."""

from __future__ import annotations

import math
import socket

from geminga.limits import MIB
from tests.server.settings.rows import ABSENT, LOCAL_PORT, Row

BOOKIE_ROWS = [
    Row("journalMaxSizeMB", "64", {"bookie.journal_file_bytes": 64 * MIB}),
    Row("journalPreAllocSizeMB", "16", {"bookie.journal_allocate_bytes": 16 * MIB}),
    Row("journalRemoveFromPageCache", "false", {"bookie.journal_drops_page_cache": False}),
    Row("journalMaxBackups", "5", {"bookie.journal_free_files_max": 5}),
    Row("journalMaxGroupWaitMSec", "2", {"bookie.journal_group_wait_s": 0.002}),
    Row("journalBufferedWritesThreshold", "524288", {"bookie.journal_group_bytes_max": 512 * 1024}),
    Row("journalBufferedEntriesThreshold", "100", {"bookie.journal_group_entries_max": 100}),
    Row(
        "journalDirectories",
        "/a,/b",
        {"bookie.journal_group_bytes_max": 2 * 1000},
        given={"journalBufferedWritesThreshold": "1000"},
    ),
    Row("flushInterval", "1500", {"bookie.flush_interval_s": 1.5}),
    Row("logSizeLimit", "1073741824", {"bookie.entry_log_bytes": 1024 * MIB}),
    Row("dbStorage_readAheadCacheBatchBytesSize", "65536", {"bookie.read_ahead_bytes": 65536}),
    Row("gcWaitTime", "60000", {"bookie.gc_wait_s": 60.0}),
    Row("minorCompactionThreshold", "0.25", {"bookie.minor_compaction_threshold": 0.25}),
    Row("minorCompactionInterval", "61", {"bookie.minor_compaction_interval_s": 61.0}),
    Row("minorCompactionMaxTimeMillis", "-1", {"bookie.minor_compaction_max_s": math.inf}),
    Row("majorCompactionThreshold", "0", {"bookie.major_compaction_threshold": 0.0}),
    Row("majorCompactionInterval", "0", {"bookie.major_compaction_interval_s": 0.0}),
    Row("majorCompactionMaxTimeMillis", "2500", {"bookie.major_compaction_max_s": 2.5}),
    Row("compactionRateByBytes", "0", {"bookie.compaction_rate_bytes_per_s": 0}),
    Row("gemingaScrubRateByBytes", "0", {"bookie.scrub_rate_bytes_per_s": 0}),
    Row("diskUsageThreshold", "1", {"bookie.disk_usage_threshold": 1.0}),
    Row("diskUsageLwmThreshold", ".5", {"bookie.disk_usage_lwm_threshold": 0.5}),
    Row("diskFreeBytesMin", "0", {"bookie.disk_free_bytes_min": 0}),
    Row("diskFreeBytesEnough", "1000000", {"bookie.disk_free_bytes_enough": 1_000_000}),
    Row("diskCheckInterval", "200", {"bookie.disk_check_interval_s": 0.2}),
]

MEMORY_ROWS = [
    Row(
        "dbStorage_writeCacheMaxSizeMb",
        "16",
        {"memory.write_cache": 16 * MIB, "bookie.write_cache_bytes": 16 * MIB},
    ),
    Row(
        "dbStorage_readAheadCacheMaxSizeMb",
        "20",
        {"memory.read_cache": 20 * MIB, "bookie.read_cache_bytes": 20 * MIB},
    ),
    Row("dbStorage_rocksDB_blockCacheSize", "5000000", {"memory.block_cache": 5_000_000}),
    Row(
        "journalMaxMemorySizeMb",
        "3",
        {"memory.journal": 3 * MIB, "bookie.journal_group_bytes_max": 3 * MIB},
    ),
    Row(
        "maxMessagePublishBufferSizeInMB",
        "9",
        {"memory.publish": 9 * MIB, "bookie.queue_bytes_max": 9 * MIB},
    ),
    Row("managedLedgerCacheSizeMB", "0", {"memory.tail_cache": 0, "tail_cache.bytes_max": 0}),
    # Shares of docs/memory.md: two quarters, a tenth, a 48th; of the rest, half and a fifth for the
    # broker; of what that leaves, 5, 4 and 3 twelfths.
    Row(
        "memoryMb",
        "480",
        {
            "memory.write_cache": 120 * MIB,
            "memory.read_cache": 120 * MIB,
            "memory.block_cache": 48 * MIB,
            "memory.journal": 10 * MIB,
            "memory.publish": 67 * MIB,
            "memory.tail_cache": 134 * MIB // 5,
            "memory.outboxes": 17_563_648,
            "memory.reads": 14_050_918,
            "memory.client_metadata": 10_538_190,
            "bookie.write_cache_bytes": 120 * MIB,
            "bookie.read_cache_bytes": 120 * MIB,
            "bookie.queue_bytes_max": 67 * MIB,
            "bookie.journal_group_bytes_max": 10 * MIB,
            "bookie.disk_free_bytes_min": 240 * MIB,
            "tail_cache.bytes_max": 134 * MIB // 5,
        },
    ),
]

ADDRESS_ROWS = [
    Row(
        "bindAddress",
        "127.0.0.2",
        {"listen.host": "127.0.0.2", "host_names.own": ("127.0.0.2", socket.gethostname())},
    ),
    Row("brokerServicePort", "6651", {"listen.binary_port": 6651}),
    Row("webServicePort", "8081", {"listen.web_port": 8081}),
    Row(
        "advertisedAddress",
        "broker.example",
        {
            "service_url": f"pulsar://broker.example:{LOCAL_PORT}",
            "host_names.own": ("127.0.0.1", "broker.example", socket.gethostname()),
        },
    ),
    Row(
        "gemingaWebServiceHostNames",
        "pulsar.example,console.example",
        {"host_names.listed": ("pulsar.example", "console.example")},
    ),
]

_WRITTEN = {"gemingaDeliveryLogDirectory": "/log"}

DELIVERY_LOG_ROWS = [
    Row(
        "gemingaDeliveryLogDirectory",
        "/log",
        {
            "delivery_log": ABSENT,
            "delivery_log.directory": "/log",
            "delivery_log.interval_s": 0.1,
            "delivery_log.file_bytes_max": 256 * MIB,
            "delivery_log.total_bytes_max": 4096 * MIB,
            "delivery_log.topic": "",
        },
    ),
    Row(
        "gemingaDeliveryLogTopic",
        "public/default/log",
        {"delivery_log.topic": "persistent://public/default/log"},
        given=_WRITTEN,
    ),
    Row("gemingaClock", "virtual", {"clock": "virtual"}),
    Row("gemingaDeliveryLogIntervalMs", "250", {"delivery_log.interval_s": 0.25}, given=_WRITTEN),
    Row("gemingaDeliveryLogFileSizeMB", "3", {"delivery_log.file_bytes_max": 3 * MIB}, given=_WRITTEN),
    Row("gemingaDeliveryLogTotalSizeMB", "30", {"delivery_log.total_bytes_max": 30 * MIB}, given=_WRITTEN),
]
