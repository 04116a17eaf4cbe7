"""One task of a replay: the rows of some source partitions, each to where it belongs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from geminga.pipeline.client.producing import Producer
from geminga.pipeline.columns.columns import BATCH_INDEX, ENTRY_ID, KEY, LEDGER_ID, TOPIC
from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.columns.routing import by_key
from geminga.pipeline.errors import Access
from geminga.pipeline.export.plan import whole_topic
from geminga.pipeline.export.replay_lane import Delivery, Lane, LaneSettings, Pace
from geminga.pipeline.export.replay_targets import Target, producer_name

ORDER: Final = (TOPIC, LEDGER_ID, ENTRY_ID, BATCH_INDEX)
"""How rows have to be sorted."""
DONE: Final = pa.schema(
    [
        ("source", pa.string()),
        ("target", pa.string()),
        ("rows", pa.int64()),
        ("skipped", pa.int64()),
        ("entries", pa.int64()),
        ("deduplicates", pa.bool_()),
    ]
)
"""What a task tells: a row for each source and target partition."""


@dataclass(frozen=True)
class Job:
    """The same for all tasks. Travels to the workers."""

    access: Access
    targets: Mapping[str, Target]
    producer_prefix: str
    settings: LaneSettings
    task_rows_per_s: float | None = None
    pending_max: int = 1000
    send_timeout_s: float = 20.0


def replay_rows(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send rows that are in `ORDER`; all rows of a source partition have to be here. Yields `DONE`.

    Raises `PipelineError`; what was sent by then stays sent.
    """
    pace = Pace(job.task_rows_per_s)
    source: _Source | None = None
    try:
        for batch in batches:
            for part in _by_topic(batch):
                topic = part.column(TOPIC)[0].as_py()
                if source is not None and source.topic != topic:
                    yield source.finish()
                    source.close()
                    source = None
                source = source or _Source(job, topic, pace)
                source.add(part)
        if source is not None:
            yield source.finish()
    finally:
        if source is not None:
            source.close()


def _by_topic(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows == 0:
        return
    codes = np.asarray(batch.column(TOPIC).dictionary_encode().indices)
    cuts = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), batch.num_rows]
    for first, last in pairwise(cuts):
        yield batch.slice(first, last - first)


class _Source:
    """One partition of an exported topic."""

    def __init__(self, job: Job, topic: str, pace: Pace) -> None:
        self.topic = topic
        self._job = job
        self._pace = pace
        self._target = job.targets[whole_topic(topic)]
        self._parts = self._target.of(topic)
        self._lanes: dict[str, tuple[Lane, Producer]] = {}
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        count = batch.num_rows
        ids = np.arange(self._rows, self._rows + count)
        self._rows += count
        if len(self._parts) == 1:
            self._lane(self._parts[0]).add(batch, ids)
            return
        chosen = self._choose(batch)
        for index in np.unique(chosen).tolist():
            mine = np.flatnonzero(chosen == index)
            self._lane(self._parts[index]).add(batch.take(pa.array(mine)), ids[mine])

    def _choose(self, batch: pa.RecordBatch) -> Ints:
        """By key; without one by where the message's entry was, so that batches stay together."""
        keyed = by_key(batch.column(KEY), len(self._parts))
        spread = np.asarray(batch.column(LEDGER_ID)) * 31 + np.asarray(batch.column(ENTRY_ID))
        return np.where(keyed < 0, spread % len(self._parts), keyed)

    def _lane(self, part: str) -> Lane:
        found = self._lanes.get(part)
        if found is None:
            job = self._job
            name = producer_name(job.producer_prefix, self.topic)
            producer = Producer(
                job.access,
                part,
                None if job.settings.delivery is Delivery.AT_LEAST_ONCE else name,
                pending_max=job.pending_max,
                send_timeout_s=job.send_timeout_s,
            )
            settings = replace(job.settings, versions=dict(self._target.versions))
            found = self._lanes[part] = Lane(producer, settings, self._pace), producer
        return found[0]

    def finish(self) -> pa.RecordBatch:
        rows = []
        for part, (lane, _) in self._lanes.items():
            sent = lane.finish()
            rows.append(
                {
                    "source": self.topic,
                    "target": part,
                    "rows": sent.rows,
                    "skipped": sent.skipped,
                    "entries": sent.entries,
                    "deduplicates": bool(lane.deduplicates),
                }
            )
        return pa.RecordBatch.from_pylist(rows, DONE)

    def close(self) -> None:
        for _, producer in self._lanes.values():
            producer.close()
