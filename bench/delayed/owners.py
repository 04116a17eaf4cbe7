"""An index of delayed messages for each subscription beside one that a topic's subscriptions share: what they
cost the broker, with the official client. "shared" with "Bucket" is the broker's default.

    python bench/delayed/owners.py --messages 100000 --subscriptions 1 10 100
    python bench/delayed/owners.py --restart --subscriptions 1 3

All delays are random; the first message is due when all are indexed. CPU is the broker's, of all threads:
for each message that was published and indexed, and then for each delivery. Memory is what the broker's
resident memory grew by until all were indexed, and what the index says of itself.

With `--restart` nothing falls due: the broker is killed when all is indexed and, where there are buckets, the
full ledgers are sealed. Told are the time from its next ready line until it knows again what waits, and the
CPU time of that process until then.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.broker_process import cpu_seconds, resident_bytes
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess

TOPIC = "persistent://public/default/owners"
FACTORY = "org.apache.pulsar.broker.delayed.{}DelayedDeliveryTrackerFactory"
SPAN_MS = 5000
HOUR_MS = 3_600_000
WAIT_SECONDS_MAX = 600


def measure_restart(index: str, kind: str, messages: int, subscriptions: int, directory: str) -> None:
    settings = settings_for(index, kind) | {"managedLedgerMinLedgerRolloverTimeMinutes": "0"}
    with BrokerProcess(Path(directory) / "data", settings=settings) as broker:
        web, client = Admin(broker.endpoints.web_url), make_client(broker.endpoints.service_url)
        kept = [
            client.subscribe(TOPIC, f"s{number}", pulsar.ConsumerType.Shared)
            for number in range(subscriptions)
        ]
        producer = client.create_producer(TOPIC, block_if_queue_full=True)
        due_ms = int(time.time() * 1000) + HOUR_MS
        chance = random.Random(1)
        for _ in range(messages):
            producer.send_async(b"x" * 100, lambda *_: None, deliver_at=due_ms + chance.randrange(HOUR_MS))
        producer.flush()
        sealed = messages // 50_000 if kind == "Bucket" else 0
        path = f"/geminga/delayed/{topic_path(TOPIC)}/subscription/s{{}}/buckets"

        def are_sealed() -> bool:
            found = [web.get(path.format(number)).json() for number in range(subscriptions)]
            return all(sum(b["ledgerId"] is not None for b in buckets) >= sealed for buckets in found)

        wait_for(lambda: known(web) == [messages] * subscriptions and are_sealed())
        broker.kill()
        broker.start()
        ready_s, cpu_before_s = time.monotonic(), cpu_seconds(broker.pid)
        wait_for(lambda: known(web) == [messages] * subscriptions)
        took_s, cpu_s = time.monotonic() - ready_s, cpu_seconds(broker.pid) - cpu_before_s
        print(f"{index:8}{kind:10}{subscriptions:14}{messages:10}{took_s:16.2f}{cpu_s:15.2f}", flush=True)
        del kept
        client.close()


def known(web: Admin) -> list[int]:
    """How many delayed messages each subscription knows of."""
    return [int(s["msgDelayed"]) for s in web.stats(TOPIC)["subscriptions"].values()]


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        if time.monotonic() > until_s:
            raise SystemExit("waited too long")
        time.sleep(0.02)


def make_client(url: str) -> pulsar.Client:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    return pulsar.Client(url, logger=quiet, stats_interval_in_seconds=0)


def settings_for(index: str, kind: str) -> dict[str, str]:
    return {
        "delayedDeliverySharedIndexEnabled": str(index == "shared").lower(),
        "delayedDeliveryTrackerFactoryClassName": FACTORY.format(kind),
        "delayedDeliveryFixedDelayDetectionLookahead": "0",
    }


def measure(index: str, kind: str, messages: int, subscriptions: int, directory: str, lead_s: float) -> None:
    with BrokerProcess(Path(directory) / "data", settings=settings_for(index, kind)) as broker:
        _drive(broker, Admin(broker.endpoints.web_url), index, kind, messages, subscriptions, lead_s)


def _drive(
    broker: BrokerProcess, web: Admin, index: str, kind: str, messages: int, subscriptions: int, lead_s: float
) -> None:
    client = make_client(broker.endpoints.service_url)
    received = [0] * subscriptions
    over = threading.Event()

    def listener(number: int) -> Any:
        def got(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            consumer.acknowledge(message)
            received[number] += 1
            if sum(received) == messages * subscriptions:
                over.set()

        return got

    for number in range(subscriptions):
        client.subscribe(TOPIC, f"s{number}", pulsar.ConsumerType.Shared, message_listener=listener(number))
    producer = client.create_producer(TOPIC, block_if_queue_full=True)
    pid = broker.pid
    cpu_s, resident = cpu_seconds(pid), resident_bytes(pid)
    first_due_ms = int((time.time() + lead_s) * 1000)
    chance = random.Random(1)
    for _ in range(messages):
        due_ms = first_due_ms + chance.randrange(SPAN_MS)
        producer.send_async(b"x" * 100, lambda *_: None, deliver_at=due_ms)
    producer.flush()
    while True:
        found = [s["msgDelayed"] for s in web.stats(TOPIC)["subscriptions"].values()]
        if all(count == messages for count in found):
            break
        if time.time() * 1000 > first_due_ms - 1000:
            raise SystemExit(f"not all were indexed before the first was due: a longer --lead-s ({found})")
        time.sleep(0.5)
    published_s, grown = cpu_seconds(pid) - cpu_s, resident_bytes(pid) - resident
    sizes = [s["delayedMessageIndexSizeInBytes"] for s in web.stats(TOPIC)["subscriptions"].values()]
    told = sum(sizes)  # of a shared index each view tells its share
    time.sleep(max(0.0, first_due_ms / 1000 - 1.5 - time.time()))
    cpu_s = cpu_seconds(pid)
    if not over.wait(WAIT_SECONDS_MAX):
        raise SystemExit(f"not all came: {received}")
    delivered_s = cpu_seconds(pid) - cpu_s
    client.close()
    print(
        f"{index:8}{kind:10}{subscriptions:14}{messages:10}{published_s / messages * 1e6:16.1f}"
        f"{delivered_s / messages / subscriptions * 1e6:15.1f}{grown / 2**20:12.1f}{told / 1024:12.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--subscriptions", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--kinds", nargs="+", choices=("InMemory", "Bucket"), default=["InMemory", "Bucket"])
    parser.add_argument(
        "--lead-s", type=float, default=0, help="0: by the number of messages and subscriptions"
    )
    parser.add_argument("--restart", action="store_true", help="measure a restart instead")
    options = parser.parse_args()
    head = f"{'index':8}{'tracker':10}{'subscriptions':>14}{'messages':>10}"
    if options.restart:
        print(f"{head}{'all known s':>16}{'CPU s':>15}")
    else:
        print(f"{head}{'publish us/msg':>16}{'deliver us/msg':>15}{'grown MiB':>12}{'index KiB':>12}")
    for subscriptions in options.subscriptions:
        lead_s = options.lead_s or 5 + options.messages * (3 + subscriptions) / 40_000
        for kind in options.kinds:
            for index in ("own", "shared"):
                with tempfile.TemporaryDirectory() as directory:
                    if options.restart:
                        measure_restart(index, kind, options.messages, subscriptions, directory)
                        continue
                    measure(index, kind, options.messages, subscriptions, directory, lead_s)


if __name__ == "__main__":
    main()
