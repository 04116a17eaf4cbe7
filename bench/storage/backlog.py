"""What a large backlog costs a broker in memory: messages are published while nobody consumes, then consumed.

    python bench/storage/backlog.py                                 1,000,000 messages of 1 KiB, this checkout
    python bench/storage/backlog.py --messages 200000 --command 'other-broker {data_dir}'

The resident memory of the broker is sampled all the time; the largest value of each part is printed. The file
system needs about three times the messages' size.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import load_client
from bench.broker_process import OURS, BrokerFailed, BrokerProcess, Ports, enter_own_network

MIB = 1024 * 1024
SAMPLE_SECONDS = 0.2
PHASE_SECONDS_MAX = 280
TOPIC = "persistent://public/default/bench-backlog"


class MemoryWatch:
    """Samples a broker's memory until the `with` block ends, and keeps the largest value."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.largest_bytes = 0

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self.largest_bytes = max(self.largest_bytes, self._broker.resident_bytes())

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.largest_bytes = max(self.largest_bytes, self._broker.resident_bytes())


def measure(options: argparse.Namespace, client_command: list[str]) -> dict[str, float]:
    with BrokerProcess(options.command, Ports(), options.work_dir) as broker:
        client = load_client.LoadClient(client_command, broker, Ports(), options.type)
        figures = {"start_mib": broker.resident_bytes() / MIB}
        client.run("subscribe", TOPIC)
        for phase in ("publish", "drain"):
            with MemoryWatch(broker) as watch:
                result = client.run(
                    phase,
                    TOPIC,
                    count=options.messages,
                    size=options.bytes,
                    batched=options.batched,
                    timeout_s=PHASE_SECONDS_MAX,
                )
            figures[f"{phase}_per_s"] = result.per_second
            figures[f"{phase}_cpu_us"] = result.broker_cpu_us
            figures[f"{phase}_largest_mib"] = watch.largest_bytes / MIB
            figures[f"{phase}_after_mib"] = broker.resident_bytes() / MIB
            print(
                f"{phase:<8}{result.per_second:>10,.0f} msg/s, {result.broker_cpu_us:.1f} us of CPU each,"
                f" at most {figures[f'{phase}_largest_mib']:.0f} MiB,"
                f" {figures[f'{phase}_after_mib']:.0f} MiB after",
                flush=True,
            )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--command", default=OURS, help="starts the broker in the foreground")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--batched", action="store_true")
    parser.add_argument("--type", choices=("exclusive", "shared", "failover", "key_shared"), default="shared")
    parser.add_argument("--client", choices=("auto", "go", "python"), default="auto")
    parser.add_argument("--work-dir", help="where the data directory goes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.work_dir) as directory:
        client_command, client_line = load_client.build(Path(directory), options.client)
        print(client_line)
        enter_own_network()
        try:
            figures = measure(options, client_command)
        except (BrokerFailed, load_client.PhaseFailed) as error:
            sys.exit(str(error))
    largest_mib = max(figures["publish_largest_mib"], figures["drain_largest_mib"])
    print(f"largest {largest_mib:.0f} MiB, {figures['start_mib']:.0f} MiB at start")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
