"""How long a broker takes to answer after its start, and what it uses while nobody uses it.

    python bench/startup.py                                         this checkout, 10 starts
    python bench/startup.py --command 'other-broker {data_dir}' --starts 3

Each start has an empty data directory. "ports" is when both ports accept a connection, "ready" when the
default namespace exists as well, "CPU" what the broker used until then. After the last start the broker is
left alone for a while: its memory, and its CPU as a share of one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.broker_process import OURS, BrokerFailed, BrokerProcess, Ports, enter_own_network

MIB = 1024 * 1024
SETTLE_SECONDS = 1


def measure(command: str, starts: int, idle_seconds: float, work_dir: str | None) -> dict[str, float]:
    ports_s, ready_s, ready_cpu_s = [], [], []
    figures: dict[str, float] = {}
    for number in range(starts):
        with BrokerProcess(command, Ports(), work_dir) as broker:
            ports_s.append(broker.ports_seconds)
            ready_s.append(broker.ready_seconds)
            ready_cpu_s.append(broker.cpu_seconds())
            if number == starts - 1:
                time.sleep(SETTLE_SECONDS)
                used_s = broker.cpu_seconds()
                time.sleep(idle_seconds)
                figures["idle_cpu_percent"] = (broker.cpu_seconds() - used_s) / idle_seconds * 100
                figures["idle_mib"] = broker.resident_bytes() / MIB
    figures["ports_median_s"] = statistics.median(ports_s)
    figures["ports_worst_s"] = max(ports_s)
    figures["ready_median_s"] = statistics.median(ready_s)
    figures["ready_worst_s"] = max(ready_s)
    figures["ready_cpu_median_s"] = statistics.median(ready_cpu_s)
    figures["ready_cpu_worst_s"] = max(ready_cpu_s)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--command", default=OURS, help="starts the broker in the foreground")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--idle-seconds", type=float, default=20)
    parser.add_argument("--work-dir", help="where the data directories go")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    enter_own_network()
    try:
        figures = measure(options.command, options.starts, options.idle_seconds, options.work_dir)
    except BrokerFailed as error:
        sys.exit(str(error))
    for label, key in (("both ports answer", "ports"), ("ready", "ready"), ("CPU until ready", "ready_cpu")):
        median_s, worst_s = figures[f"{key}_median_s"], figures[f"{key}_worst_s"]
        print(f"{label:<20}median {median_s:.3f} s, worst {worst_s:.3f} s")
    print(f"idle memory         {figures['idle_mib']:.1f} MiB")
    print(f"idle CPU            {figures['idle_cpu_percent']:.2f} % of a core")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
