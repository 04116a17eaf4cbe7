"""`/admin/v2/broker-stats`: figures of the broker in the shapes of Pulsar's older monitoring."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from geminga.admin.http.router import Request, Response, Router, json_response, streamed_json
from geminga.admin.routes.addresses import Addresses
from geminga.admin.routes.cluster.brokers import PULSAR_VERSION
from geminga.admin.statistics.stats_json import encoded, topic_json
from geminga.admin.view.broker import BrokerIdentity
from geminga.admin.view.process import ProcessView
from geminga.admin.view.statistics import StatisticsView
from geminga.broker.flow.slices import Pace, in_slices, sorted_names
from geminga.broker.operator.loaded_topics import LoadedTopics
from geminga.broker.policies.bundles import topic_hash
from geminga.broker.policies.namespaces import Namespaces
from geminga.errors import Conflict, NamespaceNotFound, TopicNotFound
from geminga.limits import MIB
from geminga.names import TopicName

TOPICS_MAX = 10
"""Of a load report, between two turns of the loop: about a millisecond."""
SEPARATOR = " "
"""In the place of a topic: neither a namespace nor a bundle has one."""
ROOT = "/admin/v2/broker-stats"
ARENAS = ("directArenas", "heapArenas")
COUNTS = (
    "numDirectArenas",
    "numHeapArenas",
    "numThreadLocalCaches",
    "normalCacheSize",
    "smallCacheSize",
    "usedDirectMemory",
    "usedHeapMemory",
)


class HostCpu:
    """What the processors of the host were used for between two reports, as a share of all of them."""

    def __init__(self, ticks: Callable[[], tuple[int, int]]) -> None:
        """`ticks` gives those used and all, since some start."""
        self._ticks = ticks
        self._last = ticks()
        self._share = 0.0

    def share(self) -> float:
        """From 0 to 1. Two reports within one tick of the kernel have the same."""
        used, total = self._ticks()
        used_before, total_before = self._last
        if total > total_before:
            # A count that goes back, as that of waiting for disks may, is no use.
            self._share = max(used - used_before, 0) / (total - total_before)
            self._last = used, total
        return self._share


def _host_ticks() -> tuple[int, int]:
    """Of all processors, from Linux: without what was idle or waited for a disk. None without /proc."""
    try:
        with open("/proc/stat", "rb") as file:
            counts = [int(text) for text in file.readline().split()[1:9]]
    except OSError:
        return 0, 0
    total = sum(counts)
    return total - sum(counts[3:5]), total


class BrokerStatsRoutes:
    def __init__(
        self,
        broker: BrokerIdentity,
        namespaces: Namespaces,
        statistics: StatisticsView,
        process: ProcessView,
        loaded: LoadedTopics,
    ) -> None:
        self._broker = broker
        self._namespaces = namespaces
        self._statistics = statistics
        self._process = process
        self._loaded = loaded
        self._cpu = HostCpu(_host_ticks)

    def add_to(self, router: Router) -> None:
        router.add("GET", f"{ROOT}/metrics", self.metrics)
        router.add("GET", f"{ROOT}/mbeans", self.mbeans)
        router.add("GET", f"{ROOT}/topics", self.topics, walks="topics")
        router.add("GET", f"{ROOT}/load-report", self.load_report, walks="topics")
        router.add("GET", f"{ROOT}/bookieops", self.bookie_operations)
        router.add("GET", f"{ROOT}/allocator-stats/{{allocator}}", self.allocator)
        resources = f"{ROOT}/broker-resource-availability/{{tenant}}/{{namespace}}"
        router.add("GET", resources, self.resource_availability)

    async def metrics(self, request: Request) -> Response:
        """Lists of {"metrics": {...}, "dimensions": {...}}; `GET /metrics` has far more."""
        memory, bookie = self._process.memory(), self._statistics.of_bookie()
        used = {part.name: part.used_bytes for part in memory.parts}
        cache = {
            "brk_ml_count": len(self._loaded),
            "brk_ml_cache_used_size": used.get("tail_cache", 0),
            "brk_ml_cache_hits_total": memory.tail_entries_served,
            "brk_ml_cache_misses_total": memory.tail_entries_missed,
        }
        storage = {
            "bookie_entries_written_total": bookie.entries_written,
            "bookie_bytes_written_total": bookie.bytes_written,
            "bookie_journal_bytes_total": bookie.journal_bytes,
            "bookie_entry_log_bytes": bookie.entry_log_bytes,
        }
        connections = self._statistics.of_broker()
        counts = {
            "brk_active_connections": connections.active_connections,
            "brk_connection_created_total_count": connections.connections_opened,
            "brk_connection_closed_total_count": connections.connections_closed,
        }
        broker = Addresses(self._broker, request.local_host).broker
        return json_response(
            [
                {"metrics": cache, "dimensions": {}},
                {"metrics": storage, "dimensions": {"metric": "bookie"}},
                {"metrics": counts, "dimensions": {"broker": broker, "metric": "broker_connection"}},
            ]
        )

    async def mbeans(self, request: Request) -> Response:
        """There is no virtual machine: the process, by the names of the beans that tools look for."""
        memory, load = self._process.memory(), os.getloadavg()[0]
        system = {
            "Arch": os.uname().machine,
            "AvailableProcessors": os.cpu_count(),
            "SystemLoadAverage": load,
        }
        usage = {"used": memory.resident_bytes, "max": memory.budget_bytes}
        runtime = {"VmName": "Geminga", "SpecName": "CPython", "Pid": os.getpid()}
        beans = {"OperatingSystem": system, "Memory": {"HeapMemoryUsage": usage}, "Runtime": runtime}
        return json_response(
            [
                {"metrics": values, "dimensions": {"MBean": f"java.lang:type={name}"}}
                for name, values in beans.items()
            ]
        )

    async def topics(self, request: Request) -> Response:
        """By namespace, bundle, "persistent" and topic: the statistics of every loaded topic."""
        return streamed_json(self._topics(Addresses(self._broker, request.local_host).broker))

    async def _topics(self, owner: str) -> AsyncGenerator[bytes, None]:
        """One topic a part; one that goes meanwhile is passed over."""
        ranges: dict[str, list[str]] = {}
        places: list[str] = []
        pace = Pace()
        for name in self._loaded.names():
            places.append(self._place(name, ranges))
            await pace.row()
        opened: tuple[str, str] | None = None
        yield b"{"
        for place in await sorted_names(places):
            namespace, bundle, name = place.split(SEPARATOR, 2)
            await pace.turn()
            try:
                statistics = await self._statistics.of_topic(TopicName.parse(name))
            except (TopicNotFound, NamespaceNotFound):
                continue
            shown = await in_slices(topic_json(statistics, owner=owner))
            if opened == (namespace, bundle):
                head = b","
            else:
                key, part = msgspec.json.encode(namespace), msgspec.json.encode(bundle)
                if opened is None:
                    head = key + b":{"
                elif opened[0] == namespace:
                    head = b"}},"
                else:
                    head = b"}}}," + key + b":{"
                head += part + b':{"persistent":{'
            opened = namespace, bundle
            yield head + msgspec.json.encode(name) + b":" + await in_slices(encoded(shown))
        yield b"}" if opened is None else b"}}}}"

    def _place(self, name: str, ranges: dict[str, list[str]]) -> str:
        """Namespace, bundle and topic in one text, by which topics are sorted. `ranges` are the boundaries by
        namespace, as far as they are known.
        """
        topic = TopicName.parse(name)
        boundaries = ranges.get(str(topic.namespace))
        if boundaries is None:
            try:
                boundaries = self._namespaces.policies(topic.namespace)["bundles"]["boundaries"]
            except NamespaceNotFound:
                boundaries = ["0x00000000", "0xffffffff"]
            ranges[str(topic.namespace)] = boundaries
        starts = [int(text, 16) for text in boundaries[:-1]]
        index = bisect_right(starts, topic_hash(name)) - 1
        bundle = f"{boundaries[index]}_{boundaries[index + 1]}"
        return SEPARATOR.join((str(topic.namespace), bundle, name))

    async def load_report(self, request: Request) -> Response:
        addresses = Addresses(self._broker, request.local_host)
        memory = self._process.memory()
        used, limit = self._cpu.share(), (os.cpu_count() or 1) * 100.0
        now_ms = self._loaded.now_ms()
        resident = {"usage": memory.resident_bytes / MIB, "limit": memory.budget_bytes / MIB}
        free = {"usage": 0.0, "limit": -1.0}
        report: dict[str, Any] = {
            "webServiceUrl": addresses.web,
            "pulsarServiceUrl": addresses.binary,
            "persistentTopicsEnabled": True,
            "nonPersistentTopicsEnabled": False,
            "cpu": {"usage": used * limit, "limit": limit},
            "memory": resident,
            "directMemory": {"usage": 0.0, "limit": memory.budget_bytes / MIB},
            "bandwidthIn": free,
            "bandwidthOut": free,
            **dict.fromkeys(("msgThroughputIn", "msgThroughputOut", "msgRateIn", "msgRateOut"), 0.0),
            "lastUpdate": now_ms,
            "lastStats": {},
            "numTopics": len(self._loaded),
            "numBundles": 0,
            "numConsumers": 0,
            "numProducers": 0,
            "bundles": [],
            "lastBundleGains": [],
            "lastBundleLosses": [],
            "brokerVersionString": PULSAR_VERSION,
            "protocols": {},
            "advertisedListeners": {},
            "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
            "startTimestamp": self._loaded.started_ms,
            "maxResourceUsage": max(used, memory.resident_bytes / max(memory.budget_bytes, 1)),
            "loadReportType": "LocalBrokerData",
        }
        pace = Pace()
        for looked, statistics in enumerate(self._statistics.of_topics()):
            if statistics is None or looked % TOPICS_MAX == 0:
                await pace.turn()
            if statistics is not None:
                await _add(report, statistics, pace)
        return json_response(report)

    async def bookie_operations(self, request: Request) -> Response:
        return json_response({})

    async def allocator(self, request: Request) -> Response:
        """There is no such allocator: nothing is in use."""
        return json_response({**dict.fromkeys(COUNTS, 0), **{key: [] for key in ARENAS}})

    async def resource_availability(self, request: Request) -> Response:
        raise Conflict("one process does not share its load: there is nothing to tell about resources")


async def _add(report: dict[str, Any], statistics: Any, pace: Pace) -> None:
    """The statistics lose their subscriptions: freed at once, thousands would hold up the loop."""
    report["msgRateIn"] += statistics.msg_rate_in
    report["msgThroughputIn"] += statistics.msg_throughput_in
    report["numProducers"] += len(statistics.publishers)
    while statistics.subscriptions:
        _, subscription = statistics.subscriptions.popitem()
        await pace.row()
        report["numConsumers"] += len(subscription.consumers)
        report["msgRateOut"] += sum(consumer.msg_rate_out for consumer in subscription.consumers)
        report["msgThroughputOut"] += sum(consumer.msg_throughput_out for consumer in subscription.consumers)
