"""A data directory of another commit, with one ledger of very many delayed messages: made by its own broker,
opened by this one.

    git worktree add ../before 0ca272a
    python bench/delayed/old_ledger.py make ../before DIR               2,000,000 in one ledger, no bucket
    python bench/delayed/old_ledger.py make ../before DIR --sealed      ... and one bucket of all of them
    python bench/delayed/old_ledger.py open DIR                         on a copy: DIR stays as it is
    python bench/delayed/old_ledger.py open DIR --checkout ../before

`make` publishes with the official client, as fast as it goes, messages that are due in a day and later; with
`--sealed` the broker is then restarted, so that the topic has a new ledger, and a few messages more let it
seal what is in the old one. It ends with a clean stop, or with `kill -9` (`--ending killed`). Its settings
are written beside the data and used by `open`, but for how many entries a ledger has.

`open` starts a broker on a copy, one Shared subscription waits, and once nothing moves any more it prints the
peak of memory and the buckets there are. It exits with 1 if messages are missing, if a bucket is larger than
`--largest`, or memory peaked above `--peak-mib`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.delayed.bucket_watch import CheckoutBroker, Settled, Verdicts, Watch, named_buckets, parse_settings
from tests.e2e.broker_process import ROOT

TOPIC = "persistent://public/default/one-ledger"
SUBSCRIPTION = "s"
SETTINGS = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed."
    "BucketDelayedDeliveryTrackerFactory",
    "isDelayedDeliveryDeliverAtTimeStrict": "true",
}
LARGE_LEDGERS = {"managedLedgerMaxEntriesPerLedger": "100000000"}
DESCRIPTION = "made.json"
DAY_MS = 86_400_000
MORE_MESSAGES = 1000
SETTLE_S = 10.0


def connect(service_url: str) -> pulsar.Client:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    return pulsar.Client(service_url, logger=quiet, stats_interval_in_seconds=0)


def publish(client: pulsar.Client, messages: int) -> None:
    """All durable on return."""
    producer = client.create_producer(TOPIC, block_if_queue_full=True, max_pending_messages=5000)
    first_ms = time.time_ns() // 1_000_000 + DAY_MS
    for number in range(messages):
        due_ms = first_ms + number * 7919 % DAY_MS
        producer.send_async(b"%d" % due_ms, lambda *_: None, deliver_at=due_ms)
    producer.flush()
    producer.close()


def fill(broker: CheckoutBroker, messages: int, sealed: bool) -> int:
    """How many messages there are in the end."""
    client = connect(broker.endpoints.service_url)
    client.subscribe(TOPIC, SUBSCRIPTION, pulsar.ConsumerType.Shared)
    publish(client, messages)
    watch = Watch(broker, TOPIC, SUBSCRIPTION)
    watch.until(Settled(1.0, messages), timeout_s=60)
    if sealed:
        code = broker.stop()
        assert code == 0, f"the broker ended with {code}"
        broker.start()
        # All of it is read again before the new ledger has a message.
        watch.until(Settled(1.0, messages), timeout_s=300)
        publish(client, MORE_MESSAGES)
        messages += MORE_MESSAGES
        watch.until(lambda look: bool(look.buckets), timeout_s=120)
    client.close()
    return messages


def make(options: argparse.Namespace) -> int:
    settings = SETTINGS | parse_settings(options.set)
    directory: Path = options.directory
    directory.mkdir(parents=True)
    broker = CheckoutBroker(options.checkout, directory / "data", settings=settings | LARGE_LEDGERS)
    broker.start()
    try:
        messages = fill(broker, options.messages, options.sealed)
        code = broker.kill() if options.ending == "killed" else broker.stop()
    except BaseException:
        broker.kill()
        raise
    print(f"the broker ended with {code}")
    named = named_buckets(directory / "data", TOPIC)
    about = {"messages": messages, "settings": settings, "buckets": named}
    (directory / DESCRIPTION).write_text(json.dumps(about, indent=1))
    print(f"{messages:,} messages, buckets: {named or 'none'}")
    return 0


def open_copy(options: argparse.Namespace) -> int:
    about = json.loads((options.directory / DESCRIPTION).read_text())
    settings = about["settings"] | parse_settings(options.set)
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory(prefix="old-ledger-", dir=options.dir) as temporary:
        data_dir = Path(temporary) / "data"
        shutil.copytree(options.directory / "data", data_dir)
        with CheckoutBroker(options.checkout, data_dir, settings=settings) as broker:
            watch = Watch(broker, TOPIC, SUBSCRIPTION)
            client = connect(broker.endpoints.service_url)
            client.subscribe(TOPIC, SUBSCRIPTION, pulsar.ConsumerType.Shared)
            looks = watch.until(Settled(SETTLE_S, about["messages"]), timeout_s=options.timeout_s)
            client.close()
        last = looks[-1]
    sizes = last.sizes
    line = verdicts.line
    line("messages that wait", f"{last.waiting:,}", met=last.waiting == about["messages"])
    line("buckets", f"{len(sizes)}, of {sizes[0]:,} to {sizes[-1]:,}" if sizes else "0", met=bool(sizes))
    line(
        "... the largest", f"{sizes[-1] if sizes else 0:,}", met=bool(sizes) and sizes[-1] <= options.largest
    )
    line("messages in no bucket", f"{last.waiting - last.sealed:,}")
    line("seconds until nothing moved any more", f"{last.at_s - SETTLE_S:.1f}")
    peak_mib = max(look.peak_mib for look in looks)
    line("peak memory, MiB", f"{peak_mib:.0f}", met=peak_mib <= options.peak_mib)
    line("resident at the end, MiB", f"{last.resident_mib:.0f}")
    return 0 if verdicts.all_met else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    roles = parser.add_subparsers(dest="role", required=True)
    making = roles.add_parser("make", help="with the broker of another checkout")
    making.add_argument("checkout", type=Path)
    making.add_argument("directory", type=Path, help="is made")
    making.add_argument("--messages", type=int, default=2_000_000)
    making.add_argument("--sealed", action="store_true", help="as one bucket too")
    making.add_argument("--ending", choices=("stopped", "killed"), default="stopped")
    making.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    making.set_defaults(run=make)
    opening = roles.add_parser("open", help="a copy of it, with this broker")
    opening.add_argument("directory", type=Path)
    opening.add_argument("--checkout", type=Path, default=ROOT, help="whose broker opens it")
    opening.add_argument("--largest", type=int, default=100_000, help="messages of a bucket")
    opening.add_argument("--peak-mib", type=float, default=161.0, help="the usual peak and 60 MiB")
    opening.add_argument("--timeout-s", type=float, default=300.0)
    opening.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    opening.add_argument("--dir", help="where the copy goes for the time of the run")
    opening.set_defaults(run=open_copy)
    options = parser.parse_args()
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
