"""The published table, weighed again at a hundredth of its size, and what no formula speaks of."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from pyroaring import BitMap, BitMap64

from geminga.limits import MIB
from geminga.pipeline.buckets.capacity import (
    ARTICLE,
    Plan,
    Sample,
    Weighed,
    WrongPlan,
    check,
    ledger_times_ms,
    row_of,
    rows_of,
    sample_of,
    text_of,
    weigh,
)

WHOLE = Sample(1, 1)


def mib_for_10m(per_ms: float, bits: int) -> float:
    (row,) = rows_of([Plan(1_000_000, per_ms, bits)])
    return row.bitmap_bytes * 10 / MIB


@pytest.mark.parametrize(
    ("per_ms", "bits", "mib"), [(1, 10, 19.23), (4, 10, 19.11), (8, 10, 10.34), (8, 15, 1.83)]
)
def test_the_published_rows(per_ms: float, bits: int, mib: float) -> None:
    found = mib_for_10m(per_ms, bits)
    assert found == pytest.approx(mib, rel=0.03)
    theory, measured = ARTICLE[per_ms, bits]
    assert theory * 0.99 < found < measured


@pytest.mark.parametrize(
    "plan",
    [
        Plan(100_000, 8, 10, "uniform:1m"),
        Plan(100_000, 8, 10),
        Plan(100_001, 3, 0, entries_per_ledger=66_000),
        Plan(140_000, 9_000, 2, entries_per_ledger=70_001),
        Plan(2_000, 1, 0, "uniform:90d", entries_per_ledger=1_500),
    ],
)
def test_bytes_are_those_of_bitmaps_made_by_hand(plan: Plan) -> None:
    bitmaps: dict[tuple[int, int], BitMap] = {}
    for ledger in range(2):
        for entry_id, time_ms in enumerate(ledger_times_ms(plan, ledger).tolist()):
            key = ledger, time_ms >> plan.bits
            bitmaps.setdefault(key, BitMap(optimize=False)).add(entry_id)
    found = weigh(plan, 0, 2, WHOLE)
    assert found.bitmaps == len(bitmaps)
    assert found.bitmap_bytes == sum(len(bitmap.serialize()) for bitmap in bitmaps.values())
    for bitmap in bitmaps.values():
        bitmap.run_optimize()
    assert found.run_bytes == sum(len(bitmap.serialize()) for bitmap in bitmaps.values())
    assert len(BitMap64.deserialize(found.times)) == len({time for _, time in bitmaps})


def test_ranges_of_ledgers_add_up() -> None:
    plan = Plan(1_010_000, 8, 10, "choice:10s,1m,1h", entries_per_ledger=20_000)
    assert plan.ledgers == 51
    cuts = [0, 1, 17, 50, 51]
    parts = [weigh(plan, a, b, WHOLE) for a, b in itertools.pairwise(cuts)]
    whole = weigh(plan, 0, 51, WHOLE)
    assert sum(parts[1:], parts[0])[:-1] == whole[:-1]
    assert row_of(plan, parts, 1.0) == row_of(plan, [whole], 1.0)


def test_a_sample_is_near_the_whole() -> None:
    plan = Plan(2_000_000, 8, 10, "exponential:10m")
    whole, part = (
        row_of(plan, [weigh(plan, 0, plan.ledgers, sample)], 0.0) for sample in (WHOLE, Sample(8, 8))
    )
    assert part.weighed_share == pytest.approx(1 / 8)
    assert part.bitmap_bytes == pytest.approx(whole.bitmap_bytes, rel=0.02)
    assert part.bucket_bytes == pytest.approx(whole.bucket_bytes, rel=0.02)
    assert part.bitmaps == pytest.approx(whole.bitmaps, rel=0.05)


def test_a_large_plan_is_sampled_a_regular_one_is_not() -> None:
    assert sample_of(Plan(1_000_000_000, 1, 10)).weighed == 1
    assert sample_of(Plan(1_000_000_000, 1, 10, "uniform:1d")).weighed > 100


def test_delays_are_drawn_as_named() -> None:
    plan = Plan(50_000, 1, 10)
    published = ledger_times_ms(plan, 0)
    assert published[0] == published[-1] - 49_999
    for delays, mean in (("uniform:10s", 5_000), ("exponential:10s", 10_000), ("normal:10s,1s", 10_000)):
        drawn = ledger_times_ms(plan._replace(delays=delays), 0) - published
        assert drawn.mean() == pytest.approx(mean, rel=0.02)
        assert np.array_equal(drawn, ledger_times_ms(plan._replace(delays=delays), 0) - published)
    chosen = ledger_times_ms(plan._replace(delays="choice:1s,1m"), 0) - published
    assert set(chosen.tolist()) == {1_000, 60_000}


def test_batches_need_fewer_entries() -> None:
    (row,) = rows_of([Plan(1_000_000, 8, 10, batch=100)])
    assert row.heap_bytes == 10_000 * 24
    assert row.plan.ledgers == 1


@pytest.mark.parametrize("delays", ["later", "uniform", "uniform:ten", "normal:1h", "fixed:1s"])
def test_delays_that_cannot_be_drawn(delays: str) -> None:
    with pytest.raises(WrongPlan):
        check(Plan(1, 1, 10, delays))


def test_the_table_has_the_articles_figures_beside_ours() -> None:
    text = text_of(rows_of([Plan(100_000, 8, 10), Plan(100_000, 8, 10, "uniform:1m")]))
    fixed, uniform = text.splitlines()[3:]
    assert "9.53" in fixed
    assert "11.00" in fixed
    assert "11.00" not in uniform


def test_nothing_weighs_nothing() -> None:
    weighed = weigh(Plan(100_000, 1, 10), 0, 2, WHOLE)
    assert (Weighed() + weighed)[:-1] == weighed[:-1]
