"""Names of Java's parts that public dashboards ask for, with the nearest figures of this process.

The variables of several boards come from `jvm_info` and `jvm_memory_bytes_used`: without these the whole
board is blank. Each help text begins with "Shim". `caffeine_cache_...` tells of Geminga's own caches.
"""

from __future__ import annotations

import gc
import platform
import resource
import sys
import threading
from collections.abc import Iterator
from typing import Any

from geminga.admin.metrics.figures import Figure, counter, one
from geminga.bookie.records.settings import BookieStatistics
from geminga.broker.flow.statistics import BrokerStatistics, MemoryStatistics
from geminga.clock import RealClock

GENERATIONS = 3
_monotonic_s = RealClock().monotonic_s
_BEGAN_S = _monotonic_s()
_USED_S = resource.getrusage(resource.RUSAGE_SELF).ru_utime


class Collections:
    """Garbage collections of Python, timed from the first scrape on."""

    def __init__(self) -> None:
        self.took_s = [0.0] * GENERATIONS
        self._began_s = 0.0

    def begin(self) -> None:
        gc.callbacks.append(self._on_phase)

    def _on_phase(self, phase: str, info: dict[str, Any]) -> None:
        now_s = _monotonic_s()
        if phase == "start":
            self._began_s = now_s
        elif self._began_s:
            self.took_s[info["generation"]] += now_s - self._began_s


def jvm_figures(
    memory: MemoryStatistics, collections: Collections, cluster: str, host: str
) -> Iterator[Figure]:
    labels = {"cluster": cluster}
    python = {
        **labels,
        "runtime": "Python",
        "vendor": platform.python_implementation(),
        "version": platform.python_version(),
    }
    yield Figure("jvm_info", "Shim: Python", [(python, 1.0)])
    heap = {**labels, "area": "heap"}
    used = {part.name: float(part.used_bytes) for part in memory.parts}
    process = used.get("process", 0.0)
    text = "Shim: memory of the process; nonheap is what no part of the budget accounts for"
    resident = float(memory.resident_bytes)
    areas = [(heap, resident - process), ({**labels, "area": "nonheap"}, process)]
    yield Figure("jvm_memory_bytes_used", text, areas)
    yield Figure("jvm_memory_bytes_committed", "Shim: as jvm_memory_bytes_used", areas)
    yield Figure("jvm_memory_bytes_max", "Shim: the budget", [(heap, float(memory.budget_bytes))])
    pools = [({**labels, "pool": name}, value) for name, value in used.items()]
    yield Figure("jvm_memory_pool_bytes_used", "Shim: parts of the memory budget", pools)
    direct = sum(used.get(part, 0.0) for part in ("publish", "outboxes", "reads"))
    limit = sum(
        part.configured_bytes for part in memory.parts if part.name in ("publish", "outboxes", "reads")
    )
    yield one("jvm_memory_direct_bytes_used", "Shim: buffers of connections and reads", direct, **labels)
    yield one("jvm_memory_direct_bytes_max", "Shim: what these may take", limit, **labels)
    generations = [{**labels, "gc": f"Generation {number}"} for number in range(GENERATIONS)]
    counts = [float(each["collections"]) for each in gc.get_stats()]
    yield Figure(
        "jvm_gc_collection_seconds",
        "Shim: collections of Python's garbage collector; their seconds since the first scrape",
        [],
        "summary",
        [
            (ending, name, value)
            for name, count, took_s in zip(generations, counts, collections.took_s, strict=True)
            for ending, value in (("_count", count), ("_sum", took_s))
        ],
    )
    threads = float(threading.active_count())
    yield one("jvm_threads_current", "Shim: threads of Python", threads, **labels)
    yield one("jvm_threads_deadlocked", "Shim: 0", 0, **labels)
    states = [({**labels, "state": "RUNNABLE"}, threads)]
    yield Figure("jvm_threads_state", "Shim: threads of Python, whatever they do", states)
    yield one("jvm_classes_loaded", "Shim: modules of Python", len(sys.modules), **labels)
    yield from _load(
        memory, direct / limit * 100 if limit else 0.0, {**labels, "broker": host, "metric": "loadBalancing"}
    )


def _load(memory: MemoryStatistics, direct_percent: float, labels: dict[str, str]) -> Iterator[Figure]:
    # Of what one process knows. It has no limits of bandwidth to be used up.
    percent = memory.resident_bytes / memory.budget_bytes * 100 if memory.budget_bytes else 0.0
    yield one("pulsar_lb_memory_usage", "Shim: resident memory, in percent of the budget", percent, **labels)
    text = "Shim: buffers of connections and reads, in percent of what they may take"
    yield one("pulsar_lb_directMemory_usage", text, direct_percent, **labels)
    used = resource.getrusage(resource.RUSAGE_SELF)
    share = (used.ru_utime + used.ru_stime - _USED_S) / max(_monotonic_s() - _BEGAN_S, 1e-3)
    yield one(
        "pulsar_lb_cpu_usage",
        "Shim: processor time since the first scrape, in percent",
        share * 100,
        **labels,
    )


def cache_figures(broker: BrokerStatistics, bookie: BookieStatistics, cluster: str) -> Iterator[Figure]:
    """As Caffeine tells of its caches: the tail cache, and the bookie's read cache with its loads."""
    tail, reads = broker.cache, bookie.latencies.reads
    hits = bookie.found.write_cache_entries + bookie.found.read_cache_entries
    caches = (
        ("tail", tail.served, tail.missed, tail.evicted, tail.entries, 0, 0.0),
        ("bookie-read", hits, bookie.reads_from_log, 0, 0, bookie.found.log_loads, reads.total_ms / 1000),
    )

    def of(
        place: int, names: tuple[str, ...] = ("tail", "bookie-read")
    ) -> list[tuple[dict[str, str], float]]:
        return [
            ({"cluster": cluster, "cache": each[0]}, float(each[place]))
            for each in caches
            if each[0] in names
        ]

    only_tail, only_bookie = ("tail",), ("bookie-read",)
    yield Figure("caffeine_cache_hit_total", "Shim: entries found in a cache", of(1), "counter")
    yield Figure("caffeine_cache_miss_total", "Shim: entries not found in a cache", of(2), "counter")
    text = "Shim: entries that left the tail cache"
    yield Figure("caffeine_cache_eviction_total", text, of(3, only_tail), "counter")
    yield Figure("caffeine_cache_estimated_size", "Shim: entries in the tail cache", of(4, only_tail))
    text = "Shim: reads from entry logs"
    yield Figure("caffeine_cache_loads_total", text, of(5, only_bookie), "counter")
    yield Figure(
        "caffeine_cache_load_duration_seconds",
        "Shim: how long entries waited for an entry log",
        [],
        "summary",
        [
            ("_count", {"cluster": cluster, "cache": "bookie-read"}, float(reads.events)),
            ("_sum", {"cluster": cluster, "cache": "bookie-read"}, reads.total_ms / 1000),
        ],
    )


def request_figures(requests: int, cluster: str) -> Iterator[Figure]:
    yield counter("jetty_requests_total", "Shim: requests to this page", requests, cluster=cluster)
