"""Sequence ids of rows that are written exactly once. Pure.

    micro batch 26 bits | row of the task 27 bits | number of partitions 10 bits

They grow with micro batch and row, which is all that the broker's deduplication wants. The number of
partitions is there because a key chooses among as many: a task that runs again has to choose among those that
there were the first time, even if the topic has more by now.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.errors import PipelineError

_ROW_BITS, _PARTITIONS_BITS = 27, 10
_BATCH_BITS = _ROW_BITS + _PARTITIONS_BITS
ROWS_MAX = 1 << _ROW_BITS
BATCHES_MAX = 1 << (63 - _BATCH_BITS)
PARTITIONS_MAX = (1 << _PARTITIONS_BITS) - 1


def sequence_ids(batch_id: int, first: int, count: int, partitions: int) -> Ints:
    """Of the rows [first, first + count) of a task. Raises `PipelineError` where they would be too large."""
    if first + count > ROWS_MAX:
        raise PipelineError(
            f"more than {ROWS_MAX:,} rows in one task: repartition, or write less in a micro batch"
        )
    if batch_id >= BATCHES_MAX:
        raise PipelineError(f"more than {BATCHES_MAX:,} micro batches: begin a new checkpoint")
    if partitions > PARTITIONS_MAX:
        raise PipelineError(f"exactlyOnce writes to at most {PARTITIONS_MAX} partitions")
    rows = np.arange(first, first + count, dtype=np.int64)
    return (batch_id << _BATCH_BITS) + (rows << _PARTITIONS_BITS) + partitions


def bounds(batch_id: int) -> tuple[int, int]:
    """The first sequence id of a micro batch, and the first of the next."""
    return batch_id << _BATCH_BITS, (batch_id + 1) << _BATCH_BITS


def batch_of(sequence_id: int) -> int:
    """The micro batch of a row."""
    return sequence_id >> _BATCH_BITS


def partitions_then(batch_id: int, last_sequence_ids: Iterable[int], partitions: int) -> int:
    """Among how many partitions an earlier attempt at this micro batch has chosen, of a topic that has
    `partitions` now; that many if there was none. `last_sequence_ids`: of the task's producers.

    Raises `PipelineError` if they do not agree.
    """
    begin, end = bounds(batch_id)
    seen = {each & PARTITIONS_MAX for each in last_sequence_ids if begin <= each < end}
    if not seen:
        return partitions
    then = seen.pop()
    if not seen and 1 <= then <= partitions:
        return then
    raise PipelineError(
        f"an earlier attempt at micro batch {batch_id} wrote to another number of partitions than the topic "
        f"has or had ({partitions} now): it was deleted and created again, or two queries write under one "
        "producerNamePrefix"
    )
