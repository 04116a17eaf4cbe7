"""Which files of the delayed index a delayed message meets, from its append to its acknowledgement.

    python bench/delayed/files.py [--checkout DIR] [--functions]

Runs a broker under a profile, opens the index with messages before the measured ones, and then has 120
messages appended, indexed, sealed, loaded, sent when due, and acknowledged. Prints each file below
`geminga/tracker`, `geminga/broker/delays`, and the dispatcher's module for delays.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType

import pulsar

ROOMS = ("tracker/", "broker/delays/", "broker/dispatch/delaying.py")
MESSAGES = 120
SETTINGS = """
delayedDeliveryTrackerFactoryClassName=org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory
delayedDeliveryMinIndexCountPerBucket=50
delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds=1
isDelayedDeliveryDeliverAtTimeStrict=true
managedLedgerMaxEntriesPerLedger=50
managedLedgerMinLedgerRolloverTimeMinutes=0
"""


def run_traced(out: Path, words: list[str]) -> None:
    """Run the command line under a profile. SIGUSR2 clears it, and SIGUSR1 writes it."""
    from geminga.cli import main

    package = str(Path(main.__file__).resolve().parents[1]) + "/"
    entered: set[tuple[str, str]] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package) and code.co_name != "<module>":
            entered.add((code.co_filename[len(package) :], code.co_qualname))

    def write(*_: object) -> None:
        found = json.dumps(sorted(entered.copy()))
        out.with_suffix(".part").write_text(found)
        out.with_suffix(".part").rename(out)

    signal.signal(signal.SIGUSR2, lambda *_: entered.clear())
    signal.signal(signal.SIGUSR1, write)
    threading.setprofile(profile)
    sys.setprofile(profile)
    sys.argv = ["geminga", *words]
    main.main()


def deliver(client: pulsar.Client, process: subprocess.Popen[str]) -> None:
    """Once to open the index, and once more for the profile."""
    consumer = client.subscribe("files", "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer("files")
    for is_measured in (False, True):
        due_ms = int(time.time() * 1000) + 4000
        for number in range(MESSAGES):
            producer.send_async(b"x", lambda *_: None, deliver_at=due_ms + 10 * number)
        producer.flush()
        for _ in range(MESSAGES):
            consumer.acknowledge(consumer.receive(20_000))
        time.sleep(1)  # what follows an acknowledgement: buckets are let go and deleted
        if not is_measured:
            process.send_signal(signal.SIGUSR2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--functions", action="store_true", help="name the functions of each file too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "broker.conf").write_text(SETTINGS)
        words = ["standalone", "--data-dir", name + "/data", "--port", "0", "--web-port", "0"]
        words += ["--config", str(directory / "broker.conf")]
        process = subprocess.Popen(
            [sys.executable, __file__, "traced", str(directory / "entered"), *words],
            env={**os.environ, "PYTHONPATH": str(options.checkout.resolve())},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["binary"]
        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        deliver(client, process)
        # Before the client leaves: what a broker does at its end is no part of a message's way.
        process.send_signal(signal.SIGUSR1)
        while not (directory / "entered").exists():
            time.sleep(0.1)
        client.close()
        process.terminate()
        process.wait()
        entered = json.loads((directory / "entered").read_text())
    files: dict[str, list[str]] = {}
    for file, function in entered:
        if file.startswith(ROOMS):
            files.setdefault(file, []).append(function)
    for file, functions in files.items():
        print(file, *(functions if options.functions else [len(functions)]))
    print(f"{len(files)} files")


if __name__ == "__main__":
    if sys.argv[1:2] == ["traced"]:
        run_traced(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
