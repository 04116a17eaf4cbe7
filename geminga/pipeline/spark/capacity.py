"""The capacity table on Spark: ranges of ledgers side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

from pyspark.sql import SparkSession

from geminga.clock import RealClock
from geminga.pipeline.buckets.capacity import Plan, Row, Sample, Weighed, check, row_of, sample_of, weigh
from geminga.pipeline.spark.pieces import collect_each, cores_of

TASKS_PER_CORE = 4
"""So that all cores are done at nearly the same time; each task costs some 60 ms by itself."""
TASK_LEDGERS_MIN = 32


def capacity(
    spark: SparkSession, plans: Iterable[Plan], *, progress: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """One row for each plan; `progress` gets each as soon as it is there. Raises `WrongPlan` before it
    begins.
    """
    plans = list(plans)
    for plan in plans:
        check(plan)
    rows = []
    for plan in plans:
        began_s = RealClock().monotonic_s()
        sample = sample_of(plan)
        tasks = min(TASKS_PER_CORE * cores_of(spark), plan.ledgers // TASK_LEDGERS_MIN) or 1
        cuts = [plan.ledgers * number // tasks for number in range(tasks + 1)]
        ranges = list(pairwise(cuts))

        weighed = partial(_weighed, plan, sample)
        parts = collect_each(spark, ranges, weighed)
        rows.append(row_of(plan, parts, RealClock().monotonic_s() - began_s))
        progress(rows[-1])
    return rows


def _weighed(plan: Plan, sample: Sample, _: int, ledgers: tuple[int, int]) -> Weighed:
    return weigh(plan, *ledgers, sample)
