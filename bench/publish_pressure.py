"""Many producers of large messages against a slow disk: memory, loss, and who is left behind.

    python bench/publish_pressure.py                          100 producers of 5 MiB, 1 s for each sync, 300 s
    python bench/publish_pressure.py --sync-s 0.02 --seconds 60

The broker is this checkout's, with the default budget; each of its syncs takes so much longer. Every producer
has a connection of its own and always two messages under way. A second for each sync lets about one message a
second through, so that a round of all producers takes two minutes: a shorter run says nothing of fairness. At
the end the producers stop, the broker is killed, and another one, with a disk as it is, says how many
messages it has.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.broker_process import OURS, BrokerProcess, Ports, enter_own_network, resident_bytes
from bench.figures import add_options, measured, show
from geminga.cli.client.connection import Connection
from geminga.cli.client.errors import ClientError
from geminga.cli.client.producer import Producer
from geminga.cli.main import main as geminga_main
from geminga.storage import real_file

MIB = 1024 * 1024
WATCH_S = 0.05


def slow(call: Callable[..., Any], sync_s: float) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        time.sleep(sync_s)
        return call(*arguments)

    return called


def run_slow_broker(sync_s: float, arguments: list[str]) -> None:
    """This process becomes a broker whose syncs take longer."""
    for name in ("_sync", "_write_synced"):
        setattr(real_file, name, slow(getattr(real_file, name), sync_s))
    sys.exit(geminga_main(arguments))


class Outcome(NamedTuple):
    receipts: list[int]
    """Of each producer."""
    waited_s: list[float]
    """Until each came."""
    failures: int
    largest_bytes: int
    """The most memory of the broker that was seen."""


async def publish(ports: Ports, options: argparse.Namespace, pid: int) -> Outcome:
    receipts = [0] * options.producers
    waited: list[float] = []
    failures = 0
    largest = 0
    body = os.urandom(options.bytes)

    async def produce(number: int) -> None:
        nonlocal failures
        try:
            connection = await Connection.open(ports.url)
            async with trio.open_nursery() as nursery:
                await nursery.start(connection.run)
                producer = await Producer.open(connection, f"persistent://public/default/p-{number}", 2)
                while True:
                    since_s = trio.current_time()

                    def count(_: tuple[int, int], since_s: float = since_s) -> None:
                        receipts[number] += 1
                        waited.append(trio.current_time() - since_s)

                    await producer.send(body, on_receipt=count)
        except* ClientError as error:
            failures += 1
            print(error.exceptions[0], file=sys.stderr)

    async def watch() -> None:
        nonlocal largest
        while True:
            largest = max(largest, resident_bytes(pid))
            await trio.sleep(WATCH_S)

    with trio.move_on_after(options.seconds):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            for number in range(options.producers):
                nursery.start_soon(produce, number)
    return Outcome(receipts, waited, failures, largest)


def stored(ports: Ports, producers: int) -> list[int]:
    """Entries of each topic."""
    found = []
    for number in range(producers):
        url = f"http://localhost:{ports.admin}/admin/v2/persistent/public/default/p-{number}/internalStats"
        with urllib.request.urlopen(url) as answer:
            found.append(int(json.load(answer)["numberOfEntries"]))
    return found


def measure(options: argparse.Namespace, directory: str) -> dict[str, float]:
    ports = Ports()
    arguments = f"standalone --data-dir {shlex.quote(directory)}"
    slow = f"{shlex.quote(sys.executable)} {__file__} --sync-s {options.sync_s} --broker {arguments}"
    with BrokerProcess(slow, ports) as broker:
        receipts, waited_s, failures, largest_bytes = trio.run(publish, ports, options, broker.pid)
        os.kill(broker.pid, signal.SIGKILL)
    with BrokerProcess(OURS.format(data_dir=shlex.quote(directory)), ports):
        found = stored(ports, options.producers)
    mean = statistics.mean(receipts)
    return {
        "receipts": sum(receipts),
        "stored": sum(found),
        "lost": sum(max(0, told - there) for told, there in zip(receipts, found, strict=True)),
        "failures": failures,
        "slowest_share_of_mean": min(receipts) / mean if mean else 0.0,
        "mib_per_s": sum(receipts) * options.bytes / MIB / options.seconds,
        "longest_wait_s": max(waited_s, default=0.0),
        "resident_mib": largest_bytes / MIB,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--producers", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=5 * MIB - 1024)
    parser.add_argument("--sync-s", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=300)
    add_options(parser)
    parser.add_argument("--broker", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.broker:
        run_slow_broker(options.sync_s, options.broker)
    if not enter_own_network():
        sys.exit("needs a network namespace of its own")
    show(measured("publish-pressure", options, lambda directory: measure(options, directory)))


if __name__ == "__main__":
    main()
