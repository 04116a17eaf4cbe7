"""Topics as rows of figures: partitions summed up, rates of two looks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from geminga.cli.figures.scrape import Scrape
from geminga.cli.show.numbers import UNKNOWN, bytes_text, count_text, rate_text
from geminga.cli.show.table import Column

_PARTITION = re.compile(r"(.+)-partition-\d+")
_SUMMED = (
    "rate_in",
    "rate_out",
    "bytes_in",
    "bytes_out",
    "backlog",
    "delayed",
    "overdue",
    "unread",
    "unacked",
    "unserved",
    "blocked",
    "storage_bytes",
    "kept_bytes",
    "producers",
    "consumers",
)
_COUNTED = ("rate_in", "rate_out", "bytes_in", "bytes_out")
SHORT = "persistent://public/default/"

COLUMNS = (
    Column("TOPIC", "shown", importance=9),
    Column("PARTS", "partitions", count_text, importance=1),
    Column("IN/s", "rate_in", rate_text, importance=8),
    Column("OUT/s", "rate_out", rate_text, importance=7),
    Column("BACKLOG", "backlog", count_text, importance=9),
    Column("DELAYED", "delayed_shown", str, importance=5),
    Column("UNACKED", "unacked", count_text, importance=6),
    Column("SUBS", "subscriptions", count_text, importance=3),
    Column("CONSUMERS", "consumers", count_text, importance=7),
    Column("PRODUCERS", "producers", count_text, importance=2),
    Column("STORAGE", "storage_bytes", bytes_text, importance=2),
)
SORTS = ("rate_in", "rate_out", "backlog", "delayed", "unacked", "consumers", "storage_bytes", "topic")
"""What rows may be sorted by; all but the name with the largest first."""


def is_system(topic: str) -> bool:
    """Topics that a broker keeps for itself."""
    return topic.rpartition("/")[2].startswith("__") or topic.startswith("persistent://pulsar/")


def whole_name(topic: str) -> str:
    """Of a partition the topic that it is part of."""
    found = _PARTITION.fullmatch(topic)
    return found[1] if found else topic


def short_name(topic: str) -> str:
    """As a person types it."""
    return topic.removeprefix(SHORT).removeprefix("persistent://")


def rows(now: Scrape, before: Scrape | None = None, *, with_system: bool = False) -> list[dict[str, Any]]:
    """A row for each topic, partitions summed up. With an earlier look the rates are those in between, else
    those that the broker tells, which may be a minute old.
    """
    found: dict[str, dict[str, Any]] = {}
    for topic, figures in now.topics.items():
        if not with_system and is_system(topic):
            continue
        figures = {**figures, **_live(figures, before, topic, now)}
        _add(found, topic, figures)
    for row in found.values():
        row["delayed_shown"] = delayed_text(row)
    return list(found.values())


def delayed_text(row: Mapping[str, Any]) -> str:
    """Of entries that were not read since the start any may be delayed: `-` or `>=12` then."""
    delayed = row.get("delayed") or 0
    if not row.get("unread"):
        return count_text(delayed)
    return f">={count_text(delayed)}" if delayed else UNKNOWN


def _live(figures: dict[str, float], before: Scrape | None, topic: str, now: Scrape) -> dict[str, float]:
    """Rates since the earlier look. A counter that went down was reset."""
    if before is None or now.at_s <= before.at_s:
        return {}
    seconds = now.at_s - before.at_s
    earlier = before.topics.get(topic, {})
    live = {}
    for counter, rate in (("in_total", "rate_in"), ("out_total", "rate_out")):
        if counter in figures:
            since = figures[counter] - earlier.get(counter, figures[counter])
            live[rate] = max(since, 0.0) / seconds
    return live


def live_stats(now: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
    """A topic's statistics with the rates of the time in between two looks, where their counters tell."""
    if before is None or seconds <= 0:
        return dict(now)
    subscriptions, earlier = now.get("subscriptions", {}), before.get("subscriptions", {})
    live = {
        **_between(now, before, seconds),
        "subscriptions": {
            name: {
                **_between(one, earlier.get(name), seconds),
                "consumers": _consumers(one, earlier.get(name, {}), seconds),
            }
            for name, one in subscriptions.items()
        },
    }
    return live


def _consumers(now: Mapping[str, Any], before: Mapping[str, Any], seconds: float) -> list[dict[str, Any]]:
    known = {one.get("consumerName"): one for one in before.get("consumers", ())}
    return [_between(one, known.get(one.get("consumerName")), seconds) for one in now.get("consumers", ())]


def _between(now: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
    live = dict(now)
    for counter, rate in (("msgInCounter", "msgRateIn"), ("msgOutCounter", "msgRateOut")):
        if before is not None and counter in now and counter in before and rate in now:
            live[rate] = max(now[counter] - before[counter], 0) / seconds
    return live


def _add(found: dict[str, dict[str, Any]], topic: str, figures: dict[str, float]) -> None:
    whole = whole_name(topic)
    row = found.get(whole)
    if row is None:
        row = found[whole] = {
            "topic": whole,
            "shown": short_name(whole),
            "partitions": None,
            "subscriptions": 0,
        }
    if whole != topic:
        row["partitions"] = (row["partitions"] or 0) + 1
    row["subscriptions"] = max(row["subscriptions"], round(figures.get("subscriptions", 0)))
    for key in _SUMMED:
        value = row.get(key, 0) + figures.get(key, 0.0)
        row[key] = value if key in _COUNTED else round(value)


def with_unloaded(found: list[dict[str, Any]], names: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of these topics, in the order of their names; those that are not loaded have no figures but
    the number of their partitions.
    """
    by_name = {row["topic"]: row for row in found}
    wanted: dict[str, dict[str, Any]] = {}
    parts: dict[str, int] = {}
    for name in sorted(names):
        whole = whole_name(name)
        if whole not in wanted:
            wanted[whole] = by_name.get(whole, {"topic": whole, "shown": short_name(whole)})
        if whole != name:
            parts[whole] = parts.get(whole, 0) + 1
    return [{**row, "partitions": parts.get(whole)} for whole, row in wanted.items()]


def in_order(found: list[dict[str, Any]], sort: str, *, is_reversed: bool = False) -> list[dict[str, Any]]:
    """Sorted by one of `SORTS`; equal ones by name."""
    by_name = sorted(found, key=lambda row: str(row["topic"]))
    if sort == "topic":
        return by_name[::-1] if is_reversed else by_name
    return sorted(by_name, key=lambda row: row.get(sort) or 0, reverse=not is_reversed)


def public(row: dict[str, Any]) -> dict[str, Any]:
    """A row as `--json` prints it. `delayed` is at least so many: any of the `unread` entries may be, too."""
    return {
        key: value
        for key, value in row.items()
        if key not in ("shown", "delayed_shown", "blocked", "kept_bytes", "overdue")
    }
