"""AVRO records of three versions of a schema, published by the official Python client: read by Spark and by
`read_topic`, and compared row by row with a loop of the client that decodes each message by itself.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pulsar
import pyarrow as pa
from pulsar.schema import Array, AvroSchema, BytesSchema, Double, Integer, Long, Record, String

from geminga.pipeline import read_topic
from tests.pipeline.at_size.rig import NAMESPACE, Rig

PARTITIONS = 4
ROUNDS = 10
SPLITS = 12
VALUES = ("id", "name", "price", "tags", "count")
"""The columns of the latest version."""


class First(Record):
    _avro_namespace = "at.size"
    id = Long(required=True)
    name = String()


class Second(Record):
    _avro_namespace = "at.size"
    id = Long(required=True)
    name = String()
    price = Double(default=1.5, required=True, required_default=True)


class Third(Record):
    _avro_namespace = "at.size"
    id = Long(required=True)
    name = String()
    price = Double(default=1.5, required=True, required_default=True)
    tags = Array(String(), required_default=True)
    count = Integer(default=7, required=True, required_default=True)


CLASSES = (First, Second, Third)


def record(version: type[Record], number: int) -> Record:
    """One of the version, with what it has."""
    values: dict[str, Any] = {"id": number, "name": None if number % 7 == 0 else f"name-{number}"}
    if version is not First:
        values["price"] = number / 8
    if version is Third:
        values["tags"] = [f"t{tag}" for tag in range(number % 4)]
        values["count"] = number % 1000
    return version(**values)


def run(rig: Rig, rows: int) -> None:
    topic = f"{NAMESPACE}/versions"
    rig.admin.create_partitions(topic, PARTITIONS)
    client = pulsar.Client(rig.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        with rig.figures.measured(f"versions: {rows:,} records by the client", rig.processes):
            _publish(client, topic, rows)
        with rig.figures.measured("versions: loop of the client", rig.processes):
            expected = dict(_plain(client, topic))
    finally:
        client.close()
    rig.figures.check("versions: rows of the loop", len(expected), rows)
    with (
        rig.figures.measured("versions: read_topic", rig.processes),
        read_topic(rig.endpoints.service_url, topic) as reader,
    ):
        table = pa.Table.from_batches(list(reader), reader.schema)
    _compare(rig, "read_topic", table, expected)
    columns = (*VALUES, "__messageId")
    frame = rig.read(topic=topic, minPartitions=str(SPLITS)).select(*columns)
    with rig.figures.measured(f"versions: Spark, minPartitions={SPLITS}", rig.processes):
        table = frame.toArrow()
    _compare(rig, "Spark batch", table, expected)
    with rig.figures.measured("versions: Spark, stream of about 5 micro-batches", rig.processes):
        output = str(rig.directory / "versions-output")
        (
            rig.stream(topic=topic, maxRowsPerTrigger=str(rows // 5))
            .select(*columns)
            .writeStream.format("parquet")
            .option("path", output)
            .option("checkpointLocation", str(rig.directory / "versions-checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        table = rig.spark.read.parquet(output).toArrow()
    _compare(rig, "Spark stream", table, expected)


def _publish(client: pulsar.Client, topic: str, rows: int) -> None:
    """The versions take turns, so that each partition has them one beside the other."""
    producers = [
        client.create_producer(
            topic,
            schema=AvroSchema(version),
            block_if_queue_full=True,
            batching_enabled=True,
            batching_max_publish_delay_ms=5,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        )
        for version in CLASSES
    ]
    each = -(-rows // (ROUNDS * len(CLASSES)))
    for at in range(0, rows, each):
        turn = at // each % len(CLASSES)
        for number in range(at, min(at + each, rows)):
            producers[turn].send_async(record(CLASSES[turn], number), lambda *_: None)
        producers[turn].flush()


def _plain(client: pulsar.Client, topic: str) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
    schemas = [json.loads(json.dumps(version.schema())) for version in CLASSES]
    for one in schemas:
        one["name"] = Third.__name__  # fastavro compares the names of records
    written = [fastavro.parse_schema(one) for one in schemas]
    wanted = written[-1]
    for partition in range(PARTITIONS):
        reader = client.create_reader(
            f"{topic}-partition-{partition}", pulsar.MessageId.earliest, schema=BytesSchema()
        )
        while reader.has_message_available():
            message = reader.read_next(10_000)
            version = int.from_bytes(message.schema_version().encode("latin-1"), "big")
            found: Any = fastavro.schemaless_reader(io.BytesIO(message.data()), written[version], wanted)
            yield message.message_id().serialize(), tuple(found[name] for name in VALUES)
        reader.close()


def _compare(rig: Rig, way: str, table: pa.Table, expected: dict[bytes, tuple[Any, ...]]) -> None:
    ids = table.column("__messageId").to_pylist()
    rows = zip(*(table.column(name).to_pylist() for name in VALUES), strict=True)
    found = dict(zip(ids, rows, strict=True))
    rig.figures.check(f"versions: rows of {way}", (len(ids), len(found)), (len(expected),) * 2)
    differing = [key for key, values in expected.items() if found.get(key) != values]
    rig.figures.check(f"versions: differences of {way}", len(differing), 0)
    for key in differing[:3]:
        rig.figures.row("  ", f"{found.get(key)!r}", f"expected {expected[key]!r}")
    rig.figures.row(f"versions: {way}", f"{len(ids):,} rows, {len(differing)} differ")
