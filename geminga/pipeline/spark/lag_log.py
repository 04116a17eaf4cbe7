"""A line of log for each trigger of the session's streams: how far they are behind, and why one ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from geminga.pipeline.spark.failures import words_of
from geminga.pipeline.triggers.lag import BEHIND, TOPICS

_LOG: Final = logging.getLogger("geminga.pipeline")
_TOPICS_MAX: Final = 5


class LagLog(StreamingQueryListener):
    """`spark.streams.addListener(LagLog())`. Info of the logger `geminga.pipeline`, and an error when a query
    ends with one, as with `DataLost`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, str] = {}
        """Of the queries that run, by their ids."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        for source in progress.sources:
            behind = _behind(source.latestOffset)
            if behind is not None:
                name = progress.name or progress.id
                _LOG.info("%s, micro-batch %s: %s", name, progress.batchId, ", ".join(_words(behind)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        name = self._names.pop(str(event.id), str(event.id))
        if event.exception is not None:
            _LOG.error("%s has ended: %s", name, words_of(RuntimeError(event.exception)))


def _behind(offset: str | None) -> dict[str, Any] | None:
    """None: of another source, or not known now."""
    try:
        found = json.loads(offset or "null")
    except ValueError:
        return None
    behind = found.get(BEHIND) if isinstance(found, dict) else None
    return behind if isinstance(behind, dict) else None


def _words(behind: dict[str, Any]) -> Iterator[str]:
    oldest = f" (the oldest is {behind['ms'] / 1000:.1f} s old)" if "ms" in behind else ""
    yield f"{behind['rows']} rows behind{oldest}"
    topics = sorted(behind.get(TOPICS, {}).items(), key=lambda each: (-each[1], each[0]))
    yield from (f"{topic} {rows}" for topic, rows in topics[:_TOPICS_MAX])
    if len(topics) > _TOPICS_MAX:
        yield f"and {len(topics) - _TOPICS_MAX} topics more"
