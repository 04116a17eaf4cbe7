"""A great many delayed messages through a broker with the official client, while the broker is killed and its
buckets are broken: what came, how late, and what ordinary messages had to wait.

    python bench/delayed/million.py                                eight to ten minutes
    python bench/delayed/million.py --messages 60000               one
    python bench/delayed/million.py --index shared
    python bench/delayed/million.py --index memory                 the in-memory tracker: no buckets to break

One Shared subscription, strict delivery, random delays. Messages are published as fast as the client can and
fall due at `--due-rate` a second; unless told, at what this machine carries now, up to 2500: a quarter of
what goes through broker and clients in a short try before. A third of the way through the delivery one bucket
is deleted, one is cut short and one gets a flipped bit; halfway another three, and at once the broker is
killed with SIGKILL and started anew. All along a second process publishes ordinary messages, `--plain-rate` a
second to the same topic and to a control topic. All clients run in processes of their own and live through
the kill.

Prints each demand with its figure; exits with 1 if one is not met. "Caught up" leaves out what fell due while
messages were being published, and from the kill, or from when the broker said that a bucket is lost and its
messages have to be looked up again, until the first second in which nothing came more than 50 ms late; how
long that took is printed. What an ordinary message waits is taken where a client receives it, with
few messages in its queue (100): of a thousand overdue ones there, the default, the broker knows nothing. The
load of other programs shows in lateness: the control topic tells.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess

TOPIC = "persistent://public/default/delayed"
TRY = "persistent://public/default/try"
CONTROL = "persistent://public/default/control"
SUBSCRIPTION = "s"
BODY = struct.Struct("<cQd")
"""Kind, number, and the due time of a delayed or the time of publishing of an ordinary message, in ms."""
DELAYED, PLAIN = b"d", b"p"
LATE_P99_MS = 20
PLAIN_LONGER_P999_MS = 100
UNSAVED_MS = 1000
"""An acknowledgement is on its way to the cursor's saved state for at most so long: the client groups them
for 100 ms, the broker saves every 250 ms, and both share their cores with everything here."""
CAUGHT_UP_MS = 50
QUIET_S = 3.0
RECEIVER_QUEUE = 100
TRY_MESSAGES = 20_000
DUE_RATE_MAX = 2500
LOST = re.compile(r"<bucket ([\d:]+_[\d:]+) in ledger \d+> is lost")
"""What the broker says of a bucket that cannot be read."""
LOG_TIME = "%Y-%m-%d %H:%M:%S,%f"
FACTORY = "org.apache.pulsar.broker.delayed.{}DelayedDeliveryTrackerFactory"


def now_ms() -> float:
    return time.time() * 1000


def make_client(url: str) -> pulsar.Client:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    return pulsar.Client(url, logger=quiet, operation_timeout_seconds=60, stats_interval_in_seconds=0)


# ------------------------------------------------------------------------------------------ client processes


@dataclass
class Received:
    """What one consumer got, by message; times in ms since 1970."""

    kinds: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    stamps_ms: list[float] = field(default_factory=list)
    at_ms: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def run(self, consumer: pulsar.Consumer, done: Callable[[], bool]) -> None:
        """Receive and acknowledge until `done` and then nothing came for `QUIET_S`."""
        last_s = time.monotonic()
        while True:
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                if done() and time.monotonic() - last_s > QUIET_S:
                    return
                continue
            self.at_ms.append(now_ms())
            kind, number, stamp_ms = BODY.unpack_from(message.data())
            place = message.message_id()
            self.kinds.append(kind)
            self.numbers.append(number)
            self.stamps_ms.append(stamp_ms)
            self.places.append(place.ledger_id() << 32 | place.entry_id())
            consumer.acknowledge(message)
            last_s = time.monotonic()


def receive_all(url: str, pipe: Connection, done: Any) -> None:
    client = make_client(url)
    consumer = client.subscribe(
        TOPIC, SUBSCRIPTION, pulsar.ConsumerType.Shared, receiver_queue_size=RECEIVER_QUEUE
    )
    pipe.send("ready")
    received = Received()
    received.run(consumer, done.is_set)
    client.close()
    pipe.send(received)


def publish_delayed(url: str, pipe: Connection, messages: int, due_rate: float, lead_ms: int) -> None:
    """Sends (first due ms, last due ms, numbers without a receipt) when all receipts are there."""
    client = make_client(url)
    producer = client.create_producer(
        TOPIC, block_if_queue_full=True, max_pending_messages=2000, send_timeout_millis=0
    )
    chance = random.Random(1)
    start_ms = now_ms() + lead_ms
    span_ms = messages / due_rate * 1000
    missing: list[int] = []

    def receipt(number: int, result: Any, _id: Any) -> None:
        if result != pulsar.Result.Ok:
            missing.append(number)

    for number in range(messages):
        due_ms = int(start_ms + chance.random() * span_ms)
        body = BODY.pack(DELAYED, number, due_ms)
        producer.send_async(body, lambda r, i, n=number: receipt(n, r, i), deliver_at=due_ms)
    producer.flush()
    client.close()
    pipe.send((start_ms, start_ms + span_ms, missing))


def send_and_receive_plain(url: str, pipe: Connection, done: Any, rate: float) -> None:
    """To both topics at the same moments; the control topic is received here."""
    client = make_client(url)
    control = client.subscribe(
        CONTROL, SUBSCRIPTION, pulsar.ConsumerType.Shared, receiver_queue_size=RECEIVER_QUEUE
    )
    producers = [client.create_producer(t, send_timeout_millis=0) for t in (TOPIC, CONTROL)]
    received = Received()
    over = threading.Event()
    receiver = threading.Thread(target=received.run, args=(control, over.is_set))
    receiver.start()
    number, next_s = 0, time.monotonic()
    while not done.is_set():
        next_s = max(next_s + 1 / rate, time.monotonic() - 0.1)
        time.sleep(max(0.0, next_s - time.monotonic()))
        if control.is_connected() and all(producer.is_connected() for producer in producers):
            body = BODY.pack(PLAIN, number, now_ms())
            for producer in producers:
                producer.send_async(body, lambda *_: None)
            number += 1
    for producer in producers:
        producer.flush()
    over.set()
    receiver.join()
    client.close()
    pipe.send((number, received))


def carried_per_s(url: str) -> float:
    """Messages that one producer and one consumer get through the broker now, in a second."""
    client = make_client(url)
    consumer = client.subscribe(TRY, SUBSCRIPTION, pulsar.ConsumerType.Shared)
    producer = client.create_producer(TRY, block_if_queue_full=True, max_pending_messages=2000)
    started_s = time.monotonic()
    for number in range(TRY_MESSAGES):
        producer.send_async(BODY.pack(PLAIN, number, 0.0), lambda *_: None, deliver_at=1)
    for _ in range(TRY_MESSAGES):
        consumer.acknowledge(consumer.receive(60_000))
    carried = TRY_MESSAGES / (time.monotonic() - started_s)
    client.close()
    return carried


# ---------------------------------------------------------------------------------------------------- the run


@dataclass
class Run:
    """What happened, for the judgement."""

    delayed_published: int = 0
    without_receipt: list[int] = field(default_factory=list)
    plain_published: int = 0
    received: Received = field(default_factory=Received)
    control: Received = field(default_factory=Received)
    published_ms: float = 0.0
    kill_ms: float = 0.0
    ready_ms: float = 0.0
    damaged: dict[str, list[str]] = field(default_factory=dict)
    noticed: set[str] = field(default_factory=set)
    """Ranges of ledgers, as in `damaged`, of buckets that the broker has said to be lost."""
    noticed_ms: list[float] = field(default_factory=list)
    """When it said so."""
    backlog: int = -1


def settings_for(index: str, messages: int) -> dict[str, str]:
    bucket = str(max(500, min(50_000, messages // 20)))
    kept = {
        "isDelayedDeliveryDeliverAtTimeStrict": "true",
        "managedLedgerMaxEntriesPerLedger": bucket,
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "delayedDeliverySharedIndexEnabled": str(index == "shared").lower(),
    }
    if index == "memory":
        # In memory, due times are rounded up to the tick.
        return kept | {
            "delayedDeliveryTrackerFactoryClassName": FACTORY.format("InMemory"),
            "delayedDeliveryTickTimeMillis": "16",
        }
    return kept | {
        "delayedDeliveryTrackerFactoryClassName": FACTORY.format("Bucket"),
        "delayedDeliveryMinIndexCountPerBucket": bucket,
        "delayedDeliveryMaxNumBuckets": "50",
        "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "5",
    }


class Breaker:
    """Breaks buckets that have not been broken yet, the fullest first."""

    def __init__(self, web: Admin) -> None:
        self._path = f"/geminga/delayed/{topic_path(TOPIC)}/subscription/{SUBSCRIPTION}"
        self._web = web
        self._ranges: set[tuple[int, int]] = set()

    def break_three(self) -> list[str]:
        """What was done to which; fewer than three if there are no more buckets."""
        listed = self._web.get(self._path + "/buckets").json()
        stored = sorted((b for b in listed if b["ledgerId"] is not None), key=lambda b: -b["messages"])
        told = []
        for how in ("lose", "truncate", "corrupt"):
            for bucket in stored:
                place = (bucket["startLedger"], bucket["endLedger"])
                if place in self._ranges:
                    continue
                self._ranges.add(place)
                answer = self._web.post(self._path + f"/{how}-bucket", {"ledgerId": bucket["ledgerId"]})
                if answer.status in (200, 204):
                    told.append(f"{how} {place[0]}..{place[1]} ({bucket['messages']})")
                    break
        return told


def measure(options: argparse.Namespace, directory: Path) -> Run:
    run = Run(delayed_published=options.messages)
    broker = BrokerProcess(
        directory / "data", settings=settings_for(options.index, options.messages), arguments=["--chaos"]
    )
    try:
        with broker:
            _drive(run, options, broker)
    except BaseException:
        print(broker.log_tail(60), file=sys.stderr)
        raise
    lines = broker.log_path.read_text().splitlines()
    told = [
        line for line in lines if " WARNING " in line or " ERROR " in line or line.startswith("Traceback")
    ]
    print(*told[: options.log_lines], sep="\n", file=sys.stderr)
    for line in told:
        if found := LOST.search(line):
            run.noticed.add(found[1])
            run.noticed_ms.append(datetime.strptime(line[:23], LOG_TIME).timestamp() * 1000)
    return run


def _drive(run: Run, options: argparse.Namespace, broker: BrokerProcess) -> None:
    url, web = broker.endpoints.service_url, Admin(broker.endpoints.web_url)
    context = multiprocessing.get_context("spawn")
    stop_plain, stop_receiving = context.Event(), context.Event()

    def spawn(work: Callable[..., None], *arguments: Any) -> Connection:
        ours, theirs = context.Pipe()
        context.Process(target=work, args=(url, theirs, *arguments), daemon=True).start()
        return ours

    trial = context.Pool(1)
    carried = trial.apply(carried_per_s, (url,))
    trial.terminate()
    due_rate = options.due_rate or min(DUE_RATE_MAX, carried / 4)
    say(f"{carried:.0f} messages/s go through; {due_rate:.0f} fall due each second")
    receiver = spawn(receive_all, stop_receiving)
    assert receiver.recv() == "ready"
    plain = spawn(send_and_receive_plain, stop_plain, options.plain_rate)
    lead_ms = options.lead_s * 1000 if options.lead_s else 2000 + options.messages / carried * 1000
    publisher = spawn(publish_delayed, options.messages, due_rate, lead_ms)
    first_due_ms, last_due_ms, run.without_receipt = publisher.recv()
    run.published_ms = now_ms()
    say(f"published; the last is due in {(last_due_ms - now_ms()) / 1000:.0f} s")

    begin_ms = max(first_due_ms, run.published_ms)
    breaker = Breaker(web)
    sleep_until(begin_ms + (last_due_ms - begin_ms) / 3)
    if options.index != "memory":
        run.damaged["while running"] = breaker.break_three()
    sleep_until(begin_ms + (last_due_ms - begin_ms) / 2)
    if options.index != "memory":
        run.damaged["before the restart"] = breaker.break_three()
    say(f"broken: {run.damaged}")
    run.kill_ms = now_ms()
    broker.kill()
    broker.start()
    run.ready_ms = now_ms()
    say(f"ready again after {run.ready_ms - run.kill_ms:.0f} ms")

    sleep_until(last_due_ms + 2000)
    stop_plain.set()
    run.plain_published, run.control = plain.recv()
    stop_receiving.set()
    run.received = receiver.recv()
    run.backlog = web.backlog(TOPIC, SUBSCRIPTION)


def sleep_until(at_ms: float) -> None:
    time.sleep(max(0.0, at_ms - now_ms()) / 1000)


def say(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------- the judgement


def judge(run: Run) -> bool:
    """Print each demand with its figure. Whether all are met."""
    kinds = np.array([kind == DELAYED for kind in run.received.kinds], dtype=bool)
    numbers = np.array(run.received.numbers, dtype=np.int64)
    due = np.array(run.received.stamps_ms)
    at = np.array(run.received.at_ms)
    places = np.array(run.received.places, dtype=np.int64)
    verdicts: list[bool] = []

    def line(what: str, figure: str, *, met: bool | None = None) -> None:
        if met is not None:
            verdicts.append(met)
        print(f"{'' if met is None else 'ok  ' if met else 'FAIL':5}{what:58}{figure}")

    for when, what in run.damaged.items():
        line(f"buckets broken {when}", ", ".join(what) or "none", met=len(what) == 3)
    if run.damaged:
        broken = {told.split()[1] for what in run.damaged.values() for told in what}
        noticed = len(broken & run.noticed)
        line("... of which the broker's log tells", f"{noticed} of {len(broken)}", met=noticed == len(broken))
    line("the broker was away, ms", f"{run.ready_ms - run.kill_ms:.0f}")
    got = np.unique(numbers[kinds])
    lost = run.delayed_published - len(got)
    line("delayed messages published / acknowledged", f"{run.delayed_published} / {len(got)}", met=not lost)
    if run.without_receipt:
        line("... without a receipt", str(len(run.without_receipt)), met=False)
    got_plain = len(np.unique(numbers[~kinds]))
    line(
        "undelayed messages published / acknowledged",
        f"{run.plain_published} / {got_plain}",
        met=run.plain_published == got_plain,
    )
    line("backlog at the end", str(run.backlog), met=run.backlog == 0)

    wrong, again = _second_deliveries(run, places, at)
    line("second deliveries of what was saved as acknowledged", str(wrong), met=not wrong)
    line("second deliveries of the last moment before the kill", str(again))
    early = int((at[kinds] < due[kinds]).sum())
    line("delivered early", str(early), met=not early)

    load = f"{os.getloadavg()[0]:.1f} tasks on {os.cpu_count()} cores"
    line("the machine's load at the end, all programs", load)
    settled_ms = _caught_up_after(run.ready_ms, due[kinds], at[kinds])
    line("caught up after the start, ms", f"{settled_ms - run.ready_ms:.0f}")
    late = (at - due)[kinds]
    calm = (due[kinds] > run.published_ms + 2000) & ((at[kinds] < run.kill_ms) | (due[kinds] > settled_ms))
    for noticed_ms in sorted(run.noticed_ms):
        again_ms = _caught_up_after(noticed_ms, due[kinds], at[kinds])
        calm &= (due[kinds] < noticed_ms) | (due[kinds] > again_ms)
        if not run.kill_ms <= noticed_ms <= settled_ms:
            line("caught up after a bucket was found lost, ms", f"{again_ms - noticed_ms:.0f}")
    _tell_late(line, "lateness when caught up", late[calm], p99_max=LATE_P99_MS)
    _tell_late(line, "... while publishing", late[due[kinds] < run.published_ms])
    _tell_late(line, "... all", late)
    _judge_plain(run, line, due[~kinds], at[~kinds], settled_ms)
    return all(verdicts)


def _second_deliveries(run: Run, places: Any, at: Any) -> tuple[int, int]:
    """How many came again that should not have, and how many that may."""
    first: dict[int, float] = {}
    wrong = again = 0
    for place, at_ms in zip(places.tolist(), at.tolist(), strict=True):
        before_ms = first.setdefault(place, at_ms)
        if before_ms is not at_ms:
            if run.kill_ms - UNSAVED_MS <= before_ms <= run.ready_ms and at_ms >= run.kill_ms:
                again += 1
            else:
                wrong += 1
    return wrong, again


def _caught_up_after(ready_ms: float, due: Any, at: Any) -> float:
    """The end of the first second after the start all of whose messages came in time."""
    second_ms = ready_ms
    while second_ms < due.max(initial=0.0):
        part = (due >= second_ms) & (due < second_ms + 1000)
        if part.any() and (at - due)[part].max() <= CAUGHT_UP_MS:
            return second_ms
        second_ms += 1000
    return second_ms


def _tell_late(line: Callable[..., None], what: str, late: Any, p99_max: float | None = None) -> None:
    if not len(late):
        line(what, "no messages", met=False if p99_max is not None else None)
        return
    p50, p99, p999 = np.percentile(late, (50, 99, 99.9))
    line(
        f"{what}, ms ({len(late)} messages)",
        f"p50 {p50:.1f}  p99 {p99:.1f}  p99.9 {p999:.1f}  max {late.max():.1f}",
        met=None if p99_max is None else bool(p99 <= p99_max),
    )


def _judge_plain(run: Run, line: Callable[..., None], sent: Any, at: Any, settled_ms: float) -> None:
    control_sent, control_at = np.array(run.control.stamps_ms), np.array(run.control.at_ms)
    waits, calm = [], []
    for sent_ms, at_ms in ((sent, at), (control_sent, control_at)):
        before = at_ms < run.kill_ms
        waits.append(np.percentile((at_ms - sent_ms)[before | (sent_ms > run.ready_ms)], (50, 99, 99.9)))
        calm.append(np.percentile((at_ms - sent_ms)[before | (sent_ms > settled_ms)], 99.9))
    for name, (p50, p99, p999) in zip(("this topic", "control topic"), waits, strict=True):
        line(f"undelayed messages on {name}, ms", f"p50 {p50:.1f}  p99 {p99:.1f}  p99.9 {p999:.1f}")
    for what, part in (("before the kill", at < run.kill_ms), ("after the start", sent > run.ready_ms)):
        if part.any():
            worst = np.argmax(np.where(part, at - sent, -1))
            line(
                f"... longest {what}, ms",
                f"{(at - sent)[worst]:.1f}, sent {(sent[worst] - run.ready_ms) / 1000:+.2f} s from the start",
            )
    line("... longer at p99.9 when caught up, ms", f"{calm[0] - calm[1]:.1f}")
    longer = waits[0][2] - waits[1][2]
    line("... longer at p99.9, ms", f"{longer:.1f}", met=bool(longer <= PLAIN_LONGER_P999_MS))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--index", choices=("own", "shared", "memory"), default="own")
    parser.add_argument(
        "--due-rate", type=float, default=0, help="messages that fall due a second; 0: see above"
    )
    parser.add_argument("--plain-rate", type=float, default=100, help="undelayed messages a second and topic")
    parser.add_argument(
        "--lead-s", type=float, default=0, help="from the start to the first due time; 0: by size"
    )
    parser.add_argument("--log-lines", type=int, default=20, help="warnings of the broker to show")
    parser.add_argument("--dir", help="where the broker's data goes for the time of the run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        run = measure(options, Path(directory))
    print(f"{options.messages} delayed messages, index: {options.index}")
    return 0 if judge(run) else 1


if __name__ == "__main__":
    sys.exit(main())
