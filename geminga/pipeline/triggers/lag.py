"""How far a query is behind the ends of its topics, as it is shown in the query's progress. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

BEHIND, TOPICS = "behind", "rowsOfTopics"


class Lag(NamedTuple):
    """Of one topic. What is not known is None."""

    entries: int
    rows: int
    """Entries times what an entry holds, of those that were looked at."""
    size_bytes: int
    oldest_ms: int | None = None
    """How long ago the oldest message that was not read yet was published."""


def totals(lags: dict[str, Lag]) -> dict[str, Any]:
    """Of all topics together, as the `latestOffset` of a query's progress has it under `BEHIND`; and the rows
    of each that is behind.
    """
    found: dict[str, Any] = {
        "rows": sum(lag.rows for lag in lags.values()),
        "bytes": sum(lag.size_bytes for lag in lags.values()),
        "entries": sum(lag.entries for lag in lags.values()),
        "rowsOfWorstPartition": max((lag.rows for lag in lags.values()), default=0),
    }
    oldest = [lag.oldest_ms for lag in lags.values() if lag.oldest_ms is not None]
    topics = {topic: lag.rows for topic, lag in lags.items()}
    return found | ({"ms": max(oldest)} if oldest else {}) | ({TOPICS: topics} if topics else {})
