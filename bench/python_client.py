"""The load generator of bench/side_by_side.py on the Python client, for machines without Go; same flags and
output.

It costs about as much CPU for each message as a broker does, so rates are lower than with the Go one, for
both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from typing import Any

import pulsar

TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "shared": pulsar.ConsumerType.Shared,
    "failover": pulsar.ConsumerType.Failover,
    "key_shared": pulsar.ConsumerType.KeyShared,
}


def report(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def fail(reason: str) -> None:
    print(f"python client: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    values = sorted(seconds)
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        f"{name}_{label}_ms": round(values[int(share * (len(values) - 1))] * 1000, 3)
        for label, share in shares.items()
    }


class Receipts:
    """Counts receipts down, and keeps how long each took."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.seconds: list[float] = []
        self.all_in = threading.Event()

    def callback(self, sent: float) -> Any:
        def on_receipt(result: pulsar.Result, _: Any) -> None:
            if result != pulsar.Result.Ok:
                fail(f"publish failed: {result}")
            self.seconds.append(time.perf_counter() - sent)
            self.left -= 1
            if self.left == 0:
                self.all_in.set()

        return on_receipt


class Phases:
    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags = flags
        # Kept to the end: letting go of one may wait 20 s, in the client, for a thread that waits for us.
        self.kept: list[Any] = []
        self.client = self.connect()

    def connect(self) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(self.flags.url, logger=logger, operation_timeout_seconds=20)
        self.kept.append(client)
        return client

    def subscription(self) -> pulsar.Consumer:
        return self.client.subscribe(
            self.flags.topic,
            self.flags.subscription,
            consumer_type=TYPES[self.flags.type],
            initial_position=pulsar.InitialPosition.Earliest,
        )

    def producer(self, client: pulsar.Client) -> pulsar.Producer:
        batched = self.flags.batched == "true"
        producer = client.create_producer(
            self.flags.topic,
            batching_enabled=batched,
            batching_max_messages=1000,
            batching_max_allowed_size_in_bytes=128 * 1024,
            batching_max_publish_delay_ms=10,
            block_if_queue_full=True,
            max_pending_messages=1000,
        )
        self.kept.append(producer)
        return producer

    def message(self, number: int, time_ns: int = 0) -> bytes:
        head = (time_ns or time.time_ns()).to_bytes(8, "big") + number.to_bytes(8, "big")
        return head + bytes(self.flags.size - 16)

    def send_all(self, producer: pulsar.Producer, rate: int = 0) -> tuple[float, Receipts]:
        receipts = Receipts(self.flags.count)
        started = time.perf_counter()
        for number in range(self.flags.count):
            if rate:
                time.sleep(max(0.0, started + number / rate - time.perf_counter()))
            producer.send_async(self.message(number), receipts.callback(time.perf_counter()))
        producer.flush()
        receipts.all_in.wait()
        return time.perf_counter() - started, receipts

    def receive_all(self, consumer: pulsar.Consumer) -> tuple[float, list[float], int]:
        seen = bytearray(self.flags.count)
        ages = []
        left = self.flags.count
        duplicates = 0
        while left:
            received = consumer.receive()
            data = received.data()
            ages.append((time.time_ns() - int.from_bytes(data[:8], "big")) / 1e9)
            number = int.from_bytes(data[8:16], "big")
            duplicates += seen[number]
            left -= not seen[number]
            seen[number] = 1
            consumer.acknowledge(received)
        return time.perf_counter(), ages, duplicates

    def subscribe(self) -> None:
        report("begin")
        self.subscription().close()
        report("end")

    def publish(self) -> None:
        producer = self.producer(self.client)
        report("begin")
        seconds, _ = self.send_all(producer)
        report("end", messages=self.flags.count, seconds=seconds)

    def drain(self) -> None:
        report("begin")
        started = time.perf_counter()
        consumer = self.subscription()
        last, _, duplicates = self.receive_all(consumer)
        consumer.close()
        report("end", messages=self.flags.count, seconds=last - started, duplicates=duplicates)

    def live(self) -> None:
        consumer = self.subscription()
        producer = self.producer(self.connect())
        report("begin")
        started = time.perf_counter()
        threading.Thread(target=self.send_all, args=(producer,), daemon=True).start()
        last, _, duplicates = self.receive_all(consumer)
        consumer.close()
        report("end", messages=self.flags.count, seconds=last - started, duplicates=duplicates)

    def latency(self) -> None:
        consumer = self.subscription()
        producer = self.producer(self.connect())
        report("begin")
        receipts: list[Receipts] = []
        sender = threading.Thread(
            target=lambda: receipts.append(self.send_all(producer, self.flags.rate)[1]), daemon=True
        )
        sender.start()
        _, ages, duplicates = self.receive_all(consumer)
        sender.join()
        consumer.close()
        fields = percentiles("publish", receipts[0].seconds) | percentiles("end_to_end", ages)
        report("end", messages=self.flags.count, duplicates=duplicates, **fields)

    def delayed(self) -> None:
        consumer = self.subscription()
        producer = self.producer(self.connect())
        report("begin")

        def send() -> None:
            receipts = Receipts(self.flags.count)
            started = time.perf_counter()
            for number in range(self.flags.count):
                time.sleep(max(0.0, started + number / self.flags.rate - time.perf_counter()))
                due_ms = time.time_ns() // 1_000_000 + int(self.flags.delay.removesuffix("ms"))
                body = self.message(number, due_ms * 1_000_000)
                producer.send_async(body, receipts.callback(time.perf_counter()), deliver_at=due_ms)

        threading.Thread(target=send, daemon=True).start()
        _, ages, duplicates = self.receive_all(consumer)
        consumer.close()
        fields = percentiles("delayed_early", [max(-age, 0.0) for age in ages])
        fields |= percentiles("delayed_late", [max(age, 0.0) for age in ages])
        fields |= percentiles("delayed_off", [abs(age) for age in ages])
        report("end", messages=self.flags.count, duplicates=duplicates, **fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    phases = ("subscribe", "publish", "drain", "live", "latency", "delayed")
    parser.add_argument("-phase", choices=phases, required=True)
    parser.add_argument("-url", default="pulsar://localhost:6650")
    parser.add_argument("-topic", required=True)
    parser.add_argument("-subscription", default="bench")
    parser.add_argument("-type", choices=TYPES, default="shared")
    parser.add_argument("-count", type=int, default=10_000)
    parser.add_argument("-size", type=int, default=1024)
    parser.add_argument("-batched", choices=("true", "false"), default="false")
    parser.add_argument("-rate", type=int, default=500)
    parser.add_argument("-delay", default="2000ms", help="milliseconds, with the letters ms")
    parser.add_argument("-timeout", default="60s", help="seconds, with the letter s")
    flags = parser.parse_args()
    timeout_s = float(flags.timeout.removesuffix("s"))
    watch = threading.Timer(timeout_s, fail, [f"phase {flags.phase} took longer than {flags.timeout}"])
    watch.daemon = True
    watch.start()
    phases = Phases(flags)
    getattr(phases, flags.phase)()
    os._exit(0)  # without closing connections one by one, as the Go one does


if __name__ == "__main__":
    main()
