"""Rows packed for memory come back as they were, and are small where they are regular."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.tracker.format.packed_rows import pack_rows, unpack_rows
from geminga.tracker.format.rows import FAR_MS, Rows, from_columns, is_sorted, split_repeated

times = st.one_of(st.integers(0, 300), st.integers(0, 70_000), st.integers(0, FAR_MS))
codes = st.one_of(st.integers(0, 70_000), st.integers(0, (1 << 63) - 1))


@given(st.lists(st.tuples(times, codes), min_size=1, max_size=60))
def test_any_rows_come_back(pairs: list[tuple[int, int]]) -> None:
    rows, _ = split_repeated(from_columns(*zip(*pairs, strict=True)).sorted())
    assert is_sorted(rows)
    found = unpack_rows(pack_rows(rows))
    assert found.times_ms.tolist() == rows.times_ms.tolist()
    assert found.codes.tolist() == rows.codes.tolist()


@given(st.lists(st.tuples(times, codes), max_size=60))
def test_rows_are_sorted_by_time_then_code(pairs: list[tuple[int, int]]) -> None:
    rows = from_columns([ms for ms, _ in pairs], [code for _, code in pairs]).sorted()
    assert list(zip(rows.times_ms.tolist(), rows.codes.tolist(), strict=True)) == sorted(pairs)


@pytest.mark.parametrize("rows_count", [2, 65_535, 65_536, 65_537, 200_000])
def test_lengths_around_the_short_ones(rows_count: int) -> None:
    numbers = np.arange(rows_count, dtype=np.int64)
    for rows in (Rows(numbers // 8, numbers), Rows(numbers, numbers * 7919 % (1 << 30))):
        found = unpack_rows(pack_rows(rows))
        assert (found.times_ms == rows.times_ms).all()
        assert (found.codes == rows.codes).all()


def test_one_delay_takes_next_to_nothing() -> None:
    numbers = np.arange(50_000, dtype=np.int64)
    assert len(pack_rows(Rows(numbers // 8 & ~1023, numbers))) < 200
