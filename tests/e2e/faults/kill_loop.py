"""Kill a broker under load, start it again, many times; then ask whether it kept its promises.

    python -m tests.e2e.faults.kill_loop --kills 20

Two topics are loaded by official clients that know nothing of the kills: one unbatched with an exclusive
consumer, one batched with two shared ones. The broker is killed (SIGKILL) at a random moment, 50 to 2000 ms
after it was ready or after its first receipt, and started again on the same data directory and ports. A
second subscription that nobody reads keeps every message, so that at the end the whole topic can be read and
judged by `kill_checker`. How long each start took, with the data of the load to recover, is printed and not
judged: it depends on what else the machine does. `bench/startup.py` measures starts on an empty directory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pulsar
from pulsar import ConsumerType, InitialPosition, MessageId

from tests.e2e.broker_process import BrokerProcess
from tests.e2e.faults.kill_checker import Seen, Verdict, body_of, check, parse_body

KILL_AFTER_MS = (50, 2000)
DRAIN_SECONDS_MAX = 60.0
BURST_MESSAGES = 20
PAUSE_SECONDS = 0.01
"""20 messages, then 10 ms: at most 2000 messages a second from each producer."""


@dataclass
class Report:
    seed: int
    kills: int = 0
    ready_s: list[float] = field(default_factory=list)
    """From starting the process to its ready line, of every restart."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def failures(self) -> list[str]:
        return [
            f"{topic}: {kind} ({verdict.violation_counts[kind]}): {examples}"
            for topic, verdict in self.verdicts.items()
            for kind, examples in verdict.violations.items()
        ]


class TopicLoad:
    """Producers and consumers of one topic, in threads of their own, and all that they saw."""

    def __init__(
        self,
        name: str,
        make_client: Callable[[], pulsar.Client],
        *,
        is_batched: bool,
        kind: ConsumerType,
        consumers: int,
    ) -> None:
        self.topic = f"persistent://public/default/{name}"
        self.receipts: list[Seen] = []
        self.deliveries: list[Seen] = []
        self.stored: list[Seen] = []
        self.is_in_order = kind is ConsumerType.Exclusive
        self._kind = kind
        self._make_client = make_client
        self._sent = 0
        self._confirmed = 0
        self._lock = threading.Lock()
        self._may_send = threading.Event()
        self._may_send.set()
        self._may_receive = threading.Event()
        self._may_receive.set()
        client = make_client()
        client.subscribe(self.topic, "keeper").close()
        self._consumers = [self._subscribe() for _ in range(consumers)]
        self._threads = [
            threading.Thread(target=self._produce, args=(f"{name}-{index}", is_batched), daemon=True)
            for index in range(2)
        ] + [
            threading.Thread(target=self._consume, args=(consumer,), daemon=True)
            for consumer in self._consumers
        ]
        self._failures: list[BaseException] = []
        for thread in self._threads:
            thread.start()

    def _subscribe(self) -> pulsar.Consumer:
        return self._make_client().subscribe(
            self.topic, "s", self._kind, initial_position=InitialPosition.Earliest
        )

    def _produce(self, name: str, is_batched: bool) -> None:
        try:
            producer = self._make_client().create_producer(
                self.topic,
                producer_name=name,
                send_timeout_millis=0,
                block_if_queue_full=True,
                max_pending_messages=500,
                batching_enabled=is_batched,
                batching_max_publish_delay_ms=5,
            )
            number = 0
            pause = threading.Event()
            while self._may_send.is_set():
                for _ in range(BURST_MESSAGES):
                    with self._lock:
                        self._sent += 1
                    producer.send_async(body_of(name, number), self._on_receipt(name, number))
                    number += 1
                pause.wait(PAUSE_SECONDS)
        except BaseException as error:
            self._failures.append(error)
            raise

    def _on_receipt(self, name: str, number: int) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def note(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            with self._lock:
                self._confirmed += 1
                if result == pulsar.Result.Ok:
                    place = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
                    self.receipts.append(Seen(place, name, number))

        return note

    def _consume(self, consumer: pulsar.Consumer) -> None:
        try:
            while self._may_receive.is_set():
                with contextlib.suppress(pulsar.Timeout):
                    message = consumer.receive(100)
                    seen = seen_of(message)
                    with self._lock:
                        self.deliveries.append(seen)
                    # While the broker is away an acknowledgement may not get out: the message comes again.
                    with contextlib.suppress(pulsar.PulsarException):
                        consumer.acknowledge(message)
        except BaseException as error:
            self._failures.append(error)
            raise

    def counts(self) -> tuple[int, int]:
        with self._lock:
            return self._sent, self._confirmed

    def finish(self) -> None:
        """Stop sending, wait for all receipts and deliveries, and read the whole topic."""
        self._may_send.clear()
        wait_until(lambda: self.counts()[0] == self.counts()[1], "all receipts")
        promised = {(seen.producer, seen.number) for seen in self.receipts}

        def delivered() -> bool:
            with self._lock:
                return promised <= {(seen.producer, seen.number) for seen in self.deliveries}

        # What is not delivered by then is for the checker to name.
        with contextlib.suppress(AssertionError):
            wait_until(delivered, "all deliveries")
        self._may_receive.clear()
        for thread in self._threads:
            thread.join(10)
        assert not self._failures, self._failures
        reader = self._make_client().create_reader(self.topic, MessageId.earliest)
        while reader.has_message_available():
            self.stored.append(seen_of(reader.read_next(10_000)))

    def verdict(self) -> Verdict:
        return check(self.receipts, self.stored, self.deliveries, in_order=self.is_in_order)


def seen_of(message: pulsar.Message) -> Seen:
    message_id = message.message_id()
    place = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
    return Seen(place, *parse_body(message.data()))


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = DRAIN_SECONDS_MAX) -> None:
    deadline_s = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        pause.wait(0.05)


def run(
    kills: int, directory: Path, *, seed: int | None = None, say: Callable[[str], None] = lambda line: None
) -> Report:
    """The whole loop. Ends with the broker stopped; its data and log stay in `directory`."""
    report = Report(seed=random.randrange(2**32) if seed is None else seed)
    with BrokerProcess(directory / "data", log_path=directory / "broker.log") as process:
        _load_and_kill(process, kills, report, directory, say)
    return report


def _load_and_kill(
    process: BrokerProcess, kills: int, report: Report, directory: Path, say: Callable[[str], None]
) -> None:
    dice = random.Random(report.seed)
    endpoints = process.endpoints
    clients: list[pulsar.Client] = []

    def make_client() -> pulsar.Client:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(directory / "clients.log"))
        clients.append(pulsar.Client(endpoints.service_url, logger=logger, stats_interval_in_seconds=0))
        return clients[-1]

    loads = [
        TopicLoad("plain", make_client, is_batched=False, kind=ConsumerType.Exclusive, consumers=1),
        TopicLoad("batched", make_client, is_batched=True, kind=ConsumerType.Shared, consumers=2),
    ]
    pause = threading.Event()
    while report.kills < kills:
        if dice.random() < 0.75:
            before = [len(load.receipts) for load in loads]
            wait_until(
                lambda counts=before: any(
                    len(load.receipts) > count for load, count in zip(loads, counts, strict=True)
                ),
                "a receipt after the restart",
            )
        kill_after_ms = dice.randint(*KILL_AFTER_MS)
        pause.wait(kill_after_ms / 1000)
        process.kill()
        report.kills += 1
        started_s = time.monotonic()
        process.start()
        report.ready_s.append(time.monotonic() - started_s)
        receipts = sum(len(load.receipts) for load in loads)
        ready = f"ready in {report.ready_s[-1]:.2f} s"
        say(f"kill {report.kills}: after {kill_after_ms} ms, {ready}, {receipts} receipts")
    for load in loads:
        load.finish()
        report.verdicts[load.topic] = load.verdict()
    for client in clients:
        client.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Kill a broker under load, start it again, and judge what it kept."
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="repeat the moments of an earlier run")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kill-loop-") as directory:
        report = run(
            options.kills, Path(directory), seed=options.seed, say=lambda line: print(line, flush=True)
        )
    for topic, verdict in report.verdicts.items():
        print(topic, json.dumps(asdict(verdict)))
    ready_s = sorted(report.ready_s)
    print(
        f"kills {report.kills}, seed {report.seed}, "
        f"ready: median {ready_s[len(ready_s) // 2]:.2f} s, worst {ready_s[-1]:.2f} s"
    )
    failures = report.failures()
    print("\n".join(failures) if failures else "no receipted message lost, no order broken, no id reused")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
