"""A topic with text, binary, empty and no keys, read by Spark and written back: all columns the same.

    python -m tests.pipeline.exactness.write_back --messages 300000
    python -m tests.pipeline.exactness.write_back --service-url pulsar://127.0.0.1:6650 --web-url http://127.0.0.1:8080

Against a broker that is started here, or one that runs. Compared are columns, with partitions and flags, and
what the official client gets of both topics. It takes about a minute, most of it the client.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pyarrow.compute as pc

from geminga.pipeline import read_topic
from geminga.pipeline.spark import make_session
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.pipeline.writing.keyed_rows import send_as_java

PARTITIONS = 3
SETTINGS = {"spark.log.level": "ERROR", "spark.driver.memory": "1g", "spark.ui.enabled": "false"}
SAME = ("value", "__key", "__keyBase64", "__orderingKey", "__messageProperties", "__eventTime")
MORE = "__keyBase64,__orderingKey"


def fill(broker: Endpoints, topic: str, messages: int) -> None:
    Admin(broker.web_url).create_partitions(topic, PARTITIONS)
    send_as_java(broker.service_url, [f"{topic}-partition-{index}" for index in range(PARTITIONS)], messages)


def write_back(spark: Any, broker: Endpoints, source: str, copy: str, *, partitioning: str) -> None:
    """With Spark, from a topic to another of as many partitions."""
    Admin(broker.web_url).create_partitions(copy, PARTITIONS)
    options = {"service.url": broker.service_url}
    frame = spark.read.format("pulsar").options(**options, topic=source, columns=MORE).load()
    if partitioning == "partition":
        frame = frame.selectExpr("*", "int(substring_index(__topic, '-partition-', -1)) AS __partition")
    written = frame.write.format("pulsar").options(**options, topic=copy, partitioning=partitioning)
    written.mode("append").save()


def table_of(broker: Endpoints, topic: str, *, keyed: bool = False) -> pa.Table:
    """What has to be the same, by value, with the number of the partition; `keyed`: rows with a key alone."""
    with read_topic(broker.service_url, topic, columns=[*SAME, "__topic"]) as reader:
        table = reader.read_all()
    number = pc.replace_substring_regex(table.column("__topic"), ".*-partition-", "")
    table = table.drop_columns(["__topic"]).append_column("partition", number)
    if keyed:
        table = table.filter(pc.field("__key").is_valid())
    return table.sort_by("value").combine_chunks()


def check_same(broker: Endpoints, source: str, copy: str, *, keyed: bool = False) -> int:
    """How many messages were compared."""
    before, after = table_of(broker, source, keyed=keyed), table_of(broker, copy, keyed=keyed)
    assert before.num_rows == after.num_rows, (before.num_rows, after.num_rows)
    for name in before.schema.names:
        assert before.column(name).equals(after.column(name)), f"column {name} differs"
    return int(before.num_rows)


def seen_by_client(broker: Endpoints, topic: str, messages: int) -> Counter[tuple[Any, ...]]:
    """Without ordering keys: the Python client takes those for text, and here they are bytes."""
    found: Counter[tuple[Any, ...]] = Counter()
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=10_000)
        for _ in range(messages):
            one = reader.read_next(20_000)
            place = one.topic_name().rpartition("-partition-")[2]
            properties = tuple(one.properties().items())
            found[place, one.data(), one.partition_key(), properties, one.event_timestamp()] += 1
    finally:
        client.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--service-url")
    parser.add_argument("--web-url")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="write-back-") as directory:
        settings = {"brokerDeleteInactiveTopicsEnabled": "false"}
        own = BrokerProcess(Path(directory) / "data", settings=settings)
        with nullcontext() if flags.service_url else own:
            broker = (
                Endpoints(flags.service_url, flags.web_url, False) if flags.service_url else own.endpoints
            )
            run(broker, flags.messages)


def run(broker: Endpoints, messages: int) -> None:
    source, copy, keyed = (f"persistent://public/default/write-back-{name}" for name in ("a", "b", "c"))
    fill(broker, source, messages)
    spark = make_session("write-back", settings=SETTINGS)
    write_back(spark, broker, source, copy, partitioning="partition")
    write_back(spark, broker, source, keyed, partitioning="key")
    spark.stop()
    print(f"{check_same(broker, source, copy):,} messages written back: all columns and partitions the same")
    count = check_same(broker, source, keyed, keyed=True)
    print(f"{count:,} with a key, by its hash: in the partition that the Java client chose")
    assert seen_by_client(broker, source, messages) == seen_by_client(broker, copy, messages)
    print("the official client gets the same of both")


if __name__ == "__main__":
    main()
