"""With the settings as they come: how many delayed messages are in buckets when a topic falls silent.

    python bench/delayed/defaults.py                           120,000 within a minute, and as fast as they go
    python bench/delayed/defaults.py --seconds 20 --messages 200000
    python bench/delayed/defaults.py --set managedLedgerMaxEntriesPerLedger=1000000

One producer of the official client sends messages that are due in hours, one Shared subscription waits for
them. When the last is durable nothing more is published, and the index is looked at ten times a second for
`--wait-s`: in how many buckets are how many, and how large are these. Only buckets of at most `--largest`
count. Prints whether `--at-least` are in them by then; exits with 1 if not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.delayed.bucket_watch import CheckoutBroker, Verdicts, Watch, parse_settings
from tests.e2e.broker_process import ROOT

TOPIC = "persistent://public/default/silent"
SUBSCRIPTION = "s"
HOUR_MS = 3_600_000


def publish(client: pulsar.Client, messages: int, seconds: float) -> float:
    """Evenly within so many seconds, 0: as fast as they go. How long it took until all were durable."""
    producer = client.create_producer(
        TOPIC, block_if_queue_full=True, max_pending_messages=5000, send_timeout_millis=0
    )
    began_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
    for number in range(messages):
        if seconds and number % 20 == 0:
            time.sleep(max(0.0, began_s + seconds * number / messages - time.monotonic()))
        due_ms = now_ms + HOUR_MS + number * 7919 % (24 * HOUR_MS)
        producer.send_async(b"x" * 100, lambda *_: None, deliver_at=due_ms)
    producer.flush()
    return time.monotonic() - began_s


def measure(options: argparse.Namespace, seconds: float, verdicts: Verdicts) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="defaults-", dir=options.dir) as directory,
        CheckoutBroker(
            options.checkout, Path(directory) / "data", settings=parse_settings(options.set)
        ) as broker,
    ):
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        client = pulsar.Client(broker.endpoints.service_url, logger=quiet, stats_interval_in_seconds=0)
        client.subscribe(TOPIC, SUBSCRIPTION, pulsar.ConsumerType.Shared)
        took_s = publish(client, options.messages, seconds)
        print(f"{options.messages:,} messages published in {took_s:.1f} s, and silence")
        watch = Watch(broker, TOPIC, SUBSCRIPTION)
        looks = watch.until(lambda look: look.at_s >= options.wait_s, timeout_s=options.wait_s, every_s=0.1)
        counted = [sum(size for size in look.sizes if size <= options.largest) for look in looks]
        enough_s = [
            look.at_s for look, sealed in zip(looks, counted, strict=True) if sealed >= options.at_least
        ]
        sizes = looks[-1].sizes
        verdicts.line(
            f"in buckets of at most {options.largest:,} after {options.wait_s:g} s",
            f"{counted[-1]:,}",
            met=counted[-1] >= options.at_least,
        )
        verdicts.line("... after how many seconds enough were", f"{enough_s[0]:.1f}" if enough_s else "never")
        verdicts.line("sizes of all buckets", ", ".join(f"{size:,}" for size in sizes) or "none")
        verdicts.line("peak memory of the broker, MiB", f"{looks[-1].peak_mib:.0f}")
        client.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=120_000)
    parser.add_argument("--seconds", type=float, nargs="+", default=[60.0, 0.0], help="0: as fast as they go")
    parser.add_argument("--wait-s", type=float, default=5.0)
    parser.add_argument("--largest", type=int, default=100_000)
    parser.add_argument("--at-least", type=int, default=100_000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose broker is measured")
    parser.add_argument("--dir", help="where the broker's data go for the time of the run")
    options = parser.parse_args()
    verdicts = Verdicts()
    for seconds in options.seconds:
        measure(options, seconds, verdicts)
    return 0 if verdicts.all_met else 1


if __name__ == "__main__":
    sys.exit(main())
