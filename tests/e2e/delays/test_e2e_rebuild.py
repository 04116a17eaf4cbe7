"""Lost buckets come back as buckets: of the usual size, while the messages are read again, and a kill in the
middle keeps those that are there. `bench/delayed/rebuild.py` does it with 1,500,000 messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from pulsar import ConsumerType

from bench.delayed.bucket_watch import Look, Watch, drop_bucket_properties, named_buckets
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.waiting import eventually, now_ms

pytestmark = pytest.mark.geminga_only
Make = Callable[..., pulsar.Client]
TOPIC = "persistent://public/default/rebuilt"
SUBSCRIPTION = "s"
FAR_MS = 3_600_000
SOON = 200
"""Every so many-th message falls due during the test."""


def settings(indexes_min: int) -> dict[str, str]:
    return {
        "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed."
        "BucketDelayedDeliveryTrackerFactory",
        "isDelayedDeliveryDeliverAtTimeStrict": "true",
        "delayedDeliveryMinIndexCountPerBucket": str(indexes_min),
        "managedLedgerMaxEntriesPerLedger": str(indexes_min),
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    }


def publish(client: pulsar.Client, messages: int, soon_ms: int) -> int:
    """The due time of the few that fall due, whose body it is; all are durable."""
    producer = client.create_producer(TOPIC, block_if_queue_full=True, max_pending_messages=5000)
    began_ms = now_ms()
    due_ms = began_ms + soon_ms
    for number in range(messages):
        at_ms = due_ms if number % SOON == 0 else began_ms + FAR_MS + number
        producer.send_async(b"%d" % at_ms, lambda *_: None, deliver_at=at_ms, partition_key=str(number % 100))
    producer.flush()
    producer.close()
    return due_ms


class Receiver:
    """Receives and acknowledges beside the test, through restarts of the broker."""

    def __init__(self, client: pulsar.Client, kind: ConsumerType) -> None:
        self.early = 0
        self.got: set[tuple[int, int]] = set()
        self._consumer = client.subscribe(TOPIC, SUBSCRIPTION, kind)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._receive)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _receive(self) -> None:
        while not self._ended.is_set():
            try:
                message = self._consumer.receive(100)
            except pulsar.Timeout:
                continue
            self.early += now_ms() < int(message.data())
            self._consumer.acknowledge(message)
            place = message.message_id()
            self.got.add((place.ledger_id(), place.entry_id()))

    def wait(self, count: int) -> None:
        eventually(lambda: len(self.got) == count, what="what is due comes")


def all_in_buckets(watch: Watch, waiting: int, indexes_min: int, lost: set[int]) -> Look:
    """Once all but a part that may still grow is in buckets that were not lost."""

    def complete() -> Look | None:
        look = watch.look()
        new = sum(messages for ledger_id, messages in look.buckets if ledger_id not in lost)
        return look if new >= waiting - 2 * indexes_min and not look.ledgers & lost else None

    return eventually(complete, what="all messages are in buckets")


def assert_usual_sizes(look: Look, indexes_min: int) -> None:
    assert look.sealed <= look.waiting, look.sizes
    assert look.sizes[-1] <= 2 * indexes_min, look.sizes
    # The rest of each stream: what is published, what is read again, and what the loss found half sealed.
    assert sum(size < indexes_min // 2 for size in look.sizes) <= 3, look.sizes


def test_all_buckets_are_lost_while_stopped_and_a_kill_in_the_middle_resumes(
    tmp_path: Path, make_client: Make
) -> None:
    messages, indexes_min = 40_000, 4_000
    waiting = messages - messages // SOON
    with BrokerProcess(tmp_path / "data", settings=settings(indexes_min)) as broker:
        client = make_client(broker.endpoints.service_url)
        with Receiver(client, ConsumerType.Shared) as receiver:
            publish(client, messages, soon_ms=3_000)
            watch = Watch(broker, TOPIC, SUBSCRIPTION)
            eventually(lambda: watch.look().sealed > messages * 2 // 3)
            assert broker.stop() == 0
            lost = set(named_buckets(broker.data_dir, TOPIC).values())
            assert drop_bucket_properties(broker.data_dir, TOPIC) == len(lost) >= 3

            broker.start()
            eventually(lambda: len(watch.look().ledgers - lost) >= 2, what="buckets while it reads")
            broker.kill()
            at_kill = set(named_buckets(broker.data_dir, TOPIC).values())
            broker.start()
            look = all_in_buckets(watch, waiting, indexes_min, lost)
            assert at_kill <= look.ledgers, "what was sealed before the kill serves"
            assert_usual_sizes(look, indexes_min)
            receiver.wait(messages - waiting)
            assert not receiver.early
        eventually(lambda: watch.look().waiting == waiting, what="none is lost, none is there twice")


def test_all_buckets_are_lost_at_run_time(tmp_path: Path, make_client: Make) -> None:
    messages, indexes_min = 20_000, 2_000
    waiting = messages - messages // SOON
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, settings=settings(indexes_min), arguments=["--chaos"]) as broker:
        client = make_client(broker.endpoints.service_url)
        with Receiver(client, ConsumerType.KeyShared) as receiver:
            publish(client, messages, soon_ms=2_000)
            watch = Watch(broker, TOPIC, SUBSCRIPTION)
            built = eventually(lambda: (look := watch.look()).sealed > messages * 2 // 3 and look)
            for ledger_id in built.ledgers:
                watch.lose(ledger_id)
            look = all_in_buckets(watch, waiting, indexes_min, built.ledgers)
            assert_usual_sizes(look, indexes_min)
            receiver.wait(messages - waiting)
            assert not receiver.early
        eventually(lambda: watch.look().waiting == waiting, what="none is lost, none is there twice")
