"""Damage each file of a killed broker's data directory, in each way, and start a broker on it.

    python -m tests.e2e.files.damaged_directories [--every 5]

What a broker that starts hands out is what was published, in order; what it does not have any more it has
said. One that refuses to start says which file is wrong, without a traceback, and has changed nothing: with
the right file put back it serves everything. Prints a line for each case, then a table; exit code 1 for a
wrong payload, a traceback, a loss that no line of the log tells, or a refusal that could not be undone.
`--every N` takes each N-th case.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pulsar

from tests.e2e.broker_process import BrokerProcess

TOPICS = [f"persistent://public/default/damaged-{number}" for number in range(4)]
MESSAGES = 300
BODY_BYTES = 500
READ_MS = 3000
SETTINGS = {
    "flushInterval": "300",
    "journalMaxSizeMB": "1",
    "logSizeLimit": "1048576",
    "managedLedgerMaxEntriesPerLedger": "100",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
TOLD = re.compile(
    r" (ERROR|CRITICAL) |WARNING .*(damaged|lost|missing|cut short|cannot be read|not there|gone|set aside)"
)


class Case(NamedTuple):
    path: str
    """Relative to the data directory."""
    damage: str


class Outcome(NamedTuple):
    kind: str
    """"all", "fewer", "refused", or what is wrong."""
    text: str


def quiet_client(service_url: str) -> pulsar.Client:
    return pulsar.Client(
        service_url, operation_timeout_seconds=10, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )


def body(topic: int, number: int) -> bytes:
    return (b"%d-%d " % (topic, number)).ljust(BODY_BYTES, b"x")


def make(data_dir: Path) -> None:
    """A directory as `kill -9` leaves it: some in entry logs, the rest in journals, cursors that moved."""
    broker = BrokerProcess(data_dir, settings=SETTINGS)
    broker.start()
    client = quiet_client(broker.endpoints.service_url)
    consumers = [client.subscribe(topic, "s") for topic in TOPICS]
    producers = [client.create_producer(topic, batching_enabled=False) for topic in TOPICS]
    for number in range(MESSAGES):
        for topic, producer in enumerate(producers):
            producer.send(body(topic, number))
    for consumer in consumers:
        consumer.acknowledge_cumulative(consumer.receive(READ_MS))
    broker.kill()
    client.close()


def cases(data_dir: Path) -> Iterator[Case]:
    for place, _, names in sorted(os.walk(data_dir)):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(place, name), data_dir)
            if name != "lock":
                yield from (Case(path, damage) for damage in FILE_DAMAGES)
    for path in ("bookie", "index", "metadata", "bookie/journal", "bookie/entry-logs"):
        yield Case(path, "directory removed")


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        chance = random.Random(path.name)
        data[chance.randrange(min(len(data), 200_000))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


FILE_DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: os.truncate(path, 0),
    "halved": lambda path: os.truncate(path, path.stat().st_size // 2),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flipped": _flip,
    "dangling link": _link,
}


def apply(case: Case, data_dir: Path) -> None:
    path = data_dir / case.path
    if case.damage == "directory removed":
        shutil.rmtree(path)
    else:
        FILE_DAMAGES[case.damage](path)


def restore(case: Case, original: Path, data_dir: Path) -> None:
    path = data_dir / case.path
    if case.damage == "directory removed":
        shutil.copytree(original / case.path, path, symlinks=True)
    else:
        path.unlink(missing_ok=True)
        shutil.copy2(original / case.path, path)


def serve(data_dir: Path) -> Outcome:
    """Start a broker, read all topics, stop it."""
    log = data_dir.with_name("broker.log")
    log.unlink(missing_ok=True)
    broker = BrokerProcess(data_dir, settings=SETTINGS, log_path=log)
    try:
        broker.start()
    except AssertionError:
        text = log.read_text()
        if "Traceback" in text:
            return Outcome("traceback", text[-2000:])
        said = [line for line in text.splitlines() if line.startswith("geminga standalone: ")]
        return Outcome("refused", said[0]) if said else Outcome("said nothing", text[-2000:])
    found, wrong = read(broker.endpoints.service_url)
    code = broker.stop() if broker.is_running() else broker.wait()
    text = log.read_text()
    if wrong:
        return Outcome("wrong payload", wrong)
    if "Traceback" in text:
        return Outcome("traceback", text[-2000:])
    if found == MESSAGES * len(TOPICS):
        return Outcome("all", f"exit code {code}")
    told = [line for line in text.splitlines() if TOLD.search(line)]
    return Outcome(
        "fewer" if told else "fewer, untold", f"{found} messages; {told[0] if told else text[-500:]}"
    )


def read(service_url: str) -> tuple[int, str]:
    """How many messages there are, and what is wrong with one; "" if nothing is."""
    client = quiet_client(service_url)
    found = 0
    try:
        for topic, name in enumerate(TOPICS):
            last = -1
            try:
                reader = client.create_reader(name, pulsar.MessageId.earliest)
                while reader.has_message_available():
                    data = reader.read_next(READ_MS).data()
                    number = int(data.partition(b" ")[0].partition(b"-")[2])
                    if data != body(topic, number) or number <= last:
                        return found, f"{name}: {data[:40]!r} after {last}"
                    last = number
                    found += 1
            except pulsar.PulsarException:
                continue  # what cannot be read is asked of the log
    finally:
        client.close()
    return found, ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, metavar="N")
    every = parser.parse_args().every
    outcomes: Counter[str] = Counter()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        make(root / "original")
        for case in list(cases(root / "original"))[::every]:
            data_dir = root / "data"
            shutil.copytree(root / "original", data_dir, symlinks=True)
            apply(case, data_dir)
            outcome = serve(data_dir)
            if outcome.kind == "refused":
                restore(case, root / "original", data_dir)
                again = serve(data_dir)
                if again.kind != "all":
                    outcome = Outcome("refused for good", f"{outcome.text}; then {again.kind}: {again.text}")
            shutil.rmtree(data_dir)
            outcomes[outcome.kind] += 1
            bad += outcome.kind not in ("all", "fewer", "refused")
            print(f"{case.path:50} {case.damage:18} {outcome.kind:18} {outcome.text[:300]}", flush=True)
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(outcomes.items())))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
