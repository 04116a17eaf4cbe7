"""How late delayed messages reach a consumer of the official client, on a broker that does nothing else.

    python bench/delayed/lateness.py                             each index, with strict delivery and without
    python bench/delayed/lateness.py --tick-ms 16
    python bench/delayed/lateness.py --messages 2000 --every-ms 5
    python bench/delayed/lateness.py --service-url pulsar://localhost:6650       any broker, as it is set up

One Shared subscription. All messages are published first; then one falls due every `--every-ms`, in random
order of publishing. A row holds the milliseconds from due time to receipt, negative if early: without strict
delivery a message may come a tick before its time. With it, the index in memory rounds up, by about half a
tick at most. The load of other programs shows as lateness.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.e2e.broker_process import BrokerProcess

FACTORY = "org.apache.pulsar.broker.delayed.{}DelayedDeliveryTrackerFactory"
INDEXES = {"memory": "InMemory", "buckets": "Bucket"}
LEAD_MS = 2000
PUBLISHED_PER_MS = 2
"""What a slow machine publishes at least: the first message is due when all are published."""
RECEIVE_MS = 60_000


def now_ms() -> float:
    return time.time_ns() / 1e6


def lateness_ms(service_url: str, messages: int, every_ms: float) -> list[float]:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(service_url, logger=logger, stats_interval_in_seconds=0)
    topic = f"persistent://public/default/lateness-{time.time_ns()}"
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, block_if_queue_full=True)
    first_ms = int(now_ms()) + LEAD_MS + messages // PUBLISHED_PER_MS
    due_ms = [first_ms + int(number * every_ms) for number in range(messages)]
    random.Random(1).shuffle(due_ms)
    for number, at_ms in enumerate(due_ms):
        producer.send_async(b"%d" % number, lambda *_: None, deliver_at=at_ms)
    producer.flush()
    assert now_ms() < first_ms, "publishing took longer than until the first was due"
    late_ms = []
    for _ in range(messages):
        message = consumer.receive(RECEIVE_MS)
        late_ms.append(now_ms() - due_ms[int(message.data())])
        consumer.acknowledge(message)
    client.close()
    return late_ms


@contextmanager
def broker(index: str, is_strict: bool, tick_ms: int) -> Iterator[str]:
    settings = {
        "delayedDeliveryTrackerFactoryClassName": FACTORY.format(INDEXES[index]),
        "isDelayedDeliveryDeliverAtTimeStrict": str(is_strict).lower(),
        "delayedDeliveryTickTimeMillis": str(tick_ms),
    }
    with (
        tempfile.TemporaryDirectory(prefix="lateness-") as directory,
        BrokerProcess(Path(directory) / "data", settings=settings) as process,
    ):
        yield process.endpoints.service_url


def print_row(index: str, delivery: str, late_ms: list[float]) -> None:
    figures = np.percentile(late_ms, [0, 50, 99, 100])
    print(f"{index:10}{delivery:10}" + "".join(f"{figure:10.1f}" for figure in figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--every-ms", type=float, default=20)
    parser.add_argument("--tick-ms", type=int, default=1000)
    parser.add_argument("--service-url", help="measure this broker instead")
    options = parser.parse_args()
    print("index     delivery  " + "".join(f"{name:>10}" for name in ("least", "median", "99 %", "most")))
    if options.service_url:
        print_row("?", "?", lateness_ms(options.service_url, options.messages, options.every_ms))
        return
    for index in INDEXES:
        for is_strict in (True, False):
            with broker(index, is_strict, options.tick_ms) as service_url:
                late_ms = lateness_ms(service_url, options.messages, options.every_ms)
            print_row(index, "strict" if is_strict else "default", late_ms)


if __name__ == "__main__":
    main()
