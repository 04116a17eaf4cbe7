"""How late delayed messages reach a consumer of the official client, on a broker that does nothing else.

    python bench/delayed/lateness.py                             as configured, each index, and not strict
    python bench/delayed/lateness.py defaults "shared, buckets"  only these
    python bench/delayed/lateness.py --messages 100000 --every-ms 0.2 --lead-ms 25000
    python bench/delayed/lateness.py defaults --precision 1s
    python bench/delayed/lateness.py --service-url pulsar://localhost:6650       any broker, as it is set up

One Shared subscription, whose consumer is a process of its own. All messages are published first; then one
falls due every `--every-ms`, in random order of publishing. A row holds how many came early, the
milliseconds from due time to receipt (negative: early), and the broker's CPU time from just before the first
message is due to the last receipt. The load of other programs shows as lateness.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.e2e.broker_process import ROOT, BrokerProcess

TRACKER = "delayedDeliveryTrackerFactoryClassName"
FACTORY = "org.apache.pulsar.broker.delayed.{}DelayedDeliveryTrackerFactory"
SHARED = "delayedDeliverySharedIndexEnabled"
BROKERS = {
    "defaults": {},
    "shared, memory": {TRACKER: FACTORY.format("InMemory"), SHARED: "true"},
    "shared, buckets": {TRACKER: FACTORY.format("Bucket"), SHARED: "true"},
    "own, memory": {TRACKER: FACTORY.format("InMemory"), SHARED: "false"},
    "own, buckets": {TRACKER: FACTORY.format("Bucket"), SHARED: "false"},
    "not strict": {"isDelayedDeliveryDeliverAtTimeStrict": "false"},
}
PUBLISHED_PER_MS = 2
"""What a slow machine publishes at least: the first message is due when all are published."""
RECEIVE_MS = 60_000


def now_ms() -> float:
    return time.time_ns() / 1e6


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def client_of(service_url: str) -> pulsar.Client:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    return pulsar.Client(service_url, logger=logger, stats_interval_in_seconds=0)


def consume(service_url: str, topic: str, messages: int) -> None:
    """In a process of its own: says that it is there, then how late each message was, as float64."""
    client = client_of(service_url)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    print("subscribed", flush=True)
    late_ms = np.empty(messages)
    for place in range(messages):
        message = consumer.receive(RECEIVE_MS)
        late_ms[place] = now_ms() - int(message.data())
        consumer.acknowledge(message)
    client.close()
    sys.stdout.buffer.write(late_ms.tobytes())


def lateness_ms(
    service_url: str, options: argparse.Namespace, process: BrokerProcess | None = None
) -> tuple[np.ndarray, float]:
    """Of each message, and the broker's CPU time meanwhile (0 if it is not ours)."""
    topic = f"persistent://public/default/lateness-{time.time_ns()}"
    command = [sys.executable, __file__, "--consume", topic, "--service-url", service_url]
    child = subprocess.Popen([*command, "--messages", str(options.messages)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    if process is not None and options.precision:
        geminga = [sys.executable, "-m", "geminga", "delayed", "precision", topic, "-s", "s"]
        web = ["--url", process.endpoints.web_url]
        subprocess.run([*geminga, "--set", options.precision, *web], check=True, cwd=ROOT)
    client = client_of(service_url)
    producer = client.create_producer(topic, block_if_queue_full=True)
    first_ms = int(now_ms()) + options.lead_ms + options.messages // PUBLISHED_PER_MS
    due_ms = [first_ms + int(number * options.every_ms) for number in range(options.messages)]
    random.Random(1).shuffle(due_ms)
    for at_ms in due_ms:
        producer.send_async(b"%d" % at_ms, lambda *_: None, deliver_at=at_ms)
    producer.flush()
    assert now_ms() < first_ms, "publishing took longer than until the first was due"
    client.close()
    time.sleep(max(first_ms - 500 - now_ms(), 0) / 1000)
    before_s = cpu_s(process.pid) if process is not None else 0.0
    found, _ = child.communicate()
    used_s = cpu_s(process.pid) - before_s if process is not None else 0.0
    return np.frombuffer(found), used_s


@contextmanager
def broker(name: str) -> Iterator[BrokerProcess]:
    with (
        tempfile.TemporaryDirectory(prefix="lateness-") as directory,
        BrokerProcess(Path(directory) / "data", settings=BROKERS[name]) as process,
    ):
        yield process


def print_row(name: str, late_ms: np.ndarray, used_s: float) -> None:
    figures = np.percentile(late_ms, [0, 50, 99, 99.9, 100])
    early = int(np.count_nonzero(late_ms < 0))
    print(
        f"{name:17}{early:9}" + "".join(f"{figure:9.1f}" for figure in figures) + f"{used_s:9.2f}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("brokers", nargs="*", choices=[*BROKERS, []], help=", ".join(BROKERS))
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--every-ms", type=float, default=20)
    parser.add_argument("--lead-ms", type=int, default=2000, help="from publishing to the first that is due")
    parser.add_argument("--precision", help="that the subscription asks for, such as 1s")
    parser.add_argument("--service-url", help="measure this broker instead")
    parser.add_argument("--consume", metavar="TOPIC", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.consume:
        consume(options.service_url, options.consume, options.messages)
        return
    columns = ("early", "least", "median", "99 %", "99.9 %", "most", "CPU s")
    print(f"{'broker':17}" + "".join(f"{column:>9}" for column in columns))
    if options.service_url:
        print_row("?", *lateness_ms(options.service_url, options))
        return
    for name in options.brokers or BROKERS:
        with broker(name) as process:
            print_row(name, *lateness_ms(process.endpoints.service_url, options, process))


if __name__ == "__main__":
    main()
