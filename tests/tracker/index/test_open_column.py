"""The column that the index grows by: what it says of itself while rows come singly and in batches."""

from __future__ import annotations

import random

import pytest

from geminga.tracker.index.open_column import NEVER_MS, OpenColumn


@pytest.mark.parametrize("seed", range(20))
def test_the_earliest_time_is_right_however_rows_came_and_whenever_it_is_asked_for(seed: int) -> None:
    chance, column, times_ms = random.Random(seed), OpenColumn(), [NEVER_MS]
    entry_id = 0
    for _ in range(200):
        what = chance.random()
        if what < 0.4:
            times_ms.append(chance.randrange(1_000_000))
            column.add(entry_id, times_ms[-1])
            entry_id += 1
        elif what < 0.7:
            batch = [chance.randrange(1_000_000) for _ in range(chance.randrange(1, 9))]
            column.add_many(0, range(entry_id, entry_id + len(batch)), batch, min(batch), continued=False)
            times_ms += batch
            entry_id += len(batch)
        elif what < 0.98:
            assert column.earliest_ms == min(times_ms)
        else:
            column.clear()
            times_ms = [NEVER_MS]
    assert column.earliest_ms == min(times_ms)
    assert column.rows().times_ms.tolist() == times_ms[1:]
