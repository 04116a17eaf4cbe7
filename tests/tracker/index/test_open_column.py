"""The column that the index grows by: what it says of itself while rows come singly and in batches."""

from __future__ import annotations

import random

import numpy as np
import pytest

from geminga.tracker.index.open_column import HOT_BYTES_MAX, NEVER_MS, ROOM_ROWS_MIN, OpenColumn, narrow

ROWS = 150_000


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


@pytest.mark.parametrize("spread_ms", [200, 60_000, 86_400_000, 1 << 40])
@pytest.mark.parametrize("step", [1, 2, 7])
def test_rows_are_the_same_once_they_are_narrowed(spread_ms: int, step: int) -> None:
    """Singly and in batches, through several blocks; spans that go on over the end of a block begin anew."""
    chance, column = random.Random(1), OpenColumn()
    start_ms, ledger_code = 1_700_000_000_000, 7 << 32
    entries, times_ms = list(range(0, ROWS * step, step)), list[int]()
    at = 0
    while at < len(entries):
        count = min(chance.choice([1, 1, 5, 100]), len(entries) - at)
        part = [start_ms + chance.randrange(spread_ms) for _ in range(count)]
        ids = entries[at : at + count]
        if count == 1:
            column.add(ledger_code + ids[0], part[0])
        else:
            column.add_many(ledger_code, ids, part, min(part), continued=False)
        times_ms += part
        at += count
        column.settle()
        assert column.last_code() == ledger_code + ids[-1]
        if chance.random() < 0.01:
            assert (len(column), column.earliest_ms) == (at, min(times_ms))
    rows = column.rows()
    assert rows.times_ms.tolist() == times_ms
    assert (rows.codes - ledger_code).tolist() == entries


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_numbers_are_kept_at_the_edge_of_each_width(bits: int) -> None:
    for highest, width in (((1 << bits) - 1, bits // 8), (1 << bits, bits // 4)):
        found = narrow(np.array([5, 5 + highest, 6]))
        assert found.numbers().tolist() == [5, 5 + highest, 6]
        assert found.above.itemsize == width


def test_a_time_within_a_day_takes_four_bytes_however_the_positions_lie() -> None:
    for step, bytes_max in ((1, 4.1), (2, 6.1)):
        column = OpenColumn()
        for number in range(ROWS):
            if step > 1 or not column.times_ms:
                column.begin_span(number * step)
            column.append_time(1_700_000_000_000 + number * 7919 % 86_400_000)
            if number % ROOM_ROWS_MIN == 0:
                column.settle()
        assert column.memory_bytes() < bytes_max * ROWS + 1.25 * HOT_BYTES_MAX


def test_as_many_consecutive_rows_as_a_bucket_has_are_not_narrowed() -> None:
    column, rows = OpenColumn(), 0
    while rows < 50_000:
        count = min(column.room, 50_000 - rows)
        column.add_many(7 << 32, range(rows, rows + count), [5] * count, 5, continued=rows > 0)
        rows += count
        column.settle()
    assert len(column.times_ms) == 50_000
    assert column.room == ROOM_ROWS_MIN
