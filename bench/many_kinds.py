"""CPU for each message of traffic of many kinds: this checkout beside another one, in turns.

    git worktree add --detach ../before SOME_COMMIT
    python bench/many_kinds.py ../before
    python bench/many_kinds.py ../before --kinds holes nacks --turns 15

Both brokers run all the time. Each turn publishes messages of one kind to one of them, consumes and
acknowledges them. CPU is that of all threads of the broker; pauses of the clients cost it nothing. Linux.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pulsar

from bench.two_checkouts import HEAD, Broker, both, cpu_s, figures_of, row

RECEIVE_MS = 60_000
NACK_DELAY_MS = 100
PREFIX = "persistent://public/default/"
Work = Callable[[int], None]
"""Publishes and consumes this many messages."""


class Clients:
    """Of one broker. Each kind is a method that returns its work; its topics and clients stay."""

    def __init__(self, broker: Broker, web_port: int) -> None:
        self._web = f"http://localhost:{web_port}/admin/v2/"
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        self.client = pulsar.Client(broker.url, io_threads=1, message_listener_threads=1, logger=logger)

    def _producer(self, topic: str, **options: object) -> pulsar.Producer:
        given = {"batching_enabled": False, "block_if_queue_full": True} | options
        return self.client.create_producer(PREFIX + topic, **given)

    def _consumer(
        self,
        topic: str,
        kind: pulsar.ConsumerType = pulsar.ConsumerType.Shared,
        name: str = "s",
        **options: object,
    ) -> pulsar.Consumer:
        return self.client.subscribe(PREFIX + topic, name, kind, **options)

    def fan_out(self) -> Work:
        consumers = [self._consumer("fan-out", name=f"s{number}") for number in range(10)]
        producer = self._producer("fan-out")

        def work(count: int) -> None:
            _send([producer], count // 10)
            for consumer in consumers:
                _take(consumer, count // 10)

        return work

    def key_shared(self) -> Work:
        consumers = [self._consumer("key-shared", pulsar.ConsumerType.KeyShared) for _ in range(4)]
        producer = self._producer("key-shared")

        def work(count: int) -> None:
            _send([producer], count, keys=100)
            left = count
            while left:
                for consumer in consumers:
                    left -= _take_what_is_there(consumer)

        return work

    def topics(self) -> Work:
        consumers = [self._consumer(f"topics-{number}") for number in range(300)]
        producers = [self._producer(f"topics-{number}") for number in range(300)]

        def work(count: int) -> None:
            _send(producers, count)
            for consumer in consumers:
                _take(consumer, count // 300)

        return work

    def large(self) -> Work:
        consumer, producer = self._consumer("large", receiver_queue_size=10), self._producer("large")

        def work(count: int) -> None:
            _send([producer], count // 50, size_bytes=1 << 20)
            _take(consumer, count // 50)

        return work

    def holes(self) -> Work:
        producer = self._producer("holes")

        def work(count: int) -> None:
            consumer = self._consumer("holes")
            _send([producer], count)
            for number in range(count):
                message = consumer.receive(RECEIVE_MS)
                if number % 2:
                    consumer.acknowledge(message)
            consumer.close()
            consumer = self._consumer("holes")
            _take(consumer, count // 2)
            consumer.close()

        return work

    def nacks(self) -> Work:
        consumer = self._consumer("nacks", negative_ack_redelivery_delay_ms=NACK_DELAY_MS)
        producer = self._producer("nacks")

        def work(count: int) -> None:
            _send([producer], count)
            for _ in range(count):
                consumer.negative_acknowledge(consumer.receive(RECEIVE_MS))
            _take(consumer, count)

        return work

    def partitions(self) -> Work:
        url = f"{self._web}persistent/public/default/partitions/partitions"
        request = urllib.request.Request(url, b"8", {"Content-Type": "application/json"}, method="PUT")
        urllib.request.urlopen(request).close()
        consumer, producer = self._consumer("partitions"), self._producer("partitions")

        def work(count: int) -> None:
            _send([producer], count)
            _take(consumer, count)

        return work

    def batches(self) -> Work:
        consumer = self._consumer("batches")
        producer = self._producer("batches", batching_enabled=True, batching_max_messages=10)

        def work(count: int) -> None:
            _send([producer], count)
            _take(consumer, count)

        return work


KINDS = ("fan_out", "key_shared", "topics", "large", "holes", "nacks", "partitions", "batches")


def _send(producers: list[pulsar.Producer], count: int, *, size_bytes: int = 1024, keys: int = 0) -> None:
    body = b"x" * size_bytes
    for number in range(count):
        key = f"k{number % keys}" if keys else None
        producers[number % len(producers)].send_async(body, _sent, partition_key=key)
    for producer in producers:
        producer.flush()


def _sent(result: pulsar.Result, _: pulsar.MessageId) -> None:
    if result != pulsar.Result.Ok:
        sys.exit(f"not sent: {result}")


def _take(consumer: pulsar.Consumer, count: int) -> None:
    for _ in range(count):
        consumer.acknowledge(consumer.receive(RECEIVE_MS))


def _take_what_is_there(consumer: pulsar.Consumer) -> int:
    taken = 0
    try:
        while True:
            consumer.acknowledge(consumer.receive(5))
            taken += 1
    except pulsar.Timeout:
        return taken


def measure(brokers: list[Broker], kind: str, messages: int, turns: int) -> Iterator[tuple[float, float]]:
    clients = [Clients(broker, 8000 + number) for number, broker in enumerate(brokers)]
    works = [getattr(each, kind)() for each in clients]
    for work in works:
        work(messages)
    for turn in range(turns):
        used_us = [0.0, 0.0]
        for number in (0, 1) if turn % 2 else (1, 0):
            began_s = cpu_s(brokers[number].process.pid)
            works[number](messages)
            used_us[number] = (cpu_s(brokers[number].process.pid) - began_s) / messages * 1e6
        yield used_us[0], used_us[1]
    for each in clients:
        each.client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument(
        "--messages", type=int, default=6000, help="of each turn, deliveries of fan_out included"
    )
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="many-kinds-") as directory,
        both(options.other, Path(directory)) as brokers,
    ):
        print(HEAD)
        for kind in options.kinds:
            figures[kind] = figures_of(list(measure(brokers, kind, options.messages, options.turns)))
            print(row(kind, figures[kind]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
