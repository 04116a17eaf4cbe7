"""What conditions leave of a plan: nothing that is wanted is missing, and what is not wanted is not read."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest

from geminga.pipeline.client.last_message import last_of
from geminga.pipeline.columns.columns import ColumnMaker, column_names
from geminga.pipeline.errors import BadOption
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.pruning import Condition, Pruning
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.topics.streaming import StreamPlan
from tests.e2e.admin_http import Admin
from tests.pipeline.conftest import POLL_TIMEOUT_S, Topics

BEGIN_MS = 1_700_000_000_000
APART_MS = 500
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": operator.contains,
}


class Clock:
    """Tells the given times one after the other, and the last one from then on."""

    def __init__(self, times_ms: list[int]) -> None:
        self._times_ms = times_ms

    def now_ms(self) -> int:
        return self._times_ms.pop(0) if len(self._times_ms) > 1 else self._times_ms[0]


def condition(column: str, comparison: str, *values: Any, negated: bool = False) -> Condition:
    return Condition(column, comparison, values, negated)


def pruning(*conditions: Condition, apart_ms: int | None = APART_MS) -> Pruning:
    return Pruning.of(conditions, apart_ms)


def rows(options: Any, plan: list[Range]) -> list[dict[str, Any]]:
    schema = column_names(("__partition",))
    import pyarrow as pa

    columns = pa.schema([("value", pa.binary()), *schema.items()])
    return [
        row
        for wanted in plan
        for batch in read_range(
            options.access, wanted, ColumnMaker(wanted.topic, columns), poll_timeout_s=POLL_TIMEOUT_S
        )
        for row in batch.to_pylist()
    ]


def written(topics: Topics, monkeypatch: pytest.MonkeyPatch, topic: str, times_ms: list[int]) -> None:
    """One message, and one entry, for each time."""
    monkeypatch.setattr("geminga.pipeline.writing.lane._CLOCK", Clock(list(times_ms)))
    topics.write(topic, {"value": [b"%d" % at for at in range(len(times_ms))]}, batchRows="1")


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (condition("__topic", "=", "persistent://public/default/a-partition-1"), [1]),
        (condition("__topic", "=", "a-partition-1"), []),
        (condition("__topic", "=", "persistent://public/default/b", negated=True), [0, 1, 2]),
        (condition("__topic", "in", "persistent://public/default/b", "x"), [3]),
        (condition("__topic", "ends", "-2"), [2]),
        (condition("__topic", ">=", "persistent://public/default/a-partition-2"), [2, 3]),
        (condition("__topic", "null"), []),
        (condition("__partition", "=", 1), [1]),
        (condition("__partition", ">", 0), [1, 2]),
        (condition("__partition", "=", 1, negated=True), [0, 2]),  # null is not unequal to 1
        (condition("__partition", "in", 0, 7, negated=True), [1, 2]),
        (condition("__partition", "null"), [3]),
        (condition("__partition", "null", negated=True), [0, 1, 2]),
        (condition("__topic", "=", 5), [0, 1, 2, 3]),  # another type: not ours to judge
        (condition("__key", "=", "a"), [0, 1, 2, 3]),
    ],
)
def test_topics_and_partitions_are_left_out(wanted: Condition, left: list[int]) -> None:
    known = [f"persistent://public/default/a-partition-{index}" for index in range(3)]
    known.append("persistent://public/default/b")
    assert pruning(wanted).topics(known) == [known[index] for index in left]


def test_of_a_time_whole_milliseconds_are_wanted(topics: Topics) -> None:
    def bounds(*conditions: Condition) -> tuple[int | None, int | None, bool]:
        from geminga.pipeline.topics.publish_times import Published

        options = topics.options("t", startingTime="5")
        found = pruning(*conditions).published(Published.of(options, "t"))
        return found.from_ms, found.before_ms, found.is_empty

    assert bounds(condition("__publishTime", ">", 7000)) == (8, None, False)
    assert bounds(condition("__publishTime", ">=", 7001)) == (8, None, False)
    assert bounds(condition("__publishTime", "<", 7001)) == (5, 8, False)
    assert bounds(condition("__publishTime", "<=", 7999)) == (5, 8, False)
    assert bounds(condition("__publishTime", "=", 7000)) == (7, 8, False)
    assert bounds(condition("__publishTime", "=", 7001)) == (8, 8, True)
    assert bounds(condition("__publishTime", "in", 9000, 7000)) == (7, 10, False)
    assert bounds(condition("__publishTime", "in")) == (5, 0, True)
    assert bounds(condition("__publishTime", "<", 9000), condition("__publishTime", "<", 6000)) == (
        5,
        6,
        False,
    )


def test_random_conditions_give_what_a_look_at_every_row_gives(
    topics: Topics, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publish times of several producers, out of order by up to `APART_MS`."""
    random_ = random.Random(17)
    admin.create_partitions(topic, 2)
    for part in (0, 1):
        times_ms = [BEGIN_MS + at * 40 + random_.randrange(APART_MS) for at in range(150)]
        written(topics, monkeypatch, f"{topic}-partition-{part}", times_ms)
    options = topics.options(topic, publishTimesApartMs=str(APART_MS))
    everything = rows(options, plan_batch(options))
    assert len(everything) == 300
    read = 0
    for _ in range(120):
        wanted = [_any_condition(random_, everything) for _ in range(random_.randint(1, 3))]
        exact = [each for each in wanted if each.is_exact]
        found = rows(options, plan_batch(options, Pruning.of(wanted, options.publish_times_apart_ms)))
        read += len(found)
        assert all(_fulfils(row, exact) for row in found)
        assert sorted(row["__messageId"] for row in found if _fulfils(row, wanted)) == sorted(
            row["__messageId"] for row in everything if _fulfils(row, wanted)
        ), wanted
    assert read < 120 * 300 / 3


def _any_condition(random_: random.Random, everything: list[dict[str, Any]]) -> Condition:
    column = random_.choice(["__topic", "__partition", "__publishTime", "__publishTime", "__messageId"])
    values = [_value(random_.choice(everything), column) for _ in range(3)]
    if column == "__publishTime":
        values = [value + random_.choice((0, 0, 1, -1, 999)) for value in values]
    comparison = random_.choice(["=", "in"] if column == "__messageId" else list(COMPARISONS))
    return Condition(column, comparison, tuple(values) if comparison == "in" else (values[0],))


def _value(row: dict[str, Any], column: str) -> Any:
    return round(row[column].timestamp() * 1_000_000) if column == "__publishTime" else row[column]


def _fulfils(row: dict[str, Any], conditions: list[Condition]) -> bool:
    for each in conditions:
        value = _value(row, each.column)
        if each.comparison == "in":
            if value not in each.values:
                return False
        elif not COMPARISONS[each.comparison](value, each.values[0]):
            return False
    return True


def test_of_40_000_rows_none_is_read_where_none_is_wanted(topics: Topics, topic: str) -> None:
    topics.write(topic, {"value": [b"x"] * 40_000})
    options = topics.options(topic)
    (row, *_) = topics.read(topic)
    hour_us = 3_600_000_000
    future_us = _value(row, "__publishTime") + 2 * hour_us
    beyond = last_of(options.access, topic).end
    from geminga.wire import pulsar_pb2 as pb

    other_id = pb.MessageIdData(ledgerId=beyond.ledger_id + 1, entryId=0).SerializeToString()
    for wanted in (
        condition("__topic", "=", "persistent://public/default/other"),
        condition("__partition", "=", 0),
        condition("__publishTime", ">", future_us),
        condition("__publishTime", "<", future_us - 4 * hour_us),
        condition("__messageId", "=", other_id),
    ):
        assert plan_batch(options, Pruning.of([wanted], None)) == []
    (one,) = plan_batch(options, pruning(condition("__messageId", "=", row["__messageId"])))
    assert [found["__messageId"] for found in rows(options, [one])] == [row["__messageId"]]


def test_a_topic_that_has_nothing_so_late_begins_at_its_end_or_fails(
    topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(topics, monkeypatch, topic, [BEGIN_MS, BEGIN_MS + 10])
    there = {"startingTime": str(BEGIN_MS + 10), "startingOffsetsByTimestampStrategy": "error"}
    assert topics.values(topic, **there) == [b"1"]
    late = there | {"startingTime": str(BEGIN_MS + 11)}
    with pytest.raises(
        BadOption, match="startingTime: .* has no message .* startingOffsetsByTimestampStrategy=latest"
    ):
        topics.values(topic, **late)
    plan = StreamPlan(topics.options(topic, **late))
    try:
        with pytest.raises(BadOption, match="no message that was published"):
            plan.initial()
    finally:
        plan.close()
    assert topics.values(topic, **late | {"startingOffsetsByTimestampStrategy": "latest"}) == []


def test_a_table_of_the_catalog_says_its_options_twice() -> None:
    table = {
        "option.service.url": "pulsar://localhost:6650",
        "service.url": "pulsar://localhost:6650",
        "option.topic": "orders",
        "topic": "orders",
        "owner": "someone",
        "path": "file:/warehouse/orders",
        "provider": "pulsar",
    }
    assert parse_options(table).topics == parse_options(
        {"service.url": "pulsar://localhost:6650", "topic": "orders", "provider": "pulsar"}
    ).topics  # fmt: skip
    with pytest.raises(BadOption, match=r"or in SQL OPTIONS \('service.url' 'pulsar://localhost:6650'\)"):
        parse_options({"provider": "pulsar"})
