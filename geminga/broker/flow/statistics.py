"""Statistics of a topic and of the broker: frozen structs for the admin API, the metrics, and tests.

Fields have Pulsar's names. Rates are per second over the last interval, counters start when the topic was
loaded, sizes are bytes, times are ms since 1970 (0: never).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec

from geminga.durations import NOTHING, Summary

ENTRY_SIZE_BOUNDS = (128, 512, 1024, 2048, 4096, 16 * 1024, 100 * 1024, 1024 * 1024)
"""Upper bounds of Pulsar's classes of entry sizes, in bytes; one more class is for larger entries."""
BUCKET_LATENCY_BOUNDS_MS = (50, 100, 500, 1000, 5000, 30_000, 60_000)
"""Upper bounds of Pulsar's latency classes for operations on buckets."""
WRITE_LATENCY_BOUNDS_MS = (0.5, 1, 5, 10, 20, 50, 100, 200, 1000)
"""Upper bounds of Pulsar's classes of write latency."""


class Classes(msgspec.Struct, frozen=True):
    """How many values of the last interval were in each class (not cumulative), and their sum.

    `counts` is empty if nothing was counted.
    """

    counts: tuple[int, ...] = ()
    sum: float = 0.0


class PublisherStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A connected producer."""

    producer_id: int
    producer_name: str
    access_mode: str
    """Shared, Exclusive, WaitForExclusive or ExclusiveWithFencing."""
    address: str
    client_version: str
    connected_since: int
    metadata: Mapping[str, str] = {}
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    average_msg_size: float = 0.0
    chunked_message_rate: float = 0.0


class BucketOperationStatistics(msgspec.Struct, frozen=True):
    """One kind of operation on buckets, counted since the topic was loaded."""

    type: str
    """create, load, delete or merge."""
    succeeded: int
    failed: int
    total_ms: float
    """The total duration of successful operations, which `latencies` counts."""
    latencies: tuple[int, ...]
    """How many took up to each of BUCKET_LATENCY_BOUNDS_MS and longer than the previous bound; the last
    count is for longer ones.
    """


class BucketStatistics(msgspec.Struct, frozen=True):
    """The statistics of a delayed index with buckets on the bookie."""

    buckets: int = 0
    """Includes the growing part, which is not sealed yet."""
    loaded: int = 0
    """Rows in memory."""
    stored_bytes: int = 0
    operations: tuple[BucketOperationStatistics, ...] = ()
    lost: Mapping[str, int] = {}
    """Lost buckets by how the loss was found: start, load, verify or told."""
    read_again: int = 0
    """Messages whose times were read from the backlog again, because their bucket was lost."""
    rebuilt: int = 0
    """Buckets that were sealed from such messages."""
    sealed: int = 0
    """Sealed buckets, without merged ones."""
    merged: int = 0
    """Buckets that were merged from others."""
    growing: int = 0
    """Rows of the growing part."""
    serving: int = 0
    """Sealed buckets on the bookie now."""


class LatenessStatistics(msgspec.Struct, frozen=True):
    """How late a subscription's delayed messages were sent, since its index was opened."""

    bounds_ms: tuple[int, ...]
    counts: tuple[int, ...]
    """How many were late by up to the i-th bound and more than the previous one; the last count is for later
    ones.
    """
    early: int
    """Messages that were sent early; `counts` does not include them."""
    total_ms: int
    """The total lateness of messages that were not early."""


class SubscriptionTotals(NamedTuple):
    """Of all subscriptions of a topic together."""

    consumers: int
    msg_backlog: int
    msg_rate_out: float
    msg_throughput_out: float
    delayed_index_bytes: int


class CursorSavings(msgspec.Struct, frozen=True):
    """How a durable cursor's states and its record were written, since the load."""

    name: str
    states_saved: int
    states_failed: int
    records_saved: int
    records_failed: int
    acknowledged_ranges: int
    """Acknowledged messages behind the first one that is not, in runs."""
    written_bytes: int
    read_bytes: int


class TopicStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, its producers, and its subscriptions with their consumers."""

    name: str
    """The full name, persistent://tenant/namespace/local."""
    is_loaded: bool = True
    """False: no client has used it since the start. Its records say what is stored, the bytes and entries of
    each backlog, and nothing else.
    """
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_in_counter: int = 0
    bytes_in_counter: int = 0
    average_msg_size: float = 0.0
    msg_chunk_published: bool = False
    storage_size: int = 0
    backlog_quota_limit_size: int = -1
    """The limit in bytes; -1: none."""
    backlog_quota_limit_time: int = -1
    """The limit in seconds; -1: none."""
    backlog_size: int = 0
    """Bytes stored from the slowest durable subscription's first unacknowledged message on."""
    publishers: list[PublisherStatistics] = []
    waiting_publishers: int = 0
    subscriptions: Mapping[str, Any] = {}
    """By name, the result of `Subscription.statistics()`."""
    delayed_index_bytes: int | None = None
    """Memory of the delayed index that the subscriptions share, with their views; None if each
    has its own.
    """
    delayed_buckets: BucketStatistics | None = None
    """The buckets of the shared index; None if there is no shared index, or it keeps no buckets."""
    entry_sizes: Classes = Classes()
    """Entries by ENTRY_SIZE_BOUNDS, in bytes."""
    write_latencies: Classes = Classes()
    """Latencies by WRITE_LATENCY_BOUNDS_MS, in ms."""
    topic_epoch: int | None = None
    topic_creation_time_stamp: int = 0
    last_publish_time_stamp: int = 0
    is_deduplicated: bool = False
    interval_s: float = 0.0
    """How long the last interval was; 0: none is over."""
    add_errors: int = 0
    """Entries that did not become durable."""
    publish_rate_limit_times: int = 0
    read_rate: float = 0.0
    """Entries read from the bookie, its caches included..."""
    read_throughput: float = 0.0
    """...and their bytes."""
    read_errors: int = 0
    mark_delete_rate: float = 0.0
    """States of cursors written."""
    backlog_age_s: int = -1
    """How old the oldest message of the backlog was at the last check of the quotas, if that asked; else
    -1.
    """
    quota_evictions: tuple[int, int] = (0, 0)
    """How often the quota of size and that of age took messages from the backlog."""
    cursors: list[CursorSavings] = []
    """Of durable cursors, if asked for."""
    kept_by: str = ""
    """What keeps all messages of the topic in place of compacting them: "request", "threshold", or "" for
    nothing.
    """
    kept_bytes: int = 0
    """Bytes stored that are kept so."""

    # What the metrics show beside the fields, by the names of families.
    offloaded_bytes: ClassVar[int] = 0

    @property
    def subscriptions_count(self) -> int:
        return len(self.subscriptions)

    @property
    def producers_count(self) -> int:
        return len(self.publishers)

    @property
    def write_latencies_us(self) -> float:
        """All of the last interval together, in microseconds."""
        return self.write_latencies.sum * 1000

    @property
    def entries_read(self) -> float:
        """From the bookie, in the last interval."""
        return self.read_rate * self.interval_s

    @property
    def of_subscriptions(self) -> SubscriptionTotals:
        consumers = backlog = delayed_bytes = 0
        rate = throughput = 0.0
        for subscription in self.subscriptions.values():
            consumers += len(subscription.consumers)
            backlog += subscription.msg_backlog
            rate += subscription.msg_rate_out
            throughput += subscription.msg_throughput_out
            delayed_bytes += subscription.delayed_message_index_size_in_bytes
        if self.delayed_index_bytes is not None:
            # A shared index counts once, however many subscriptions look at it.
            delayed_bytes = self.delayed_index_bytes
        return SubscriptionTotals(consumers, backlog, rate, throughput, delayed_bytes)

    @property
    def entries_written(self) -> int:
        """Entries that became durable in the last interval."""
        return sum(self.write_latencies.counts)

    @property
    def write_rate(self) -> float:
        """Entries; a batch is one."""
        return self.entries_written / self.interval_s if self.interval_s else 0.0


class MemoryPart(msgspec.Struct, frozen=True):
    """One part of the process's memory."""

    name: str
    setting: str
    """The setting that sizes this part; empty if none does."""
    configured_bytes: int
    used_bytes: int


class MemoryShare(msgspec.Struct, frozen=True):
    """A known share of the part `process`."""

    name: str
    used_bytes: int
    text: str
    """A description for people."""


class MemoryStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Memory use now. The part `process` is the memory that no other part accounts for."""

    budget_bytes: int
    resident_bytes: int
    """Resident bytes of the whole process, as the system counts them; 0: unknown."""
    rocksdb_buffer_bytes: int
    """The part of `process` that RocksDB uses for write buffers and for its tables."""
    parts: list[MemoryPart]
    process: list[MemoryShare] = []
    """The known shares of the part `process`."""
    publish_waits: int = 0
    """How often a connection was not read because bytes from publishers were not durable yet."""
    tail_entries_served: int = 0
    """Entries that were read from the tail cache; their bytes follow."""
    tail_bytes_served: int = 0
    tail_entries_missed: int = 0
    """Entries that had to be read from the bookie, including its caches."""


class BackupReport(msgspec.Struct, frozen=True, kw_only=True):
    """A completed copy of the broker's data."""

    directory: str
    files: int
    bytes: int
    """Bytes of journals and entry logs. Metadata and index are not counted; on the same disk they are
    linked.
    """
    seconds: float
    settings: dict[str, str] = {}
    """The settings with which a broker on the copy has to be started; empty: none."""


class DiskStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The file systems of the data directory and of the bookie's directories."""

    data_directory: str
    fullest_directory: str
    """The one whose file system has the smallest share free, with the bytes of that..."""
    free_bytes: int
    total_bytes: int
    """...`UNLIMITED_BYTES` if it counts no blocks."""


class CacheStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The tail cache: entries and bytes."""

    used_bytes: int = 0
    entries: int = 0
    inserted: int = 0
    evicted: int = 0
    """For any reason..."""
    evictions: int = 0
    """...and in the last interval because the cache was full, in strides."""
    served: int = 0
    missed: int = 0
    """Read from the bookie instead, its caches included."""
    hits_per_s: float = 0.0
    hit_bytes_per_s: float = 0.0
    misses_per_s: float = 0.0
    missed_bytes_per_s: float = 0.0


class TurnStatistics(msgspec.Struct, frozen=True):
    """Turns of the event loop, each from the end of a wait to the beginning of the next."""

    turns: int = 0
    pauses: int = 0
    busy_s: float = 0.0
    """All of them together."""
    longest_s: float = 0.0
    """Of this interval and the one before..."""
    longest_ever_s: float = 0.0
    """...and since the start."""


class BrokerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The broker as a whole, since the start."""

    active_connections: int = 0
    connections_opened: int = 0
    connections_closed: int = 0
    publishes: Summary = NOTHING
    """Of entries, from SEND to durable."""
    lookups: Summary = NOTHING
    """Those that were answered with an address..."""
    lookup_failures: int = 0
    """...and those that were not."""
    topic_loads: Summary = NOTHING
    topic_load_failures: int = 0
    topic_loads_pending: int = 0
    topics_loaded: int = 0
    topics_unloaded: int = 0
    """Topics on disk that no client has used since the start."""
    topics_unread: int = 0
    """Those of them whose figures are not known yet; at least 1 while topics are still being listed."""
    cache: CacheStatistics = CacheStatistics()
    turns: TurnStatistics = TurnStatistics()
