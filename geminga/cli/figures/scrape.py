"""The figures of all topics, read from a broker's page of metrics."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from geminga.cli.client.addresses import start_one, wrong_scheme
from geminga.cli.client.errors import ClientError
from geminga.clock import RealClock

SECONDS_MAX = 30
LINE_BYTES_MAX = 64 * 1024

OF_TOPICS = {
    "pulsar_rate_in": "rate_in",
    "pulsar_rate_out": "rate_out",
    "pulsar_throughput_in": "bytes_in",
    "pulsar_throughput_out": "bytes_out",
    "pulsar_msg_backlog": "backlog",
    "pulsar_storage_size": "storage_bytes",
    "pulsar_producers_count": "producers",
    "pulsar_consumers_count": "consumers",
    "pulsar_subscriptions_count": "subscriptions",
    "pulsar_in_messages_total": "in_total",
    "geminga_compaction_kept_bytes": "kept_bytes",
}
OF_SUBSCRIPTIONS = {
    "pulsar_subscription_delayed": "delayed",
    "geminga_subscription_overdue": "overdue",
    "geminga_subscription_unread": "unread",
    "pulsar_subscription_unacked_messages": "unacked",
    "pulsar_subscription_blocked_on_unacked_messages": "blocked",
    "pulsar_out_messages_total": "out_total",
}
OF_BROKER = {
    "pulsar_active_connections": "connections",
    "geminga_memory_resident_bytes": "memory_bytes",
    "geminga_memory_budget_bytes": "memory_budget_bytes",
    "geminga_bookie_entry_log_bytes": "entry_log_bytes",
    "process_cpu_seconds_total": "cpu_s",
    "geminga_topics_stored": "topics_stored",
    "geminga_topics_loaded": "topics_loaded",
    "geminga_topics_unread": "topics_unread",
}
"""Metrics, and what we call them; those of subscriptions are summed up for their topic."""
_TOPIC = re.compile(r'[{,]topic="((?:[^"\\]|\\.)*)"')
UNSERVED = frozenset({"pulsar_subscription_back_log_no_delayed", "geminga_subscription_overdue"})
"""Together what a consumer would get."""
CONSUMERS = "pulsar_subscription_consumers_count"
_SUBSCRIPTION = re.compile(r'[{,]subscription="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class Scrape(NamedTuple):
    at_s: float
    took_s: float
    topics: dict[str, dict[str, float]]
    broker: dict[str, float]


def scrape(web_url: str) -> Scrape:
    """One page. Raises `ClientError`."""
    from urllib.request import Request, urlopen

    clock = RealClock()
    began_s = clock.monotonic_s()
    request = Request(f"{web_url}/metrics/", headers={"Accept-Encoding": "gzip"})
    try:
        with urlopen(request, timeout=SECONDS_MAX) as response:
            is_packed = response.headers.get("Content-Encoding") == "gzip"
            topics, broker = parsed(_lines(gzip.GzipFile(fileobj=response) if is_packed else response))
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "reason", error)
        hint = (
            f"nothing listens there; {start_one()}"
            if isinstance(reason, ConnectionRefusedError)
            else wrong_scheme(web_url, error) or str(reason)
        )
        raise ClientError(f"{web_url}: {hint}") from None
    return Scrape(began_s, clock.monotonic_s() - began_s, topics, broker)


def _lines(body: Iterable[bytes]) -> Iterator[str]:
    for line in body:
        if len(line) > LINE_BYTES_MAX:
            raise ValueError("this is no page of metrics")
        yield line.decode(errors="replace")


def parsed(lines: Iterable[str]) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Of each topic its figures, and those of the broker. `unserved` is the backlog of subscriptions that
    have no consumer, without what is delayed and not due yet.
    """
    topics: dict[str, dict[str, float]] = {}
    broker: dict[str, float] = {}
    unserved: dict[tuple[str, str], float] = {}
    served: set[tuple[str, str]] = set()
    for line in lines:
        name, brace, _ = line.partition("{")
        if not brace:
            name = line.partition(" ")[0]
        if name in OF_BROKER:
            broker[OF_BROKER[name]] = broker.get(OF_BROKER[name], 0.0) + _value(line)
            continue
        key = OF_TOPICS.get(name) or OF_SUBSCRIPTIONS.get(name)
        if key is None and name != CONSUMERS and name not in UNSERVED:
            continue
        found, subscription = _TOPIC.search(line), _SUBSCRIPTION.search(line)
        if found is None or (name in OF_TOPICS) is not (subscription is None):
            continue
        topic, value = _ESCAPED.sub(r"\1", found[1]), _value(line)
        if key is not None:
            figures = topics.setdefault(topic, {})
            figures[key] = figures.get(key, 0.0) + value
        if subscription is not None and value:
            place = topic, subscription[1]
            if name == CONSUMERS:
                served.add(place)
            elif name in UNSERVED:
                unserved[place] = unserved.get(place, 0.0) + value
    for place, entries in unserved.items():
        if place not in served:
            figures = topics.setdefault(place[0], {})
            figures["unserved"] = figures.get("unserved", 0.0) + entries
    return topics, broker


def _value(line: str) -> float:
    """The number behind the labels, which may hold anything; a time may follow it."""
    for text in line.rpartition("}")[2].split()[:1] if "}" in line else line.split()[1:2]:
        try:
            return float(text)
        except ValueError:
            return 0.0
    return 0.0
