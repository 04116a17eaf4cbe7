"""From Geminga to another broker and back, through files: everything that consumers can see stays the same.

    python -m tests.pipeline.exactness.round_trip --service-url pulsar://127.0.0.1:6650 --web-url http://127.0.0.1:8080

The other broker (a real Pulsar, say) has to be running; Geminga is started here. Topics: keyed and in
partitions, batched and compressed in each codec; delayed for a Shared subscription that holds them; with an
AVRO schema in two versions; one message in chunks. Takes one to three minutes, most of it Spark's start.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
from pulsar import schema as pulsar_schema

from geminga.clock import RealClock
from geminga.pipeline.columns.columns import BATCH_INDEX, ENTRY_ID, LEDGER_ID, TOPIC
from geminga.pipeline.spark import make_session
from geminga.pipeline.spark.export import export_topics
from geminga.pipeline.spark.replay import replay
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess, Endpoints

NAMESPACE, SUBSCRIPTION = "public/trip", "workers"
KEYED, DELAYED, TYPED = (f"persistent://{NAMESPACE}/{name}" for name in ("keyed", "delayed", "typed"))
PARTITIONS, KEYS, BATCH = 4, 50, 25
CODECS = (
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
)
SAME = ("value", "__key", "__keyBase64", "__orderingKey", "__messageProperties", "__eventTime",
        "__deliverAtTime", BATCH_INDEX, "__partition")  # fmt: skip
CLOCK = RealClock()


class Order(pulsar_schema.Record):  # type: ignore[misc]
    number = pulsar_schema.Integer()
    item = pulsar_schema.String()


class OrderWithNote(pulsar_schema.Record):  # type: ignore[misc]
    number = pulsar_schema.Integer()
    item = pulsar_schema.String()
    note = pulsar_schema.String(default=None, required_default=True)


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@contextmanager
def client_of(broker: Endpoints) -> Iterator[pulsar.Client]:
    found = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield found
    found.close()


def prepare(broker: Endpoints, *, deduplicate: bool) -> None:
    admin = Admin(broker.web_url)
    clusters = admin.get("/admin/v2/clusters").json()
    assert admin.put("/admin/v2/tenants/public", {"allowedClusters": clusters}).status in (204, 409)
    answer = admin.put(f"/admin/v2/namespaces/{NAMESPACE}")
    assert answer.status in (204, 409), answer
    path = f"/admin/v2/namespaces/{NAMESPACE}/deduplication"
    if deduplicate:
        assert admin.post(path, True).status == 204


def keyed_value(row: int) -> bytes:
    return b"%d " % row + b"x" * (row % 90)


def due_at_ms(row: int, due_ms: int) -> int:
    """A fifth at `due_ms`, others an hour and more later."""
    return due_ms + row if row % 5 == 0 else due_ms + 3_600_000 + row * 1000


def fill(broker: Endpoints, messages: int, due_ms: int) -> None:
    Admin(broker.web_url).create_partitions(KEYED, PARTITIONS)
    with client_of(broker) as client:
        for topic in (KEYED, DELAYED, TYPED):
            client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared).close()
        for number, codec in enumerate(CODECS):
            producer = client.create_producer(KEYED, compression_type=codec, batching_max_messages=BATCH,
                                              block_if_queue_full=True)  # fmt: skip
            share = messages // len(CODECS)
            for row in range(number * share, (number + 1) * share):
                value, properties = keyed_value(row), {"row": str(row), "é": "ü"}
                producer.send_async(value, lambda *_: None, partition_key=f"key-{row % KEYS}",
                                    properties=properties, event_timestamp=1 + row)  # fmt: skip
            producer.flush()
            producer.close()
        fill_delayed(client, messages // 20, due_ms)
        old = client.create_producer(TYPED, schema=pulsar_schema.AvroSchema(Order))
        for row in range(100):
            old.send(Order(number=row, item=f"item {row}"))
        old.close()
        new = client.create_producer(TYPED, schema=pulsar_schema.AvroSchema(OrderWithNote))
        for row in range(100, 200):
            new.send(OrderWithNote(number=row, item=f"item {row}", note="new"))


def fill_delayed(client: pulsar.Client, messages: int, due_ms: int) -> None:
    """Single messages, one long one among them."""
    producer = client.create_producer(
        DELAYED, batching_enabled=False, chunking_enabled=True, block_if_queue_full=True
    )
    for row in range(messages):
        producer.send_async(b"later %d" % row, lambda *_: None, partition_key=f"key-{row % KEYS}",
                            properties={"row": str(row)},
                            deliver_at=due_at_ms(row, due_ms), ordering_key=f"order-{row % 7}")  # fmt: skip
    producer.send(b"long " * 2_500_000, partition_key="long", deliver_at=due_ms)
    producer.flush()


def rows_of(spark: Any, directory: str) -> dict[str, list[dict[str, Any]]]:
    """By partition, namespace left out: what has to be the same, in order."""
    table = spark.read.parquet(directory).toArrow()
    table = table.sort_by([(name, "ascending") for name in (TOPIC, LEDGER_ID, ENTRY_ID, BATCH_INDEX)])
    found: dict[str, list[dict[str, Any]]] = {}
    for topic, row in zip(table.column(TOPIC).to_pylist(), table.select(list(SAME)).to_pylist(), strict=True):
        found.setdefault(topic.rsplit("/", 1)[1], []).append(row)
    return found


def check_filled(found: dict[str, list[dict[str, Any]]], messages: int, due_ms: int) -> None:
    """The first export holds what was sent, in the order of each key."""
    parts = {part: rows for part, rows in found.items() if part.startswith("keyed-")}
    part_of: dict[bytes, str] = {}
    seen: set[int] = set()
    for part, rows in parts.items():
        last: dict[bytes, int] = {}
        for message in rows:
            properties = dict(message["__messageProperties"])
            row, key = int(properties["row"]), message["__key"]
            assert last.get(key, -1) < row, f"{part}: {row} after {last[key]}"
            assert part_of.setdefault(key, part) == part, (key, part, part_of[key])
            assert (message["value"], key) == (keyed_value(row), b"key-%d" % (row % KEYS)), message
            assert properties == {"row": str(row), "é": "ü"}
            assert ms(message["__eventTime"]) == 1 + row
            assert message["__deliverAtTime"] is None
            last[key] = row
            seen.add(row)
    assert seen == set(range(messages // len(CODECS) * len(CODECS)))
    *delayed, long = found["delayed"]
    for row, message in enumerate(delayed):
        assert message["value"] == b"later %d" % row
        assert message["__key"] == b"key-%d" % (row % KEYS)
        assert message["__orderingKey"] == b"order-%d" % (row % 7)
        assert dict(message["__messageProperties"]) == {"row": str(row)}
        assert ms(message["__deliverAtTime"]) == due_at_ms(row, due_ms)
    assert len(delayed) == messages // 20
    assert (long["value"], ms(long["__deliverAtTime"])) == (b"long " * 2_500_000, due_ms)
    assert len(found["typed"]) == 200
    tell("and it holds what was sent: values, keys, properties, times, in the order of each key")


def ms(time_of_row: Any) -> int:
    found: int = round(time_of_row.timestamp() * 1000)
    return found


def check_same(
    before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]], what: str
) -> None:
    assert before.keys() == after.keys(), (what, before.keys(), after.keys())
    for part, rows in before.items():
        assert len(rows) == len(after[part]), (what, part, len(rows), len(after[part]))
        for number, (row, other) in enumerate(zip(rows, after[part], strict=True)):
            assert row == other, f"{what}: {part}, row {number}: {str(row)[:300]} became {str(other)[:300]}"
    tell(
        f"{what}: {sum(map(len, before.values())):,} messages in {len(before)} partitions the same, in order"
    )


def check_consumers(broker: Endpoints, messages: int, due_ms: int) -> None:
    """What official clients get there, and when."""
    delayed = messages // 20
    with client_of(broker) as client:
        consumer = client.subscribe(DELAYED, SUBSCRIPTION, pulsar.ConsumerType.Shared)
        wanted = {due_ms + row for row in range(0, delayed, 5)} | {due_ms}
        late_ms, got = [], 0
        while got < len(wanted) + 1:
            left_ms = due_ms + 60_000 - CLOCK.now_ms()
            message = consumer.receive(max(left_ms, 10_000))
            now_ms = CLOCK.now_ms()
            row = message.properties().get("row")
            at_ms = due_ms if row is None else due_ms + int(row)
            assert at_ms in wanted, (row, "is not due")
            late_ms.append(now_ms - at_ms)
            consumer.acknowledge(message)
            got += 1
        assert min(late_ms) >= 0, f"{-min(late_ms)} ms early"
        late_ms.sort()
        tell(f"{got} delayed came when due (median {late_ms[got // 2]} ms, at most {late_ms[-1]} ms late)")
        try:
            extra = consumer.receive(1000)
            raise AssertionError(f"{extra.properties()} is not due")
        except pulsar.Timeout:
            pass
        backlog = Admin(broker.web_url).backlog(DELAYED, SUBSCRIPTION)
        tell(f"{backlog} are pending, due an hour later and more")
        assert backlog == delayed + 1 - got
        check_order(client, messages)
        typed = client.subscribe(TYPED, SUBSCRIPTION, pulsar.ConsumerType.Exclusive,
                                 schema=pulsar_schema.AvroSchema(OrderWithNote))  # fmt: skip
        records = [typed.receive(10_000).value() for _ in range(200)]
        assert [(one.number, one.item, one.note) for one in records] == [
            (row, f"item {row}", "new" if row >= 100 else None) for row in range(200)
        ]
        tell("200 records of two AVRO versions decoded by the official client")


def check_order(client: pulsar.Client, messages: int) -> None:
    consumer = client.subscribe(KEYED, SUBSCRIPTION, pulsar.ConsumerType.Exclusive)
    last: dict[str, int] = {}
    for _ in range(messages):
        message = consumer.receive(10_000)
        row, key = int(message.properties()["row"]), message.partition_key()
        assert last.get(key, -1) < row, f"{key}: {row} after {last[key]}"
        last[key] = row
    tell(f"{messages:,} keyed messages consumed, in order for each of {len(last)} keys")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--service-url", required=True)
    parser.add_argument("--web-url", required=True)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument(
        "--due-seconds", type=int, default=120, help="after the start; a replay should be done"
    )
    flags = parser.parse_args()
    other = Endpoints(flags.service_url, flags.web_url, False)
    spark = make_session("round-trip", settings={"spark.log.level": "ERROR", "spark.ui.enabled": "false"})
    with tempfile.TemporaryDirectory(prefix="round-trip-") as directory:
        try:
            with BrokerProcess(Path(directory) / "data") as process:
                travel(spark, Path(directory), process.endpoints, other, flags.messages, flags.due_seconds)
        finally:
            spark.stop()
    tell("all the same")


def travel(spark: Any, root: Path, geminga: Endpoints, other: Endpoints, messages: int, due_s: int) -> None:
    def options(broker: Endpoints) -> dict[str, str]:
        return {"service.url": broker.service_url, "admin.url": broker.web_url}

    prepare(geminga, deduplicate=False)
    prepare(other, deduplicate=True)
    due_ms = CLOCK.now_ms() + due_s * 1000
    fill(geminga, messages, due_ms)
    topics = {"topics": ",".join((KEYED, DELAYED, TYPED))}
    there, back, again = (str(root / name) for name in ("there", "back", "again"))
    done = export_topics(spark, there, options(geminga) | topics)
    tell(f"exported from Geminga: {done.rows:,} messages in {done.files} files")
    check_filled(rows_of(spark, there), messages, due_ms)
    sent = replay(spark, there, options(other), subscriptions=[SUBSCRIPTION])
    tell(f"replayed to {other.service_url}: {sent.rows:,}, exactly once: {sent.exactly_once}")
    assert sent.rows == done.rows
    sent = replay(spark, there, options(other), subscriptions=[SUBSCRIPTION])
    tell(f"replayed again: {sent.rows:,} sent, {sent.skipped:,} were there")
    assert (sent.rows, sent.skipped) == (0, done.rows)
    done = export_topics(spark, back, options(other) | topics)
    tell(f"exported from there: {done.rows:,}")
    check_same(rows_of(spark, there), rows_of(spark, back), "there")
    home = "public/home"
    assert Admin(geminga.web_url).put(f"/admin/v2/namespaces/{home}").status == 204
    sent = replay(spark, back, options(geminga), namespace=home, subscriptions=[SUBSCRIPTION])
    tell(f"replayed to Geminga: {sent.rows:,}, exactly once: {sent.exactly_once}")
    topics = {"topics": topics["topics"].replace(NAMESPACE, home)}
    export_topics(spark, again, options(geminga) | topics)
    check_same(rows_of(spark, there), rows_of(spark, again), "and back")
    check_consumers(other, messages, due_ms)


if __name__ == "__main__":
    main()
