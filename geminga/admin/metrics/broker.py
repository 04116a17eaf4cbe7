"""The broker as a whole, by Pulsar's names: connections, look-ups, loads of topics, latency, cache."""

from __future__ import annotations

from collections.abc import Iterator

from geminga import __version__
from geminga.admin.metrics.figures import Figure, counter, one, summary
from geminga.broker.flow.statistics import BrokerStatistics, CacheStatistics

PUBLISH_QUANTILES = ("0.0", "0.5", "0.95", "0.99", "0.999", "0.9999", "1.0")
LOOKUP_QUANTILES = ("0.5", "0.99", "0.999", "1.0")
LOAD_QUANTILES = ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999")


def broker_figures(broker: BrokerStatistics, cluster: str, host: str, topics: int) -> Iterator[Figure]:
    """`host` is the name by which clients know the broker, `topics` how many are loaded."""
    labels = {"cluster": cluster}
    yield one("pulsar_version_info", "Version of the broker", 1, **labels, version=__version__, commit="")
    yield from _connections(broker, {**labels, "broker": host, "metric": "broker_connection"})
    # Dashboards have two names for it.
    for name in ("pulsar_broker_publish_latency", "pulsar_instance_publish_latency"):
        text = "Milliseconds from receiving an entry until it is durable"
        yield summary(name, text, broker.publishes, PUBLISH_QUANTILES, labels)
    text = "Milliseconds until a look-up was answered"
    yield summary("pulsar_broker_lookup", text, broker.lookups, LOOKUP_QUANTILES, labels)
    answers = broker.lookups.events
    yield counter("pulsar_broker_lookup_answers_total", "Look-ups answered", answers, **labels)
    failures = broker.lookup_failures
    yield counter("pulsar_broker_lookup_failures_total", "Look-ups refused", failures, **labels)
    text = "Milliseconds until a topic was loaded"
    yield summary("pulsar_topic_load_times", text, broker.topic_loads, LOAD_QUANTILES, labels)
    pending = broker.topic_loads_pending
    yield one("pulsar_broker_topic_load_pending_requests", "Loads of topics under way", pending, **labels)
    failures = broker.topic_load_failures
    yield counter("topic_load_failed_total", "Topics that could not be loaded", failures, **labels)
    yield one("pulsar_ml_count", "Open managed ledgers", topics, **labels)
    yield from _cache(broker.cache, labels)


def _connections(broker: BrokerStatistics, labels: dict[str, str]) -> Iterator[Figure]:
    for name, text, value in (
        ("pulsar_active_connections", "Open connections", broker.active_connections),
        ("pulsar_connection_created_total_count", "Connections accepted", broker.connections_opened),
        ("pulsar_connection_create_success_count", "Connections accepted", broker.connections_opened),
        ("pulsar_connection_closed_total_count", "Connections closed", broker.connections_closed),
    ):
        yield one(name, text, value, **labels)


def _cache(cache: CacheStatistics, labels: dict[str, str]) -> Iterator[Figure]:
    prefix = "pulsar_ml_cache_"
    for name, text, value in (
        ("used_size", "Bytes in the tail cache", cache.used_bytes),
        ("entries", "Entries in the tail cache", cache.entries),
        ("inserted_entries_total", "Entries put into the tail cache", cache.inserted),
        ("evicted_entries_total", "Entries that left the tail cache", cache.evicted),
        (
            "evictions",
            "How often entries left the tail cache in the last interval because it was full",
            cache.evictions,
        ),
        ("hits_rate", "Entries read from the tail cache per second", cache.hits_per_s),
        ("hits_throughput", "Bytes read from the tail cache per second", cache.hit_bytes_per_s),
        ("misses_rate", "Entries per second that had to be read from the bookie", cache.misses_per_s),
        ("misses_throughput", "Bytes of these per second", cache.missed_bytes_per_s),
    ):
        yield one(prefix + name, text, value, **labels)
