"""Rows per CPU-second of a batch read: messages of 100 bytes in batches of 1,000, CRC-32C checked.

    python bench/pipeline/read.py                         2,000,000 messages, five rounds, and the official
    client
    python bench/pipeline/read.py --rows 200000 --rounds 3 --compression lz4
    python bench/pipeline/read.py --service-url pulsar://localhost:6650

CPU is that of the driver's JVM and everything below it: the Python planner and the Python workers. The
first round
is cold: it compiles. All seven columns are read and thrown away (`noop`). The comparison is a Python
source of the
same columns over the official client, which hands out messages one by one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.pipeline.rig import broker, fill, jvm_pid, measured
from geminga.pipeline.columns.columns import METADATA_COLUMNS
from geminga.pipeline.spark import make_session

TOPIC = "persistent://public/default/pipeline-read"
CLIENT_BATCH_ROWS = 10_000


class ClientSource(DataSource):
    """The same columns by way of the official Python client."""

    @classmethod
    def name(cls) -> str:
        return "client"

    def schema(self) -> StructType:
        return from_arrow_schema(pa.schema([("value", pa.binary()), *METADATA_COLUMNS.items()]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return ClientReader(dict(self.options), schema)


class ClientReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.options, self.schema = options, to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pulsar

        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        client = pulsar.Client(self.options["service.url"], logger=logger)
        reader = client.create_reader(
            self.options["topic"], pulsar.MessageId.earliest, receiver_queue_size=10_000
        )
        left = int(self.options["rows"])
        while left:
            count = min(left, CLIENT_BATCH_ROWS)
            messages = [reader.read_next(20_000) for _ in range(count)]
            columns = [
                [m.data() for m in messages],
                [m.partition_key().encode() or None for m in messages],
                [m.topic_name() for m in messages],
                [m.message_id().serialize() for m in messages],
                pa.array([m.publish_timestamp() * 1000 for m in messages], pa.int64()),
                pa.array([m.event_timestamp() * 1000 or None for m in messages], pa.int64()),
                [list(m.properties().items()) for m in messages],
            ]
            arrays = [
                column.cast(field.type) if isinstance(column, pa.Array) else pa.array(column, field.type)
                for column, field in zip(columns, self.schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            left -= count
        client.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--client-rounds", type=int, default=2)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--batch-rows", type=int, default=1000)
    parser.add_argument("--service-url")
    parser.add_argument("--splits", default="0")
    parser.add_argument("--value-only", action="store_true")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        broker(Path(name), arguments.service_url) as endpoints,
    ):
        fill(
            endpoints.service_url,
            TOPIC,
            arguments.rows,
            compression=arguments.compression,
            batch_rows=arguments.batch_rows,
        )
        spark = make_session(master="local[2]", settings={"spark.ui.enabled": "false"})
        spark.dataSource.register(ClientSource)
        root = jvm_pid(spark)
        best = {}
        for source, rounds in (("pulsar", arguments.rounds), ("client", arguments.client_rounds)):
            reader = (
                spark.read.format(source).option("service.url", endpoints.service_url).option("topic", TOPIC)
            )
            if source == "client":
                reader = reader.option("rows", str(arguments.rows))
            else:
                reader = reader.option("splitsPerPartition", arguments.splits)
                if arguments.value_only:
                    reader = reader.schema("value binary")
            for round_number in range(rounds):
                with measured(root) as found:
                    reader.load().write.format("noop").mode("overwrite").save()
                rate = arguments.rows / found["cpu"] / 1000
                best[source] = max(best.get(source, 0.0), rate)
                kind = "cold" if round_number == 0 else "warm"
                print(
                    f"{source:7} {kind} {rate:6.0f} k rows per CPU-second   {found['wall']:6.1f} s",
                    flush=True,
                )
        count = (
            spark.read.format("pulsar")
            .option("service.url", endpoints.service_url)
            .option("topic", TOPIC)
            .load()
        )
        assert count.count() == arguments.rows
        if "client" in best:
            print(f"{best['pulsar'] / best['client']:.1f} times the official client")
        spark.stop()


if __name__ == "__main__":
    main()
