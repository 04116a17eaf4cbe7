"""All buckets of a topic are lost: what the broker makes of it, and what it needs for that.

    python bench/delayed/rebuild.py                                 1,500,000 messages, about four minutes
    python bench/delayed/rebuild.py --kill-at 0.5                   kill -9 when half of them are sealed again
    python bench/delayed/rebuild.py --at-run-time all --producers-go-on
    python bench/delayed/rebuild.py --at-run-time one --key-shared
    python bench/delayed/rebuild.py --messages 60000 --set delayedDeliveryMinIndexCountPerBucket=5000
    python bench/delayed/rebuild.py --checkout ../before --set managedLedgerMinLedgerRolloverTimeMinutes=0

Delayed messages with hours to wait are published as fast as one official client can, and some (`--due-share`)
that fall due within `--span-s` of being published, so before, during and after the loss. When all that will
be in buckets is, the broker is stopped, the properties that name buckets are taken out of its metadata, and
it is started again; or, with `--at-run-time`, the running broker is told to lose buckets (`--chaos`). Then it
is looked at once a second until nothing moves any more: buckets and messages in them, what waits, resident
memory. Consumer and producer are processes of their own and live through it.

The usual peak of memory is that of the broker while it built the buckets the first time. With `--kill-at` the
broker is killed when that share of the messages is sealed again, or, if nothing is, when the index knows that
share of them, or at the end. Buckets that were named in the metadata at the kill have to serve afterwards, or
their messages to be in others. Each message was delivered, or waits: published = delivered + waiting.

The bucket tracker and strict delivery are set, all else are the defaults; `--set` changes that. Prints each
demand with its figure; exits with 1 if one is not met.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.delayed.bucket_watch import (
    CheckoutBroker,
    Look,
    Settled,
    Verdicts,
    Watch,
    drop_bucket_properties,
    named_buckets,
    parse_settings,
    reset_peak,
    say,
)
from tests.e2e.broker_process import ROOT, BrokerProcess

TOPIC = "persistent://public/default/rebuilt"
SUBSCRIPTION = "s"
BODY = struct.Struct("<Qq")
"""Number and due time in ms."""
SETTINGS = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed."
    "BucketDelayedDeliveryTrackerFactory",
    "isDelayedDeliveryDeliverAtTimeStrict": "true",
}
INDEXES_MIN = "delayedDeliveryMinIndexCountPerBucket"
HOUR_MS = 3_600_000
KEYS = 1000
PENDING_MAX = 5000
SETTLE_S = 10.0
END_S = 30.0
"""How long the last messages that are due may take to be acknowledged, all else being done."""


def now_ms() -> float:
    return time.time_ns() / 1e6


@dataclass
class Plan:
    """What is published; it goes to another process."""

    messages: int
    due_share: float
    span_s: float
    key_shared: bool = False
    go_on_rate: float = 0.0
    """Messages a second that are published after these, until told to stop."""
    seed: int = 1


@dataclass
class Received:
    """What one consumer got; times in ms since 1970."""

    numbers: list[int] = field(default_factory=list)
    due_ms: list[int] = field(default_factory=list)
    at_ms: list[float] = field(default_factory=list)


def make_client(url: str) -> pulsar.Client:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    return pulsar.Client(url, logger=quiet, operation_timeout_seconds=60, stats_interval_in_seconds=0)


def publish(url: str, pipe: Connection, stop: Any, plan: Plan) -> None:
    """Sends (number published, failed) when the planned ones are durable, and again when told to stop."""
    client = make_client(url)
    producer = client.create_producer(
        TOPIC,
        producer_name="publisher",
        block_if_queue_full=True,
        max_pending_messages=PENDING_MAX,
        send_timeout_millis=0,
    )
    chance, began_ms, failed, number = random.Random(plan.seed), int(now_ms()), 0, 0
    span_ms = int(plan.span_s * 1000)

    def receipt(result: Any, _id: Any) -> None:
        nonlocal failed
        failed += result != pulsar.Result.Ok

    def send() -> None:
        nonlocal number
        if chance.random() < plan.due_share:
            due_ms = int(now_ms()) + chance.randrange(span_ms)
        else:
            due_ms = began_ms + HOUR_MS + chance.randrange(24 * HOUR_MS)
        key = str(number % KEYS) if plan.key_shared else None
        producer.send_async(BODY.pack(number, due_ms), receipt, deliver_at=due_ms, partition_key=key)
        number += 1

    for _ in range(plan.messages):
        send()
    producer.flush()
    pipe.send((number, failed))
    next_s = time.monotonic()
    while plan.go_on_rate and not stop.is_set():
        next_s += 0.01
        for _ in range(round(plan.go_on_rate / 100)):
            send()
        time.sleep(max(0.0, next_s - time.monotonic()))
    if plan.go_on_rate:
        producer.flush()
        pipe.send((number, failed))
    client.close()


def consume(url: str, pipe: Connection, stop: Any, key_shared: bool, count: Any) -> None:
    """Receives and acknowledges until told to stop; then sends what it got. `count`: how many so far."""
    client = make_client(url)
    kind = pulsar.ConsumerType.KeyShared if key_shared else pulsar.ConsumerType.Shared
    consumer = client.subscribe(TOPIC, SUBSCRIPTION, kind)
    pipe.send("ready")
    received = Received()
    while not stop.is_set():
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            continue
        received.at_ms.append(now_ms())
        number, due_ms = BODY.unpack(message.data())
        received.numbers.append(number)
        received.due_ms.append(due_ms)
        consumer.acknowledge(message)
        count.value += 1
    client.close()
    pipe.send(received)


class Clients:
    """The consumer's and the producer's process."""

    def __init__(self, url: str, plan: Plan) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop_publishing, self._stop_receiving = context.Event(), context.Event()
        self.received = context.Value("q", 0)

        def spawn(work: Callable[..., None], *arguments: Any) -> Connection:
            ours, theirs = context.Pipe()
            context.Process(target=work, args=(url, theirs, *arguments), daemon=True).start()
            return ours

        self._consumer = spawn(consume, self._stop_receiving, plan.key_shared, self.received)
        assert self._consumer.recv() == "ready"
        self._publisher = spawn(publish, self._stop_publishing, plan)
        self._goes_on = bool(plan.go_on_rate)

    def published(self) -> int:
        """Once the planned messages are durable."""
        number, failed = self._publisher.recv()
        assert not failed, f"{failed} messages were refused"
        return int(number)

    def stop_publishing(self) -> int | None:
        """How many in all; None: no more than were planned."""
        if not self._goes_on:
            return None
        self._goes_on = False
        self._stop_publishing.set()
        return self.published()

    def stop_receiving(self) -> Received:
        self._stop_receiving.set()
        received: Received = self._consumer.recv()
        return received


@dataclass
class Run:
    """What happened, for the judgement."""

    published: int = 0
    indexes_min: int = 50_000
    usual_peak_mib: float = 0.0
    built: list[int] = field(default_factory=list)
    """Sizes of the buckets before the loss."""
    lost: set[int] = field(default_factory=set)
    """The ledgers of the buckets."""
    looks: list[Look] = field(default_factory=list)
    """After the loss, of all processes."""
    killed_at: Look | None = None
    at_kill: set[int] = field(default_factory=set)
    """The ledgers of buckets that were named at the kill."""
    rebuild_s: float = 0.0
    """From the loss, or the start after it, to the last change."""
    last: Look | None = None
    """When all that was due is acknowledged."""
    received: Received = field(default_factory=Received)

    @property
    def peak_mib(self) -> float:
        return max(look.peak_mib for look in self.looks)


@dataclass
class Course:
    """What is to happen."""

    plan: Plan
    settings: Mapping[str, str]
    at_run_time: str = ""
    """"", "one" or "all"."""
    kill_at: float = 0.0
    settle_s: float = SETTLE_S
    timeout_s: float = 600.0
    every_s: float = 1.0
    checkout: Path = ROOT


def measure(course: Course, directory: Path, show: Callable[[str], None] = print) -> Run:
    broker = CheckoutBroker(
        course.checkout, directory / "data", settings=course.settings, arguments=["--chaos"]
    )
    with broker:
        return _drive(course, broker, show)


def _drive(course: Course, broker: BrokerProcess, show: Callable[[str], None]) -> Run:
    run = Run(indexes_min=int(course.settings.get(INDEXES_MIN, 50_000)))
    clients = Clients(broker.endpoints.service_url, course.plan)
    began_s = time.monotonic()
    run.published, published_s = clients.published(), time.monotonic()
    show(f"{run.published:,} published in {published_s - began_s:.1f} s")
    watch = Watch(broker, TOPIC, SUBSCRIPTION)

    def step(ended: Callable[[Look], bool]) -> list[Look]:
        return watch.until(ended, timeout_s=course.timeout_s, every_s=course.every_s, show=show)

    before = step(Settled(course.settle_s / 2))[-1]
    run.usual_peak_mib, run.built = before.peak_mib, before.sizes
    lost = run.lost = _lose(course, broker, watch, before)
    show(f"{len(lost)} buckets lost")
    loss_s, watch = time.monotonic(), Watch(broker, TOPIC, SUBSCRIPTION)
    # What was waiting and falls due meanwhile is not waited for.
    share = int(before.waiting * (1 - course.plan.due_share))
    settled = Settled(course.settle_s, share)
    if course.kill_at:
        goal = course.kill_at * share

        def is_time(look: Look) -> bool:
            alive = sum(messages for ledger_id, messages in look.buckets if ledger_id not in lost)
            return alive >= goal or (not look.buckets and look.waiting >= goal) or settled(look)

        run.looks += watch.until(
            is_time, timeout_s=course.timeout_s, every_s=min(0.1, course.every_s), show=show
        )
        run.killed_at = run.looks[-1]
        broker.kill()
        run.at_kill = set(named_buckets(broker.data_dir, TOPIC).values())
        show(f"killed with {len(run.at_kill)} buckets named")
        broker.start()
        watch, settled = Watch(broker, TOPIC, SUBSCRIPTION), Settled(course.settle_s, share)
    run.looks += step(settled)
    run.rebuild_s = time.monotonic() - loss_s - course.settle_s
    _end(run, course, clients, watch, published_s)
    return run


def _lose(course: Course, broker: BrokerProcess, watch: Watch, before: Look) -> set[int]:
    """The ledgers of the buckets that are lost."""
    if course.at_run_time:
        doomed = (
            before.buckets if course.at_run_time == "all" else before.buckets[len(before.buckets) // 2 :][:1]
        )
        reset_peak(broker.pid)
        for ledger_id, _ in doomed:
            watch.lose(ledger_id)
        return {ledger_id for ledger_id, _ in doomed}
    code = broker.stop()
    assert code == 0, f"the broker ended with {code}"
    lost = set(named_buckets(broker.data_dir, TOPIC).values())
    drop_bucket_properties(broker.data_dir, TOPIC)
    broker.start()
    return lost


def _end(run: Run, course: Course, clients: Clients, watch: Watch, published_s: float) -> None:
    """Wait for the last messages that are due, stop the clients, take the counts."""
    if (number := clients.stop_publishing()) is not None:
        run.published, published_s = number, time.monotonic()
    rest_s = published_s + course.plan.span_s - time.monotonic()
    if rest_s > 0:
        say(f"the last is due in {rest_s:.0f} s")
        time.sleep(rest_s)

    def is_complete(look: Look) -> bool:
        return clients.received.value + look.waiting >= run.published and not look.unread

    looks = watch.until(is_complete, timeout_s=END_S, every_s=0.2, show=lambda _: None)
    # Settled, so that a message that is sent again is among those that were received.
    looks += watch.until(Settled(1.0), timeout_s=5, every_s=0.2, show=lambda _: None)
    run.looks += looks
    run.last = looks[-1]
    run.received = clients.stop_receiving()


def judge(run: Run, *, more_mib_max: float) -> bool:
    """Print each demand with its figure. Whether all are met."""
    verdicts = Verdicts()
    line = verdicts.line
    assert run.last is not None
    last, minimum = run.last, run.indexes_min
    delivered = len(set(run.received.numbers))
    built = f"{len(run.built)}, of {run.built[0]:,} to {run.built[-1]:,}" if run.built else "0"
    line("buckets that were built the first time", built, met=bool(run.built))
    line("of these, lost", f"{len(run.lost)}", met=bool(run.lost))
    listed = len(run.lost & last.ledgers)
    line("... and still said to serve", f"{listed}", met=not listed)
    sizes = last.sizes
    at_end = f"{len(sizes)}, of {sizes[0]:,} to {sizes[-1]:,}" if sizes else "0"
    line("buckets at the end", at_end, met=bool(sizes))
    line("... the largest", f"{sizes[-1] if sizes else 0:,}", met=bool(sizes) and sizes[-1] <= 2 * minimum)
    runts = sum(size < minimum // 4 for size in sizes)
    line("... below a quarter of the usual size", str(runts), met=runts <= 1)
    rest = last.waiting - last.sealed
    line("messages in buckets, of all that wait", f"{last.sealed:,} of {last.waiting:,}", met=rest >= 0)
    line("... in no bucket", f"{rest:,}", met=rest <= 2 * minimum)
    line("seconds from the loss until nothing moved any more", f"{run.rebuild_s:.1f}")
    line("peak memory while the buckets were built, MiB", f"{run.usual_peak_mib:.0f}")
    more = run.peak_mib - run.usual_peak_mib
    line("peak memory after the loss, MiB", f"{run.peak_mib:.0f} ({more:+.0f})", met=more <= more_mib_max)
    line("resident at the end, MiB", f"{last.resident_mib:.0f}")
    if run.killed_at is not None:
        kept = run.at_kill & last.ledgers
        line("messages sealed at the kill", f"{run.killed_at.sealed:,}", met=run.killed_at.sealed > 0)
        line(
            "buckets that were named at the kill, and serve",
            f"{len(run.at_kill)}, {len(kept)}",
            met=bool(kept) and kept == run.at_kill,
        )
    lost = run.published - delivered - last.waiting
    line(
        "published = delivered + waiting",
        f"{run.published:,} = {delivered:,} + {last.waiting:,}",
        met=not lost,
    )
    line("still unread", f"{last.unread:,}", met=not last.unread)
    early = [due - at for due, at in zip(run.received.due_ms, run.received.at_ms, strict=True) if at < due]
    line("delivered early", f"{len(early)}" + (f", by {max(early):.0f} ms" if early else ""), met=not early)
    line("delivered twice", str(len(run.received.numbers) - delivered))
    return verdicts.all_met


def course_of(options: argparse.Namespace) -> Course:
    settings = SETTINGS | parse_settings(options.set)
    if options.kill_at and options.producers_go_on:
        # What the client sends again after the kill would be stored twice, and counted so.
        settings["brokerDeduplicationEnabled"] = "true"
    plan = Plan(
        options.messages,
        options.due_share,
        options.span_s or 60 + options.messages / 10_000,
        options.key_shared,
        options.rate if options.producers_go_on else 0.0,
    )
    return Course(
        plan,
        settings,
        options.at_run_time or "",
        options.kill_at,
        options.settle_s,
        options.timeout_s,
        checkout=options.checkout,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_500_000)
    parser.add_argument("--at-run-time", choices=("one", "all"), help="not while stopped: how many buckets")
    parser.add_argument("--kill-at", type=float, default=0.0, metavar="FRACTION", help="0: no kill")
    parser.add_argument("--key-shared", action="store_true", help="a Key_Shared subscription")
    parser.add_argument("--producers-go-on", action="store_true", help="at `--rate` all through")
    parser.add_argument("--rate", type=float, default=2000.0, help="messages a second")
    parser.add_argument("--due-share", type=float, default=0.04, help="of messages that fall due in the run")
    parser.add_argument("--span-s", type=float, default=0.0, help="within which they do; 0: by `--messages`")
    parser.add_argument("--settle-s", type=float, default=SETTLE_S, help="without a change: it has ended")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="for each step")
    parser.add_argument("--more-mib", type=float, default=60.0, help="that memory may peak above the usual")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose broker is measured")
    parser.add_argument("--dir", help="where the broker's data go for the time of the run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rebuild-", dir=options.dir) as directory:
        run = measure(course_of(options), Path(directory))
    return 0 if judge(run, more_mib_max=options.more_mib) else 1


if __name__ == "__main__":
    sys.exit(main())
