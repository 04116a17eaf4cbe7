"""Sequence ids of rows written exactly once."""

from __future__ import annotations

import pytest

from geminga.pipeline.errors import PipelineError
from geminga.pipeline.writing.sequences import BATCHES_MAX, ROWS_MAX, bounds, partitions_then, sequence_ids


def test_they_grow_with_row_and_micro_batch_whatever_the_number_of_partitions() -> None:
    ids = [
        int(each)
        for batch_id, first, partitions in (
            (0, 0, 1023),
            (0, 3, 1),
            (1, 0, 7),
            (BATCHES_MAX - 1, ROWS_MAX - 3, 2),
        )
        for each in sequence_ids(batch_id, first, 3, partitions)
    ]
    assert ids == sorted(set(ids))
    assert ids[0] >= 0
    assert ids[-1] < 2**63
    begin, end = bounds(1)
    assert [begin <= each < end for each in ids] == [False] * 6 + [True] * 3 + [False] * 3


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PipelineError, match="repartition"):
        sequence_ids(0, ROWS_MAX - 1, 2, 1)
    with pytest.raises(PipelineError, match="new checkpoint"):
        sequence_ids(BATCHES_MAX, 0, 1, 1)
    with pytest.raises(PipelineError, match="at most 1023 partitions"):
        sequence_ids(0, 0, 1, 1024)


@pytest.mark.parametrize(("then", "now"), [(1, 1), (1, 2), (3, 8), (256, 512), (999, 1000)])
def test_they_tell_how_many_partitions_there_were(then: int, now: int) -> None:
    last = [int(sequence_ids(5, row, 1, then)[0]) for row in (4, 0, 17)]
    before = int(sequence_ids(4, 9, 1, 77)[0])
    assert partitions_then(5, [-1, before, *last], now) == then
    assert partitions_then(5, [-1, before], now) == now
    assert partitions_then(6, last, now) == now


def test_attempts_that_do_not_agree_are_refused() -> None:
    last = [int(sequence_ids(5, 0, 1, partitions)[0]) for partitions in (2, 3)]
    with pytest.raises(PipelineError, match="another number of partitions"):
        partitions_then(5, last, 4)
    with pytest.raises(PipelineError, match="another number of partitions"):
        partitions_then(5, last[1:], 2)
