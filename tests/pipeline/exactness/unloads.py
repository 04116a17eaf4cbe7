"""A Spark stream on a subscription, with an application's Failover consumers beside, through many unloads.

    python -m tests.pipeline.exactness.unloads                                  a broker of its own
    python -m tests.pipeline.exactness.unloads --service-url pulsar://localhost:6650 \\
        --web-url http://localhost:8080                                         on another one, a real Pulsar

A topic of four partitions. A producer sends --messages; two Failover consumers of the official client and a
stream with `predefinedSubscription` and a trigger of half a second share one subscription. --unloads times,
each time after the stream and the application got some more, all partitions are unloaded at once. Checked are
that the same query ran all the time, that it and the application got every message, and that no row came
twice to the query; what brokers sent the application again after an unload, because its acknowledgement was
on the way, is counted. The producer stores messages twice whose receipt an unload cost: rows are told apart
by message id. At the end nothing is left in the backlog. The namespace has retention: without it a broker
deletes what the application has acknowledged, read by the stream or not.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from geminga.pipeline.spark import make_session
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.e2e.waiting import eventually

PARTITIONS = 4
SUBSCRIPTION = "warehouse"
SETTINGS = {"brokerDeleteInactiveTopicsEnabled": "false"}
PENDING_MAX = 1000
PACE_SECONDS = 0.002
"""Between messages, so that some are on their way at each unload."""
ENDS_SECONDS = 120.0


class Application:
    """Two Failover consumers, each with its own thread; what they got, by number."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.got: set[int] = set()
        self.message_ids: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        consumers = [
            client.subscribe(
                topic,
                SUBSCRIPTION,
                pulsar.ConsumerType.Failover,
                consumer_name=f"application-{number}",
                initial_position=pulsar.InitialPosition.Earliest,
            )
            for number in range(2)
        ]
        self._threads = [threading.Thread(target=self._receive, args=(each,)) for each in consumers]
        for thread in self._threads:
            thread.start()

    def _receive(self, consumer: pulsar.Consumer) -> None:
        while not self._ended.is_set():
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                continue
            with self._lock:
                self.got.add(int(message.data()))
                self.message_ids[message.message_id().serialize()] += 1
            with contextlib.suppress(pulsar.PulsarException):  # unloaded meanwhile: it comes again
                consumer.acknowledge(message)

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def produce(client: pulsar.Client, topic: str, messages: int) -> None:
    producer = client.create_producer(
        topic,
        block_if_queue_full=True,
        max_pending_messages=PENDING_MAX,
        send_timeout_millis=0,
        batching_enabled=True,
        batching_max_publish_delay_ms=5,
    )
    pause = threading.Event()
    for number in range(messages):
        producer.send_async(b"%d" % number, lambda *_: None)
        pause.wait(PACE_SECONDS)
    producer.flush()


@contextlib.contextmanager
def broker(service_url: str | None, web_url: str | None) -> Iterator[Endpoints]:
    if service_url and web_url:
        yield Endpoints(service_url, web_url, False)
        return
    with (
        tempfile.TemporaryDirectory() as name,
        BrokerProcess(Path(name) / "data", settings=SETTINGS) as process,
    ):
        yield process.endpoints


def run(endpoints: Endpoints, messages: int, unloads: int, directory: Path) -> None:
    namespace = f"public/unloads-{uuid.uuid4().hex[:8]}"
    topic = f"persistent://{namespace}/orders"
    admin = Admin(endpoints.web_url)
    assert admin.put(f"/admin/v2/namespaces/{namespace}").status == 204
    retention = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
    assert admin.post(f"/admin/v2/namespaces/{namespace}/retention", retention).status == 204
    admin.create_partitions(topic, PARTITIONS)
    parts = [f"{topic}-partition-{number}" for number in range(PARTITIONS)]
    rows: set[int] = set()
    message_ids: Counter[bytes] = Counter()
    application: Application | None = None

    def take(frame: Any, _: int) -> None:
        found = frame.select("value", "__messageId").collect()
        rows.update(int(row.value) for row in found)
        message_ids.update(bytes(row["__messageId"]) for row in found)

    spark = make_session("unloads", settings={"spark.ui.enabled": "false"})
    client = pulsar.Client(endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        query = (
            spark.readStream.format("pulsar")
            .option("service.url", endpoints.service_url)
            .option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("predefinedSubscription", SUBSCRIPTION)
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        application = Application(client, topic)
        producer = threading.Thread(target=produce, args=(client, topic, messages))
        producer.start()
        for number in range(unloads):
            seen = (len(rows), len(application.got))
            share = min(messages // (unloads + 2), messages - max(seen))
            eventually(
                lambda seen=seen, share=share: (  # type: ignore[misc]
                    query.exception() is not None
                    or (len(rows) >= seen[0] + share and len(application.got) >= seen[1] + share)
                ),
                ENDS_SECONDS,
                what=f"messages after {number} unloads: {len(rows)} rows, {len(application.got)} received",
            )
            assert query.exception() is None, query.exception()
            for part in parts:
                assert admin.put(f"/admin/v2/{topic_path(part)}/unload").status == 204
            print(
                f"unload {number + 1}: {len(rows)} rows, {len(application.got)} at the application",
                flush=True,
            )
        producer.join()
        eventually(lambda: len(application.got) == messages, ENDS_SECONDS, what="all at the application")
        eventually(lambda: query.exception() or len(rows) == messages, ENDS_SECONDS, what="all rows")
        assert query.exception() is None, query.exception()
        assert query.isActive
        eventually(
            lambda: sum(admin.backlog(part, SUBSCRIPTION) for part in parts) == 0,
            ENDS_SECONDS,
            what="no backlog",
        )
        twice = sum(count > 1 for count in message_ids.values())
        again = sum(count - 1 for count in application.message_ids.values())
        assert twice == 0, f"{twice} rows came twice to the query"
        query.stop()
        print(
            f"{messages} messages, {unloads} unloads of {PARTITIONS} partitions: {len(rows)} to the query, "
            f"no row twice; {len(application.got)} to the application, {again} of them sent again",
            flush=True,
        )
    finally:
        if application is not None:
            application.end()
        client.close()
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--unloads", type=int, default=10)
    parser.add_argument("--service-url")
    parser.add_argument("--web-url")
    arguments = parser.parse_args()
    begun = time.monotonic()
    with (
        broker(arguments.service_url, arguments.web_url) as endpoints,
        tempfile.TemporaryDirectory() as directory,
    ):
        run(endpoints, arguments.messages, arguments.unloads, Path(directory))
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
