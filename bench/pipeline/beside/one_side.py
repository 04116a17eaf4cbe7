"""One side of `bench.pipeline.beside` in a process of its own, which reads and writes when told to.

    python -P -m bench.pipeline.beside.one_side SIDE '{"rows": 200000, ...}'

Each line on standard input is a `Job`; its answer on standard output is the CPU that it took. `PYTHONPATH`
says whose `geminga` it is, so nothing is imported here that an older checkout may lack.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bench.pipeline.beside.rows import (
    AVRO,
    BYTES,
    FIELDS,
    JSON,
    READ,
    batch,
    check_of,
    columns,
    definition,
    fields_in_sql,
)
from bench.pipeline.cpu import measured

TASKS = 2
BATCH_ROWS = 1000
ARROW_ROWS = 10_000
"""As Spark hands them to a writer."""
POLL_MS = 20_000


class Settings(NamedTuple):
    rows: int
    times: bool
    service_url: str
    geminga: str
    """The checkout that has to be the one imported."""
    kafka: str = ""
    kafka_jars: str = ""


class Job(NamedTuple):
    direction: str
    shape: str
    topic: str
    counts: bool = False
    """Answer with the count and the sum of what is read, instead of its CPU."""


Answer = tuple[int, int]


class Side:
    def cpu_of(self, job: Job) -> float:
        """Of this process, which has none below it: its own clock has no ticks."""
        began = time.process_time()
        self.does(job)
        return time.process_time() - began

    def does(self, job: Job) -> None:
        (self.read if job.direction == READ else self.write)(job)

    def prepare(self, shape: str) -> None:
        """The rows to write, where their making is no part of the work."""

    def read(self, job: Job) -> None:
        raise NotImplementedError

    def count(self, job: Job) -> Answer:
        raise NotImplementedError

    def write(self, job: Job) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class OnSpark(Side):
    def __init__(self, settings: Settings, more: dict[str, str]) -> None:
        import geminga
        from geminga.pipeline.spark import make_session

        self.settings = settings
        self.spark = make_session(master=f"local[{TASKS}]", settings={"spark.ui.enabled": "false", **more})
        self.spark.sparkContext.setLogLevel("ERROR")
        seen = self.spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("geminga").__file__)
        assert seen.first() == geminga.__file__

    def cpu_of(self, job: Job) -> float:
        with measured(os.getpid()) as found:
            self.does(job)
        return found["cpu"]

    def frame(self, shape: str) -> Any:
        rows = self.spark.range(self.settings.rows, numPartitions=TASKS)
        return rows.selectExpr(*columns(shape, times=self.settings.times))

    def values(self, job: Job) -> Any:
        raise NotImplementedError

    def read(self, job: Job) -> None:
        self.values(job).write.format("noop").mode("overwrite").save()

    def count(self, job: Job) -> Answer:
        found = self.values(job).selectExpr("count(*)", check_of(job.shape)).first()
        return found[0], found[1]

    def close(self) -> None:
        self.spark.stop()


class Source(OnSpark):
    """The data source of this project."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, {})

    def values(self, job: Job) -> Any:
        reader = self.spark.read.format("pulsar").option("service.url", self.settings.service_url)
        found = reader.option("topic", job.topic).load()
        return found.select(*(["value"] if job.shape == BYTES else FIELDS))

    def write(self, job: Job) -> None:
        writer = self.frame(job.shape).write.format("pulsar").option("topic", job.topic)
        writer = writer.option("service.url", self.settings.service_url)
        if job.shape != BYTES:
            writer = writer.option("valueSchema", job.shape.lower())
        writer.mode("append").save()


class Kafka(OnSpark):
    """Spark's source and sink for Kafka, with Spark's functions for the values."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, {"spark.jars": settings.kafka_jars})

    def values(self, job: Job) -> Any:
        from pyspark.sql import functions as sql
        from pyspark.sql.avro.functions import from_avro

        reader = self.spark.read.format("kafka").option("subscribe", job.topic)
        found = reader.option("kafka.bootstrap.servers", self.settings.kafka).load()
        if job.shape == BYTES:
            return found.select("value")
        if job.shape == AVRO:
            value = from_avro("value", json.dumps(definition(times=self.settings.times)))
        else:
            text = found["value"].cast("string")
            value = sql.from_json(text, fields_in_sql(times=self.settings.times))
        return found.select(value.alias("v")).select("v.*")

    def write(self, job: Job) -> None:
        from pyspark.sql import functions as sql
        from pyspark.sql.avro.functions import to_avro

        frame = self.frame(job.shape)
        if job.shape == AVRO:
            record = json.dumps(definition(times=self.settings.times))
            frame = frame.select(to_avro(sql.struct(*FIELDS), record).alias("value"))
        elif job.shape != BYTES:
            # With nulls, as the rows of the others have them.
            value = sql.to_json(sql.struct(*FIELDS), {"ignoreNullFields": "false"})
            frame = frame.select(value.alias("value"))
        writer = frame.write.format("kafka").option("topic", job.topic)
        writer.option("kafka.bootstrap.servers", self.settings.kafka).save()


class Arrow(Side):
    """`read_topic` and a task's writer, without Spark."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.given: list[pa.RecordBatch] = []

    def batches(self, job: Job) -> Iterator[pa.RecordBatch]:
        from geminga.pipeline.arrow.reading import read_topic

        names = ["value"] if job.shape == BYTES else list(FIELDS)
        with read_topic(self.settings.service_url, job.topic, columns=names) as reader:
            yield from reader

    def read(self, job: Job) -> None:
        for _ in self.batches(job):
            pass

    def count(self, job: Job) -> Answer:
        count = total = 0
        for found in self.batches(job):
            count += found.num_rows
            if job.shape == BYTES:
                total += pc.sum(pc.binary_length(found.column("value"))).as_py()
            else:
                total += pc.sum(found.column("id")).as_py() + found.column("name").null_count
        return count, total

    def write(self, job: Job) -> None:
        from geminga.pipeline.topics.options import parse_options
        from geminga.pipeline.writing.task_writer import Task, TaskWriter

        given = {"service.url": self.settings.service_url, "topic": job.topic, "batchRows": str(BATCH_ROWS)}
        if job.shape != BYTES:
            given["valueSchema"] = job.shape.lower()
        writer = TaskWriter(parse_options(given), Task("beside", 0, 0))
        try:
            writer.write(self.given)
        finally:
            writer.close()

    def prepare(self, shape: str) -> None:
        found = batch(shape, self.settings.rows, times=self.settings.times)
        self.given = [found.slice(at, ARROW_ROWS) for at in range(0, len(found), ARROW_ROWS)]


class Client(Side):
    """A loop over the official client in Python, with its schemas."""

    def __init__(self, settings: Settings) -> None:
        import pulsar

        self.settings = settings
        self.given: list[Any] = []
        self.record = _record()
        self.client = pulsar.Client(
            settings.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        )

    def schema(self, shape: str) -> Any:
        from pulsar.schema import AvroSchema, BytesSchema, JsonSchema

        if shape == BYTES:
            return BytesSchema()
        if shape == AVRO:
            return AvroSchema(None, definition(times=self.settings.times))
        return JsonSchema(self.record)

    def found(self, job: Job) -> Iterator[Any]:
        import pulsar

        # Its records have no times, and refuse the text that one is.
        as_text = job.shape == JSON and self.settings.times and job.topic.startswith("read")
        reader = self.client.create_reader(
            job.topic,
            pulsar.MessageId.earliest,
            schema=self.schema(BYTES if as_text else job.shape),
            receiver_queue_size=10_000,
        )
        for _ in range(self.settings.rows):
            value = reader.read_next(POLL_MS).value()
            yield json.loads(value) if as_text else value
        reader.close()

    def read(self, job: Job) -> None:
        for _ in self.found(job):
            pass

    def count(self, job: Job) -> Answer:
        count = total = 0
        for value in self.found(job):
            count += 1
            if job.shape == BYTES:
                total += len(value)
            else:
                row = value if isinstance(value, dict) else value.__dict__
                total += row["id"] + (row["name"] is None)
        return count, total

    def prepare(self, shape: str) -> None:
        found = batch(shape, self.settings.rows, times=self.settings.times).to_pylist()
        if shape == BYTES:
            self.given = [row["value"] for row in found]
        elif shape == AVRO:
            self.given = found
        else:
            if self.settings.times:
                found = batch(shape, self.settings.rows, times=False).to_pylist()
            self.given = [self.record(**row) for row in found]

    def write(self, job: Job) -> None:
        import pulsar

        producer = self.client.create_producer(
            job.topic,
            schema=self.schema(job.shape),
            block_if_queue_full=True,
            batching_enabled=True,
            batching_max_messages=BATCH_ROWS,
            max_pending_messages=100_000,
        )
        wrong: list[Any] = []

        def sent(result: Any, _: Any) -> None:
            if result != pulsar.Result.Ok:
                wrong.append(result)

        for row in self.given:
            producer.send_async(row, sent)
        producer.flush()
        producer.close()
        assert not wrong, wrong

    def close(self) -> None:
        self.client.close()


def _record() -> Any:
    """Of the name that the topic's schema has: brokers compare names."""
    from pulsar.schema import Boolean, Double, Long, Record, String

    fields = dict(zip(FIELDS, (Long(), String(), Double(), Long(), Boolean()), strict=True))
    return type("topLevelRecord", (Record,), fields)


SIDES: dict[str, Callable[[Settings], Side]] = {
    "spark": Source,
    "arrow": Arrow,
    "client": Client,
    "kafka": Kafka,
}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    settings = Settings(**json.loads(sys.argv[2]))
    import geminga

    assert Path(geminga.__file__).is_relative_to(settings.geminga), geminga.__file__
    side = SIDES[sys.argv[1]](settings)
    for line in sys.stdin:
        job = Job(**json.loads(line))
        if job.counts:
            answers.write(json.dumps(side.count(job)) + "\n")
            continue
        if job.direction != READ:
            side.prepare(job.shape)
        answers.write(json.dumps({"cpu": side.cpu_of(job)}) + "\n")
    side.close()


if __name__ == "__main__":
    main()
