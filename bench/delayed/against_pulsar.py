"""Delayed messages on this broker and on another one, each with its own defaults: early, late, and the cost.

    python bench/delayed/against_pulsar.py --other 'path/to/pulsar {data_dir}'          about ten minutes
    python bench/delayed/against_pulsar.py --other '...' --loads fixed flight --warm-up-s 20
    python bench/delayed/against_pulsar.py --only ours --loads random

One broker after the other, each with an empty data directory and, where the system allows it, a network of
its own. Producer and consumer are the official Python client, in a process each; one topic, one Shared
subscription. All are on one machine with one clock. In a command {data_dir}, {port} and {admin_port} are
filled in; it has to start the broker in the foreground.

fixed    delayed by 2 s, 5,000 messages a second, one by one. After `--warm-up-s` of that, 100,000 of them.
flight   one message is published, received and acknowledged, then the next, not delayed. After
         `--warm-up-s` of that, for `--flight-s`.
random   delays of 5 to 60 s, 3,333 messages a second for 120 s.

CPU is what the broker's processes used, all threads, from the first to the last measured message being sent;
the load goes on before and after, so as much comes in as goes out. Lateness is from the due time to when the
client has the message, negative if early: with two processes of a client on few cores beside the broker, it
holds what they wait for the processor too. Exits with 1 if a demand on our broker is not met.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.broker_process import OURS, BrokerFailed, BrokerProcess, Ports, die_with_parent, enter_own_network
from bench.delayed.bucket_watch import Verdicts, say

BODY = struct.Struct("<Qd")
"""Number, and due time in ms."""
SUBSCRIPTION = "s"
FIXED_MS, FIXED_RATE, FIXED_MESSAGES = (2000, 2000), 5000, 100_000
RANDOM_MS, RANDOM_RATE, RANDOM_SECONDS = (5000, 60_000), 3333, 120
"""Delays, messages a second, and how many or how long."""
AFTER_S = 2.0
"""The load goes on for so long behind the measured messages."""
PENDING_MAX = 5000
BEHIND_S_MAX = 0.05
QUIET_S = 10.0
"""A message that is not there so long after the last one counts as missing."""
SIZE_BYTES = 100
LOADS = ("fixed", "flight", "random")
FIXED_P99_MS, RANDOM_P999_MS = 10.0, 20.0
FIXED_RATIO, FLIGHT_RATIO = 0.7, 0.35
SIDE_SECONDS_MAX = 1200


def now_ms() -> float:
    return time.time_ns() / 1e6


def make_client(url: str) -> pulsar.Client:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    return pulsar.Client(url, logger=quiet, operation_timeout_seconds=60, stats_interval_in_seconds=0)


def percentiles(late_ms: Any) -> dict[str, float]:
    names = ("least_ms", "p50_ms", "p99_ms", "p999_ms", "most_ms")
    found = np.percentile(late_ms, (0, 50, 99, 99.9, 100)) if len(late_ms) else [float("nan")] * 5
    return dict(zip(names, map(float, found), strict=True))


# -- client processes ------------------------------------------------------------------------------------


def consume(url: str, pipe: Connection, topic: str, count: int) -> None:
    """Sends (numbers, due times, times of arrival) when it has so many messages, or no more come."""
    client = make_client(url)
    consumer = client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared)
    pipe.send("ready")
    numbers, due_ms, at_ms = [], [], []
    while len(numbers) < count:
        try:
            message = consumer.receive(int(QUIET_S * 1000) + RANDOM_MS[1])
        except pulsar.Timeout:
            break
        at_ms.append(now_ms())
        number, due = BODY.unpack_from(message.data())
        numbers.append(number)
        due_ms.append(due)
        consumer.acknowledge(message)
    pipe.send((numbers, due_ms, at_ms))
    client.close()


def publish(
    url: str,
    pipe: Connection,
    topic: str,
    count: int,
    rate: float,
    delays_ms: tuple[int, int],
    marks: list[int],
) -> None:
    """At so many a second, one by one; says when it has sent as many as each mark, and at the end."""
    client = make_client(url)
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=PENDING_MAX, send_timeout_millis=0
    )
    chance, rest, waiting = random.Random(1), bytes(SIZE_BYTES - BODY.size), list(marks)
    began_s = next_s = time.perf_counter()
    for number in range(count):
        if waiting and number == waiting[0]:
            pipe.send(waiting.pop(0))
        next_s += 1 / rate
        ahead_s = next_s - time.perf_counter()
        if ahead_s > 0:
            time.sleep(ahead_s)
        elif ahead_s < -BEHIND_S_MAX:
            next_s -= ahead_s  # what was held up is not sent in a burst
        due_ms = int(now_ms()) + chance.randint(*delays_ms)
        producer.send_async(BODY.pack(number, due_ms) + rest, lambda *_: None, deliver_at=due_ms)
    producer.flush()
    pipe.send(time.perf_counter() - began_s)
    client.close()


def fly(url: str, pipe: Connection, topic: str, warm_up_s: float, seconds: float) -> None:
    """One message in flight; says when the measuring begins, and in the end (how many, each one's ms)."""
    client = make_client(url)
    consumer = client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    body = bytes(SIZE_BYTES)

    def for_seconds(duration_s: float) -> list[float]:
        took_ms, until_s = [], time.perf_counter() + duration_s
        while (began_s := time.perf_counter()) < until_s:
            producer.send(body)
            consumer.acknowledge(consumer.receive(10_000))
            took_ms.append((time.perf_counter() - began_s) * 1000)
        return took_ms

    for_seconds(warm_up_s)
    pipe.send("begin")
    pipe.send(for_seconds(seconds))
    client.close()


def spawn(work: Callable[..., None], *arguments: Any) -> Connection:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    url, *rest = arguments
    context.Process(target=work, args=(url, theirs, *rest), daemon=True).start()
    return ours


# -- one broker ------------------------------------------------------------------------------------------


def delayed_load(
    broker: BrokerProcess,
    url: str,
    name: str,
    rate: float,
    delays_ms: tuple[int, int],
    warm_up: int,
    measured: int,
) -> dict[str, float]:
    """Publishes `warm_up`, the `measured` ones, and some more; figures of the measured ones."""
    topic = f"persistent://public/default/{name}"
    count = warm_up + measured + int(AFTER_S * rate)
    consumer = spawn(consume, url, topic, count)
    assert consumer.recv() == "ready"
    producer = spawn(publish, url, topic, count, rate, delays_ms, [warm_up, warm_up + measured])
    producer.recv()
    cpu_s, began_s = broker.cpu_seconds(), time.perf_counter()
    producer.recv()
    cpu_s, took_s = broker.cpu_seconds() - cpu_s, time.perf_counter() - began_s
    producer.recv()
    numbers, due, at = map(np.array, consumer.recv())
    mine = (numbers >= warm_up) & (numbers < warm_up + measured)
    late_ms = (at - due)[mine]
    return {
        "messages": measured,
        "missing": measured - len(np.unique(numbers[mine])),
        "rate": measured / took_s,
        "early": int((late_ms < 0).sum()),
        **percentiles(late_ms),
        "cpu_us": cpu_s / measured * 1e6,
        "resident_mib": broker.resident_bytes() / (1 << 20),
    }


def flight(broker: BrokerProcess, url: str, warm_up_s: float, seconds: float) -> dict[str, float]:
    pipe = spawn(fly, url, "persistent://public/default/flight", warm_up_s, seconds)
    pipe.recv()
    cpu_s = broker.cpu_seconds()
    took_ms = pipe.recv()
    cpu_s = broker.cpu_seconds() - cpu_s
    return {
        "messages": len(took_ms),
        "rate": len(took_ms) / seconds,
        **percentiles(took_ms),
        "cpu_us": cpu_s / len(took_ms) * 1e6,
    }


def measure_side(options: argparse.Namespace, command: str) -> dict[str, dict[str, float]]:
    ports, found = Ports(options.port, options.admin_port), {}
    for load in options.loads:
        # Another broker for each, so that none has the state of the one before.
        with BrokerProcess(command, ports, options.work_dir) as broker:
            if load == "flight":
                found[load] = flight(broker, ports.url, options.warm_up_s, options.flight_s)
            elif load == "fixed":
                warm_up = int(options.warm_up_s * FIXED_RATE)
                found[load] = delayed_load(
                    broker, ports.url, load, FIXED_RATE, FIXED_MS, warm_up, FIXED_MESSAGES
                )
            else:
                messages = RANDOM_RATE * options.random_s
                found[load] = delayed_load(broker, ports.url, load, RANDOM_RATE, RANDOM_MS, 0, messages)
        found[load]["load_average"] = os.getloadavg()[0]
        say(f"{options.inner} {load}: {json.dumps({k: round(v, 2) for k, v in found[load].items()})}")
    return found


def inner_main(options: argparse.Namespace) -> None:
    """The child of a side: it may have a network of its own; writes its figures to a file."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    die_with_parent()
    if not options.same_network:
        enter_own_network()
    try:
        found = measure_side(options, options.ours if options.inner == "ours" else options.other)
    except BrokerFailed as error:
        sys.exit(f"{options.inner}: {error}")
    Path(options.json).write_text(json.dumps(found))


def run_side(side: str, directory: str) -> dict[str, dict[str, float]]:
    result = Path(directory) / f"{side}.json"
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:]]
    with subprocess.Popen([*command, "--inner", side, "--json", str(result)]) as process:
        try:
            process.wait(SIDE_SECONDS_MAX)
        finally:
            if process.poll() is None:
                process.terminate()
    if process.returncode != 0:
        sys.exit(f"{side} has failed")
    return dict(json.loads(result.read_text()))


# -- the report ------------------------------------------------------------------------------------------

ROWS = (
    ("messages", "", 0),
    ("missing", "", 0),
    ("rate", "msg/s", 0),
    ("early", "", 0),
    ("least_ms", "ms", 1),
    ("p50_ms", "ms", 2),
    ("p99_ms", "ms", 2),
    ("p999_ms", "ms", 2),
    ("most_ms", "ms", 1),
    ("cpu_us", "us/msg", 1),
    ("resident_mib", "MiB", 0),
    ("load_average", "", 1),
)


def print_tables(sides: dict[str, dict[str, dict[str, float]]], loads: list[str]) -> None:
    for load in loads:
        print(f"\n{load:<14}{'':<8}" + "".join(f"{side:>12}" for side in sides) + f"{'ours/other':>12}")
        for key, unit, digits in ROWS:
            values = [found[load][key] for found in sides.values() if key in found[load]]
            if not values:
                continue
            line = f"{key.removesuffix('_ms'):<14}{unit:<8}" + "".join(f"{v:>12,.{digits}f}" for v in values)
            if len(values) == 2 and values[1] > 0 and unit in ("us/msg", "MiB"):
                line += f"{values[0] / values[1]:>12.2f}"
            print(line)


def judge(sides: dict[str, dict[str, dict[str, float]]], loads: list[str]) -> bool:
    verdicts = Verdicts()
    ours, other = sides.get("ours"), sides.get("other")
    if ours is None:
        return True

    def ratio(load: str, most: float) -> None:
        if other is not None:
            found = ours[load]["cpu_us"] / other[load]["cpu_us"]
            verdicts.line(f"{load}: CPU of the other's", f"{found:.2f}", met=found <= most)

    print()
    for load in loads:
        if load != "flight":
            for what in ("missing", "early"):
                verdicts.line(f"{load}: {what}", f"{ours[load][what]:,.0f}", met=not ours[load][what])
    if "fixed" in loads:
        p99_ms = ours["fixed"]["p99_ms"]
        verdicts.line("fixed: p99 late, ms", f"{p99_ms:.2f}", met=p99_ms <= FIXED_P99_MS)
        ratio("fixed", FIXED_RATIO)
    if "flight" in loads:
        ratio("flight", FLIGHT_RATIO)
    if "random" in loads:
        p999_ms = ours["random"]["p999_ms"]
        verdicts.line("random: p99.9 late, ms", f"{p999_ms:.2f}", met=p999_ms <= RANDOM_P999_MS)
    return verdicts.all_met


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", default="", help="command that starts the other broker in the foreground")
    parser.add_argument(
        "--ours", default=OURS, help="command that starts this broker (default: this checkout)"
    )
    parser.add_argument("--only", choices=("ours", "other"), help="measure just one of them")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--warm-up-s", type=float, default=60.0)
    parser.add_argument("--flight-s", type=float, default=20.0)
    parser.add_argument("--random-s", type=int, default=RANDOM_SECONDS)
    parser.add_argument("--port", type=int, default=Ports.broker)
    parser.add_argument("--admin-port", type=int, default=Ports.admin)
    parser.add_argument("--same-network", action="store_true", help="no network namespace for each broker")
    parser.add_argument("--work-dir", help="where the data directories go")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--inner", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner:
        inner_main(options)
        return 0
    if not options.other and options.only != "ours":
        parser.error("--other COMMAND is needed, or --only ours")
    sides = [options.only] if options.only else ["ours", "other"]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.work_dir) as directory:
        found = {side: run_side(side, directory) for side in sides}
    print_tables(found, options.loads)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    return 0 if judge(found, options.loads) else 1


if __name__ == "__main__":
    sys.exit(main())
