"""Two topics joined as streams with watermarks, the query stopped in the middle, against a batch join."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from tests.e2e.broker_process import BrokerProcess, Endpoints

ORDERS, PAYMENTS = "persistent://public/default/orders", "persistent://public/default/payments"
BEGAN_S = 1_767_225_600
"""2026-01-01, in event times."""
LATE_S = 300
"""By how much rows are late at most, unless they come too late: half of the watermark's ten minutes."""
PAID_WITHIN_S = 3600
SETTINGS = {"brokerDeleteInactiveTopicsEnabled": "false"}
WAIT_SECONDS = 240.0
SPLIT = "split(cast({} AS string), ' ')"


def write(endpoints: Endpoints, topic: str, rows: list[tuple[str, int]]) -> None:
    """Text and event time in seconds."""
    given = {"service.url": endpoints.service_url, "topic": topic, "batchRows": "100"}
    writer = TaskWriter(parse_options(given), Task("fill", 0, 0))
    times = pa.array([second * 1_000_000 for _, second in rows], pa.timestamp("us", tz="UTC"))
    columns = {"value": [text.encode() for text, _ in rows], "__eventTime": times}
    try:
        writer.write([pa.RecordBatch.from_pydict(columns)])
    finally:
        writer.close()


def late(random_: random.Random, rows: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """In the order in which they come: each up to `LATE_S` after its event time."""
    return sorted(rows, key=lambda row: row[1] + random_.randrange(LATE_S))


class World:
    """Orders, one a second; most are paid, some twice, some too late for the join."""

    def __init__(self, orders: int, seed: int) -> None:
        random_ = random.Random(seed)
        made = [(f"o{number} {random_.randrange(100)}", BEGAN_S + number) for number in range(orders)]
        paid = []
        for text, second in made:
            for _ in range(random_.choice((0, 1, 1, 1, 2))):
                paid.append(
                    (f"{text.split()[0]} p{len(paid)}", second + random_.randrange(PAID_WITHIN_S + 600))
                )
        self.orders, self.payments = late(random_, made), late(random_, paid)
        self.end_s = BEGAN_S + orders + 2 * PAID_WITHIN_S


def sides(reader: Any, endpoints: Endpoints, time_column: str, **options: str) -> tuple[Any, Any]:
    def side(topic: str, one: str, two: str, at: str) -> Any:
        given = {"service.url": endpoints.service_url, "topic": topic, **options}
        frame = reader.format("pulsar").options(**given).load()
        parts = SPLIT.format("value")
        return frame.selectExpr(f"{parts}[0] AS {one}", f"{parts}[1] AS {two}", f"{time_column} AS {at}")

    return side(ORDERS, "id", "amount", "ordered_at"), side(PAYMENTS, "of", "payment", "paid_at")


def join(orders: Any, payments: Any, kind: str) -> Any:
    from pyspark.sql.functions import expr

    near = f"id = of AND paid_at BETWEEN ordered_at AND ordered_at + INTERVAL {PAID_WITHIN_S} SECONDS"
    return orders.join(payments, expr(near), kind).select("id", "amount", "payment")


def start(
    spark: Any, endpoints: Endpoints, directory: Path, kind: str, time_column: str, **trigger: Any
) -> Any:
    orders, payments = sides(
        spark.readStream, endpoints, time_column, startingOffsets="earliest", maxRowsPerTrigger="2000"
    )
    orders, payments = (
        orders.withWatermark("ordered_at", "10 minutes"),
        payments.withWatermark("paid_at", "10 minutes"),
    )
    return (
        join(orders, payments, kind)
        .writeStream.format("parquet")
        .option("path", str(directory / "rows"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(**trigger)
        .start()
    )


def joined(spark: Any, directory: Path, *, orders: int = 10_000, seed: int = 5) -> None:
    with BrokerProcess(directory / "data", settings=SETTINGS) as process:
        endpoints = process.endpoints
        world = World(orders, seed)
        half = len(world.orders) // 2, len(world.payments) // 2
        write(endpoints, ORDERS, world.orders[: half[0]])
        write(endpoints, PAYMENTS, world.payments[: half[1]])
        cases = (("inner", "__eventTime"), ("left_outer", "__eventTime"), ("inner", "__publishTime"))
        places = [directory / f"{kind}{time_column}" for kind, time_column in cases]
        for place, case in zip(places, cases, strict=True):
            query = start(spark, endpoints, place, *case, processingTime="0 seconds")
            end = time.monotonic() + WAIT_SECONDS
            while not query.recentProgress and query.isActive:
                assert time.monotonic() < end, "no micro-batch ended"
                threading.Event().wait(0.05)
            query.stop()  # in the middle of the next one
            assert query.exception() is None, query.exception()
        write(endpoints, ORDERS, world.orders[half[0] :])
        write(endpoints, PAYMENTS, world.payments[half[1] :])
        # Rows that move the watermark on, and what comes too late for it.
        for topic, text in ((ORDERS, "end 0"), (PAYMENTS, "never p")):
            write(endpoints, topic, [(text, world.end_s)])
        for place, case in zip(places, cases, strict=True):
            start(spark, endpoints, place, *case, availableNow=True).awaitTermination()
        # An order that the first half had, paid in time but told of when the watermark has passed.
        first = min(world.orders, key=lambda row: row[1])
        write(endpoints, PAYMENTS, [(f"{first[0].split()[0]} too-late", first[1] + 1)])
        write(endpoints, ORDERS, [("end2 0", world.end_s + 1)])
        for place, case in zip(places, cases, strict=True):
            start(spark, endpoints, place, *case, availableNow=True).awaitTermination()
            check(spark, endpoints, place, *case)


def check(spark: Any, endpoints: Endpoints, place: Path, kind: str, time_column: str) -> None:
    """What a batch join says of all rows but the one that came too late, row by row."""
    orders, payments = sides(spark.read, endpoints, time_column)
    is_late = time_column == "__eventTime"
    expected = join(orders, payments.where("payment <> 'too-late'") if is_late else payments, kind)
    stored = spark.read.parquet(str(place / "rows"))

    def rows(frame: Any) -> list[tuple[str, ...]]:
        kept = frame.where("NOT startswith(id, 'end')")
        return sorted(tuple(str(each) for each in row) for row in kept.collect())

    found, wanted = rows(stored), rows(expected)
    assert found == wanted, (
        f"{kind} on {time_column}: {len(found)} rows instead of {len(wanted)}: more "
        f"{sorted(set(found) - set(wanted))[:3]}, less {sorted(set(wanted) - set(found))[:3]}"
    )
    print(f"  {kind} on {time_column}: {len(found)} rows as of the batch join", flush=True)
