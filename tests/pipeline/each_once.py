"""Rows that are compared in a few figures: the values from 0 on, each once under its key."""

from __future__ import annotations

from typing import Any

KEYS = 97


def at(service_url: str, topic: str) -> dict[str, str]:
    return {"service.url": service_url, "topic": topic}


def keyed(spark: Any, rows: int) -> Any:
    """As DataFrame, in eight partitions."""
    frame = spark.range(rows, numPartitions=8)
    return frame.selectExpr("cast(id as string) value", f"cast(id % {KEYS} as string) __key")


def assert_each_once(frame: Any, rows: int, topic: str) -> None:
    """Each value once, under its key."""
    found = frame.selectExpr("cast(cast(value as string) as long) v", "cast(__key as string) k")
    got = found.selectExpr(
        "count(*) rows",
        "count(distinct v) values",
        "min(v) low",
        "max(v) high",
        f"count_if(k <> v % {KEYS}) other",
    ).first()
    assert tuple(got) == (rows, rows, 0, rows - 1, 0), f"{topic}: {got}"
