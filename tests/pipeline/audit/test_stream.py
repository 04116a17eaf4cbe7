"""The audit as a stream: the same faults as the audit of the whole, told as soon as they are known."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geminga.pipeline.audit.audit import audit_events
from geminga.pipeline.audit.events import SCHEMA, from_arrow
from geminga.pipeline.audit.settings import AuditSettings
from geminga.pipeline.audit.stream import Delta, TopicAudit, delta_table
from geminga.pipeline.audit.stream_topics import Shared, TopicsAudit

Row = dict[str, Any]
TOPIC = "persistent://public/default/t"
START_MS = 1_700_000_040_000
SETTINGS = AuditSettings(settle_ms=2_000, late_ms=1_000)


def published(entry_id: int, at_ms: int, **more: Any) -> Row:
    row = {"kind": "published", "time_ms": START_MS + at_ms, "topic": TOPIC, "ledger_id": 7}
    return row | {"entry_id": entry_id} | more


def dispatched(entry_id: int, at_ms: int, **more: Any) -> Row:
    row = published(entry_id, at_ms) | {"kind": "dispatched", "subscription": "s", "client": "c"}
    return row | {"publish_time_ms": START_MS + at_ms, "redelivery_count": 0} | more


def take(audit: TopicAudit, rows: list[Row], now_ms: int = 0) -> list[Delta]:
    return audit.take(from_arrow(pa.Table.from_pylist(rows, SCHEMA), name="test"), START_MS + now_ms)


def totals(deltas: list[Delta]) -> Counter[str]:
    found: Counter[str] = Counter()
    for delta in deltas:
        found[delta.what] += delta.more
    return found


def test_a_loss_is_told_when_its_time_has_passed() -> None:
    audit = TopicAudit(SETTINGS, 0)
    assert "lost" not in totals(take(audit, [published(0, 0), published(1, 0), dispatched(0, 5)]))
    assert "lost" not in totals(take(audit, [published(2, 1_900)]))
    deltas = take(audit, [dispatched(2, 4_000)])
    (lost,) = [delta for delta in deltas if delta.what == "lost"]
    assert (lost.subscription, lost.more, lost.ledger_id, lost.code) == ("s", 1, 7, 1)
    assert totals(take(audit, [dispatched(1, 5_000)]))["recovered"] == 1


def test_time_goes_on_while_nothing_comes() -> None:
    audit = TopicAudit(SETTINGS, 0)
    take(audit, [published(0, 0), dispatched(0, 1), published(1, 2)], now_ms=50)
    assert audit.has_open
    assert audit.pass_time(START_MS + 1_000) == []
    assert totals(audit.pass_time(START_MS + 9_000)) == {"lost": 1}
    assert not audit.has_open


def test_a_delayed_message_is_not_lost_before_it_is_due() -> None:
    audit = TopicAudit(SETTINGS, 0)
    due = {"deliver_at_ms": START_MS + 60_000}
    take(audit, [published(0, 0, **due), published(1, 0), dispatched(1, 1)])
    assert "lost" not in totals(take(audit, [published(2, 61_000), dispatched(2, 61_000)]))
    assert totals(take(audit, [dispatched(2, 64_000, redelivery_count=1)]))["lost"] == 1


def test_what_was_released_may_come_again_in_a_later_batch() -> None:
    audit = TopicAudit(SETTINGS, 0)
    released = {
        "kind": "released",
        "time_ms": START_MS + 10,
        "topic": TOPIC,
        "subscription": "s",
        "client": "c",
    }
    take(audit, [published(0, 0), published(1, 0), dispatched(0, 1), dispatched(1, 1, client="d"), released])
    deltas = take(audit, [dispatched(0, 20, client="d"), dispatched(1, 20, client="d")])
    assert totals(deltas)["repeated"] == 1
    assert totals(deltas)["duplicated"] == 1
    assert totals(take(audit, [dispatched(0, 30, client="d")]))["duplicated"] == 1


def random_topic(draw: random.Random) -> list[Row]:
    rows: list[Row] = []
    now = 0
    for entry_id in range(300):
        now += draw.choice((1, 10, 300))
        delay = draw.choice((0, 0, 0, 5_000, 30_000))
        due = {"deliver_at_ms": START_MS + now + delay} if delay else {}
        rows.append(published(entry_id, now, **due))
        more = {"publish_time_ms": START_MS + now, "client": draw.choice("cd")} | due
        if draw.random() < 0.95:
            at = now + delay + draw.choice((1, 1, 1, 40, 1_500, -200 if delay else 1))
            rows.append(dispatched(entry_id, at, **more))
            if draw.random() < 0.05 and at >= now + delay:
                rows.append(dispatched(entry_id, at + 700, **more, redelivery_count=draw.choice((0, 1))))
    rows.append(published(1000, now + 60_000))
    rows.append(dispatched(1000, now + 60_000))
    return sorted(rows, key=lambda row: row["time_ms"])


@pytest.mark.parametrize("batch", [1_000_000, 37])
def test_batches_of_a_log_tell_what_the_whole_tells(batch: int) -> None:
    draw = random.Random(batch)
    for _ in range(10):
        rows = random_topic(draw)
        whole = audit_events([from_arrow(pa.Table.from_pylist(rows, SCHEMA), name="test")], SETTINGS)
        (expected,) = whole.totals.to_pylist()
        audit = TopicAudit(SETTINGS, 0)
        deltas: list[Delta] = []
        for at in range(0, len(rows), batch):
            deltas += take(audit, rows[at : at + batch])
            audit = TopicAudit.from_bytes(audit.to_bytes())
        found = totals(deltas)
        for what in ("published", "dispatched", "redelivered", "early", "duplicated"):
            assert found[what] == expected[what]
        assert found["lost"] - found["recovered"] == expected["lost"]


class States(dict[str, bytes]):
    def put(self, topic: str, state: bytes) -> None:
        self[topic] = state


def take_all(states: States, shared: Shared, rows: list[Row]) -> tuple[Shared, list[tuple[str, Delta]]]:
    audit = TopicsAudit(SETTINGS, 0, shared, states)
    events = from_arrow(pa.Table.from_pylist(rows, SCHEMA), name="test")
    found = [(topic, delta) for topic, deltas in audit.take(events, START_MS) for delta in deltas]
    return audit.shared, found


def opened(at_ms: int) -> Row:
    return {"kind": "opened", "time_ms": START_MS + at_ms}


def test_after_a_start_every_topic_may_come_again_once() -> None:
    states = States()
    both = TOPIC, TOPIC + "2"
    rows = [row | {"topic": topic} for topic in both for row in (published(0, 0), dispatched(0, 1))]
    shared, found = take_all(states, Shared(), rows)
    assert not {delta.what for _, delta in found} & {"repeated", "duplicated"}
    again = [dispatched(0, 20, topic=both[0])]
    shared, found = take_all(states, shared, [opened(10), *again])
    assert totals([delta for _, delta in found])["repeated"] == 1
    # The other topic hears of the start with its first event after it, in whatever batch that is.
    rows = [dispatched(0, 30, topic=topic) for topic in both]
    shared, found = take_all(states, shared, rows)
    assert {(topic, delta.what) for topic, delta in found if delta.what != "dispatched"} == {
        (both[0], "duplicated"),
        (both[1], "repeated"),
    }
    assert shared.starts_ms == (START_MS + 10,)
    assert shared.open == set(both)


def test_events_that_the_broker_could_not_log_are_told() -> None:
    _, found = take_all(States(), Shared(), [{"kind": "missed", "time_ms": START_MS, "batch_size": 7}])
    assert found == [("", Delta("", START_MS // 60_000, "missed", 7))]


def test_what_is_malformed_is_counted_and_ends_nothing() -> None:
    rows = [published(0, 0), published(1, 0) | {"ledger_id": None}, {"time_ms": START_MS}, dispatched(0, 1)]
    events = from_arrow(pa.Table.from_pylist(rows, SCHEMA), name="test", leaves_out=True)
    audit = TopicsAudit(SETTINGS, 0, Shared(), States())
    found = [(topic, delta) for topic, deltas in audit.take(events, START_MS) for delta in deltas]
    assert found[0] == ("", Delta("", START_MS // 60_000, "malformed", 2))
    assert totals([delta for topic, delta in found if topic]) == {"published": 1, "dispatched": 1}


@pytest.mark.parametrize("batch", [1_000_000, 37])
def test_starts_are_told_of_as_in_the_audit_of_the_whole(batch: int) -> None:
    draw = random.Random(batch)
    kinds: Counter[str] = Counter()
    for _ in range(4):
        rows = [row | {"topic": topic} for topic in "tuv" for row in random_topic(draw)]
        last_ms = max(row["time_ms"] for row in rows)
        rows += [opened(draw.randrange(last_ms - START_MS)) for _ in range(30)]
        rows.sort(key=lambda row: (row["time_ms"], row["kind"] != "opened"))
        whole = audit_events([from_arrow(pa.Table.from_pylist(rows, SCHEMA), name="test")], SETTINGS)
        states, shared = States(), Shared()
        found: Counter[tuple[str, str]] = Counter()
        for at in range(0, len(rows), batch):
            shared, deltas = take_all(states, shared, rows[at : at + batch])
            for topic, delta in deltas:
                found[topic, delta.what] += delta.more
        for row in whole.totals.to_pylist():
            for what in ("published", "dispatched", "redelivered", "early", "duplicated", "repeated"):
                assert found[row["topic"], what] == row[what]
                kinds[what] += row[what]
    assert kinds["duplicated"]
    assert kinds["repeated"]


def test_what_a_consumer_gets_after_it_left_begins_a_lane_anew() -> None:
    audit = TopicAudit(SETTINGS, 0)
    left = {"kind": "released", "time_ms": START_MS + 2, "topic": TOPIC, "subscription": "s", "client": "c"}
    take(audit, [published(0, 0), published(5, 0), dispatched(5, 1)])
    assert "reordered" not in totals(take(audit, [left]))
    assert "reordered" not in totals(take(audit, [dispatched(0, 3)]))


def test_deltas_as_rows_name_the_message_of_a_batch() -> None:
    (row,) = delta_table(TOPIC, [Delta("s", 3, "lost", 2, 7, 5 << 10 | 4)], 10).to_pylist()
    assert (row["ledger_id"], row["entry_id"], row["batch_index"], row["count"]) == (7, 5, 4, 2)
    assert row["minute"].timestamp() == 180


def test_a_stream_of_files_is_audited(spark: Any, tmp_path: Path) -> None:
    from geminga.pipeline.spark.audit_stream import audit_stream, event_schema

    logs, out = tmp_path / "logs", tmp_path / "out"
    logs.mkdir()
    rows = [published(i, i) for i in range(10)]
    rows += [dispatched(i, 20 + i) for i in (*range(4), 3, *range(5, 10))]
    rows += [opened(50), dispatched(1, 60), published(99, 60_000), dispatched(99, 60_000)]
    wrong = [
        {"kind": "published", "time_ms": START_MS},
        {},
        published(3, 9) | {"kind": "x", "entry_id": None},
    ]
    rows += [*wrong, published(4, 9) | {"entry_id": None}]
    parts = rows[:14], rows[14:21], rows[21:]
    for number, part in enumerate(parts):
        pq.write_table(pa.Table.from_pylist(part, SCHEMA), logs / f"{number}.parquet")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    events = spark.readStream.schema(event_schema()).option("maxFilesPerTrigger", "1").parquet(str(logs))
    query = (
        audit_stream(events, SETTINGS, batch_index_max=0)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(out))
    )
    try:
        # Timers by the clock keep such a query going: it ends by being stopped.
        while sum(progress["numInputRows"] for progress in query.recentProgress) < len(rows):
            assert query.isActive, query.exception()
            threading.Event().wait(0.2)
    finally:
        query.stop()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    found: Counter[str] = Counter()
    for row in spark.read.parquet(str(out)).collect():
        found[row["what"]] += row["count"]
    assert found["lost"] == 1
    assert found["duplicated"] == 1
    assert found["repeated"] == 1
    assert (found["published"], found["dispatched"]) == (11, 12)
    assert found["malformed"] == 4
