"""One workload that moves the metrics of a broker, a real Pulsar or a Geminga, with known results.

`play` prepares topics with fixed counts, then publishes and consumes at a fixed pace, and scrapes while that
goes on: counters and gauges of the prepared topics are exact, rates are those of the pace.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pulsar

from tests.e2e.admin_http import Admin, topic_path

NAMESPACE = "public/load"
PREFIX = f"persistent://{NAMESPACE}"
STATS_S = 5
SETTINGS = {
    "statsUpdateFrequencyInSecs": str(STATS_S),
    "statsUpdateInitialDelayInSecs": str(STATS_S),
    "managedLedgerStatsPeriodSeconds": str(STATS_S),
    "backlogQuotaCheckIntervalInSeconds": "2",
    "exposeConsumerLevelMetricsInPrometheus": "true",
    "exposeProducerLevelMetricsInPrometheus": "true",
    "exposeManagedCursorMetricsInPrometheus": "true",
    "clusterName": "standalone",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "preciseTimeBasedBacklogQuotaCheck": "true",
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
}
TICK_S = 0.1
PACED_PER_TICK = 5
"""Entries of a plain producer, and messages in the one entry of a batching one."""
PAYLOAD = b"x" * 100
SIZES = (50, 300, 900, 1800, 3500, 10_000, 60_000, 500_000, 2_000_000)
READ_AGAIN = 20
"""Old entries that are read twice a second."""


@dataclass(frozen=True)
class Pages:
    """What `/metrics` showed: before there was a topic, and under the paced load."""

    empty: str
    loaded: str
    """The last one."""
    paced: tuple[str, ...] = ()
    """One of each of several intervals, the last one included."""


class Workload:
    def __init__(
        self,
        service_url: str,
        web_url: str,
        scrape: Callable[[], str],
        *,
        stats_s: int = STATS_S,
        intervals: int = 1,
    ) -> None:
        """`stats_s` is the length of the broker's intervals; so many of them are scraped under load."""
        self._stats_s = stats_s
        self._intervals = intervals
        self._admin = Admin(web_url)
        self._client = pulsar.Client(
            service_url,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
            stats_interval_in_seconds=0,
        )
        self._scrape = scrape
        self._held: list[Any] = []
        """Producers and consumers that stay connected until the last scrape."""

    def play(self) -> Pages:
        empty = self._scrape()
        assert self._admin.put(f"/admin/v2/namespaces/{NAMESPACE}", {}).status == 204
        for prepare in (
            self._plain,
            self._batched,
            self._parted,
            self._sizes,
            self._delayed,
            self._unacked,
            self._redelivered,
            self._expired,
            self._schema,
            self._evicted,
            self._reloaded,
            self._limited,
            self._blocked,
            self._refused,
        ):
            prepare()
        with self._pace():
            # An interval may have begun before the pace did; one that is whole follows it.
            time.sleep(2 * self._stats_s + 1)  # noqa: TID251 - the intervals of the broker end by time
            paced = []
            for _ in range(self._intervals):
                time.sleep(self._stats_s)  # noqa: TID251
                paced.append(self._scrape())
        self._client.close()
        return Pages(empty, paced[-1], tuple(paced))

    # -- prepared topics -------------------------------------------------------------------------------------

    def _topic(self, name: str) -> str:
        return f"{PREFIX}/{name}"

    def _send(self, name: str, count: int, *, size_bytes: int = 100, **options: Any) -> pulsar.Producer:
        """Each message is an entry. The producer stays."""
        producer = self._client.create_producer(
            self._topic(name), f"of-{name}", batching_enabled=False, **options
        )
        for _ in range(count):
            producer.send(b"x" * size_bytes)
        self._held.append(producer)
        return producer

    def _consume(
        self,
        name: str,
        subscription: str,
        kind: pulsar.ConsumerType = pulsar.ConsumerType.Shared,
        **options: Any,
    ) -> pulsar.Consumer:
        consumer = self._client.subscribe(
            self._topic(name),
            subscription,
            kind,
            consumer_name=f"of-{subscription}",
            initial_position=pulsar.InitialPosition.Earliest,
            **options,
        )
        self._held.append(consumer)
        return consumer

    def _plain(self) -> None:
        """200 entries, of which an exclusive consumer acknowledges 150 and keeps 50."""
        consumer = self._consume("plain", "all", pulsar.ConsumerType.Exclusive)
        self._send("plain", 200)
        received = [consumer.receive(10_000) for _ in range(200)]
        consumer.acknowledge_cumulative(received[149])

    def _batched(self) -> None:
        """20 entries of 50 messages, for one subscription of each type and one without a consumer."""
        self._consume("batched", "behind").close()
        producer = self._client.create_producer(
            self._topic("batched"),
            "of-batched",
            batching_enabled=True,
            batching_max_messages=50,
            batching_max_publish_delay_ms=60_000,
        )
        for _ in range(20):
            for _ in range(50):
                producer.send_async(PAYLOAD, lambda *_: None)
            producer.flush()
        self._held.append(producer)
        kinds = pulsar.ConsumerType
        for kind in (kinds.Shared, kinds.Failover, kinds.KeyShared):
            consumer = self._consume("batched", kind.name.lower(), kind)
            for _ in range(1000):
                consumer.acknowledge(consumer.receive(10_000))

    def _parted(self) -> None:
        self._admin.create_partitions(self._topic("parted"), 3)
        self._consume("parted", "all")
        self._send("parted", 30)

    def _sizes(self) -> None:
        for size_bytes in SIZES:
            producer = self._client.create_producer(self._topic("sizes"), batching_enabled=False)
            producer.send(b"x" * size_bytes)
            producer.close()

    def _delayed(self) -> None:
        self._consume("delayed", "later")
        producer = self._send("delayed", 0)
        for _ in range(40):
            producer.send(PAYLOAD, deliver_after=timedelta(hours=1))
        producer.send(PAYLOAD, deliver_after=timedelta(seconds=1))
        self._held[-2].acknowledge(self._held[-2].receive(10_000))

    def _unacked(self) -> None:
        """30 of 50 messages are delivered and not acknowledged."""
        consumer = self._consume("unacked", "holds", receiver_queue_size=1)
        self._send("unacked", 50)
        self._unread = [consumer.receive(10_000) for _ in range(29)]

    def _redelivered(self) -> None:
        consumer = self._consume("redelivered", "again", negative_ack_redelivery_delay_ms=100)
        self._send("redelivered", 20)
        for _ in range(20):
            consumer.negative_acknowledge(consumer.receive(10_000))
        for _ in range(20):
            consumer.acknowledge(consumer.receive(10_000))

    def _expired(self) -> None:
        self._consume("expired", "old").close()
        self._send("expired", 25)
        time.sleep(2)  # noqa: TID251 - messages grow old by time
        path = f"/admin/v2/{topic_path(self._topic('expired'))}/subscription/old/expireMessages/1"
        assert self._admin.post(path).status == 204

    def _schema(self) -> None:
        schema = pulsar.schema.JsonSchema(type("Order", (pulsar.schema.Record,), {}))
        with contextlib.suppress(pulsar.PulsarException):
            self._held.append(self._client.create_producer(self._topic("schema"), schema=schema))

    def _evicted(self) -> None:
        """The quota takes the backlog, by size and by time."""
        for name, quota in (
            ("evicted", {"limitSize": 5000, "limit": 5000, "policy": "consumer_backlog_eviction"}),
            ("aged", {"limitTime": 1, "policy": "consumer_backlog_eviction"}),
        ):
            self._consume(name, "slow").close()
            self._send(name, 100)
            kind = "destination_storage" if name == "evicted" else "message_age"
            path = f"/admin/v2/{topic_path(self._topic(name))}/backlogQuota?backlogQuotaType={kind}"
            assert self._admin.post(path, quota).status == 204

    def _reloaded(self) -> None:
        self._send("reloaded", 5)
        assert self._admin.put(f"/admin/v2/{topic_path(self._topic('reloaded'))}/unload").status == 204
        self._held[-1].send(PAYLOAD)

    def _limited(self) -> None:
        """By a rate of two messages a second."""
        producer = self._send("limited", 1)
        limit = {"publishThrottlingRateInMsg": 2, "publishThrottlingRateInByte": -1}
        self._set_policy("limited", "publishRate", limit)
        for _ in range(5):
            producer.send(PAYLOAD)

    def _blocked(self) -> None:
        """A consumer may have 10 messages that it has not acknowledged, and gets no more of 50."""
        producer = self._send("blocked", 1)
        self._set_policy("blocked", "maxUnackedMessagesOnConsumer", 10)
        self._set_policy("blocked", "maxUnackedMessagesOnSubscription", 10)
        self._consume("blocked", "hoards", receiver_queue_size=100)
        for _ in range(49):
            producer.send(PAYLOAD)

    def _set_policy(self, name: str, policy: str, value: Any) -> None:
        path = f"/admin/v2/{topic_path(self._topic(name))}/{policy}"
        assert self._admin.post(path, value).status == 204
        time.sleep(0.5)  # noqa: TID251 - a real broker tells nobody when a policy has come into effect

    def _refused(self) -> None:
        with contextlib.suppress(pulsar.PulsarException):
            self._client.create_producer("persistent://public/missing/topic")
        with contextlib.suppress(pulsar.PulsarException):
            self._client.subscribe(self._topic("plain"), "all")  # exclusive, and taken
        self._admin.get(f"/lookup/v2/topic/{topic_path(self._topic('plain'))}")

    def _read_again(self) -> None:
        reader = self._client.create_reader(self._topic("plain"), pulsar.MessageId.earliest)
        for _ in range(READ_AGAIN):
            reader.read_next(10_000)
        reader.close()

    # -- the pace --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _pace(self) -> Iterator[None]:
        """Into `paced` 50 entries a second, into `paced-batches` 10 entries of 5 messages; all of them go to
        a consumer that acknowledges them, those of `paced` to a second one too that does not.
        """
        done = threading.Event()
        plain = self._client.create_producer(self._topic("paced"), "of-paced", batching_enabled=False)
        batches = self._client.create_producer(
            self._topic("paced-batches"),
            "of-batches",
            batching_enabled=True,
            batching_max_messages=PACED_PER_TICK,
            batching_max_publish_delay_ms=60_000,
        )

        def listener(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            consumer.acknowledge(message)

        def second(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            if message.redelivery_count():
                consumer.acknowledge(message)
            else:
                consumer.negative_acknowledge(message)

        again = self._client.create_producer(self._topic("paced-again"), "of-again", batching_enabled=False)
        sizes = self._client.create_producer(self._topic("paced-sizes"), "of-sizes", batching_enabled=False)
        self._consume("paced-again", "twice", message_listener=second, negative_ack_redelivery_delay_ms=100)
        self._consume("paced", "reads", message_listener=listener)
        self._consume("paced", "hoards", message_listener=lambda *_: None)
        self._consume("paced-batches", "reads", message_listener=listener)

        def publish() -> None:
            due_s = time.monotonic()
            for tick in itertools.count():
                if done.is_set():
                    return
                again.send_async(PAYLOAD, lambda *_: None)
                sizes.send_async(b"x" * SIZES[tick % len(SIZES)], lambda *_: None)
                if tick % 5 == 0:
                    self._read_again()
                for _ in range(PACED_PER_TICK):
                    plain.send_async(PAYLOAD, lambda *_: None)
                    batches.send_async(PAYLOAD, lambda *_: None)
                due_s += TICK_S
                time.sleep(max(0, due_s - time.monotonic()))  # noqa: TID251 - a pace

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
