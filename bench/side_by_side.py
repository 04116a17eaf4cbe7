"""This broker and another one, measured in turns with the same client on the same machine.

    python bench/side_by_side.py --other 'path/to/other-broker --data {data_dir}'
    python bench/side_by_side.py --other '...' --rounds 5 --json result.json
    python bench/side_by_side.py --only ours                       just this broker's figures

Each round starts one broker with an empty data directory, waits until it is ready, warms it up, takes all
rows, ends it, and does the same with the other one: A B A B, so that both meet the same weather. The table
has the medians, and how many times better ours is: the median of the rounds' own ratios, and their range.
Better is more of a rate and less of anything else, so above 1 is always in favour of ours. The default takes
about five minutes.

In a command {data_dir}, {port} and {admin_port} are filled in. Where the system allows it, every run gets a
network namespace of its own, so the ports are always free. A broker in a container is not a child of its
command; then use `--same-network`, publish its ports, and let `--other-pid` be a command that prints the pid
of the broker, for example:

    --same-network --other 'docker run --rm --name other -p 6650:6650 -p 8080:8080 IMAGE' \\
        --other-pid 'docker inspect -f {{.State.Pid}} other'

Rows: all messages are persistent and of 1 KiB, one topic, one producer, one consumer, receipts only after the
broker's own rule of durability. "unbatched" is one entry for each message, "batched" as the client batches by
default. "backlog" is consumed after it was published, "live" while it is being published. Latencies are at a
low, fixed rate. Delayed messages come at 2,000 a second, under the broker's default tick. CPU is what the
broker's processes used, all threads, for each message; "client CPU" tells whether the client was the narrow
place.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import load_client
from bench.broker_process import (
    OURS,
    BrokerFailed,
    BrokerProcess,
    Ports,
    die_with_parent,
    enter_own_network,
)

MIB = 1024 * 1024
WARM_UP_MESSAGES = 20_000
DELAYED_RATE = 2000
DELAYED_SECONDS = 3
RUN_SECONDS_MAX = 240


@dataclass(frozen=True)
class Row:
    key: str
    label: str
    unit: str
    more_is_better: bool = False
    digits: int = 1


ROWS = [
    Row("publish_unbatched", "publish, unbatched", "msg/s", True, 0),
    Row("publish_batched", "publish, batched", "msg/s", True, 0),
    Row("consume_unbatched", "consume backlog, unbatched", "msg/s", True, 0),
    Row("consume_batched", "consume backlog, batched", "msg/s", True, 0),
    Row("live_unbatched", "publish and consume, unbatched", "msg/s", True, 0),
    Row("publish_p50_ms", "publish latency p50", "ms", digits=2),
    Row("publish_p99_ms", "publish latency p99", "ms", digits=2),
    Row("end_to_end_p50_ms", "end to end p50", "ms", digits=2),
    Row("end_to_end_p99_ms", "end to end p99", "ms", digits=2),
    Row("delayed_off_p50_ms", "delayed 2 s: off its time p50", "ms", digits=1),
    Row("delayed_early_p99_ms", "delayed 2 s: early p99", "ms", digits=1),
    Row("delayed_late_p99_ms", "delayed 2 s: late p99", "ms", digits=1),
    Row("publish_unbatched_cpu_us", "broker CPU, publish unbatched", "us/msg"),
    Row("publish_batched_cpu_us", "broker CPU, publish batched", "us/msg"),
    Row("consume_unbatched_cpu_us", "broker CPU, consume unbatched", "us/msg"),
    Row("consume_batched_cpu_us", "broker CPU, consume batched", "us/msg"),
    Row("ready_s", "start to ready", "s", digits=2),
    Row("start_mib", "resident memory at start", "MiB", digits=0),
    Row("end_mib", "resident memory after the load", "MiB", digits=0),
]


def measure_rows(client: load_client.LoadClient, options: argparse.Namespace) -> dict[str, float]:
    """All rows that need a running, warm broker."""
    rows: dict[str, float] = {}
    topic = "persistent://public/default/bench-"
    for name, batched, count in (
        ("unbatched", False, options.messages),
        ("batched", True, options.batched_messages),
    ):
        client.run("subscribe", topic + name)
        published = client.run("publish", topic + name, count=count, batched=batched)
        consumed = client.run("drain", topic + name, count=count)
        rows[f"publish_{name}"] = published.per_second
        rows[f"publish_{name}_cpu_us"] = published.broker_cpu_us
        rows[f"consume_{name}"] = consumed.per_second
        rows[f"consume_{name}_cpu_us"] = consumed.broker_cpu_us
        rows[f"client_publish_{name}_cpu_us"] = published.client_cpu_us
        rows[f"client_consume_{name}_cpu_us"] = consumed.client_cpu_us
        rows[f"duplicates_{name}"] = consumed.fields["duplicates"]
    both = client.run("live", topic + "live", count=options.messages // 2)
    rows["live_unbatched"] = both.per_second
    rows["live_unbatched_cpu_us"] = both.broker_cpu_us
    slow_count = options.latency_rate * options.latency_seconds
    slow = client.run("latency", topic + "latency", count=slow_count, rate=options.latency_rate)
    rows.update({key: value for key, value in slow.fields.items() if key.endswith("_ms")})
    delayed = client.run(
        "delayed", topic + "delayed", count=DELAYED_RATE * DELAYED_SECONDS, rate=DELAYED_RATE
    )
    rows.update({key: value for key, value in delayed.fields.items() if key.endswith("_ms")})
    return rows


def warm_up(client: load_client.LoadClient, seconds: float) -> None:
    """Work of the kinds that are measured, on topics of its own; compilers at run time need some seconds of
    it.
    """
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        topic = f"persistent://public/default/warm-up-{number}"
        client.run("subscribe", topic)
        client.run("publish", topic, count=WARM_UP_MESSAGES, batched=number % 2 == 1)
        client.run("drain", topic, count=WARM_UP_MESSAGES)
        number += 1
    client.run("latency", "persistent://public/default/warm-up-latency", count=500, rate=500)


def measure_once(options: argparse.Namespace, command: str, pid_command: str) -> dict[str, float]:
    """One run of one broker, from an empty data directory to its end."""
    ports = Ports(options.port, options.admin_port)
    with BrokerProcess(command, ports, options.work_dir, pid_command) as broker:
        client = load_client.LoadClient(json.loads(options.client_command), broker, ports, options.type)
        rows = {"ready_s": broker.ready_seconds, "ports_s": broker.ports_seconds}
        rows["start_mib"] = broker.resident_bytes() / MIB
        warm_up(client, options.warm_up_seconds)
        rows.update(measure_rows(client, options))
        rows["load_average"] = os.getloadavg()[0]
        rows["end_mib"] = broker.resident_bytes() / MIB
    return rows


def inner_main(options: argparse.Namespace) -> None:
    """The child of a run: sees only its own network if there is one, and writes its rows to the file it was
    given.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    die_with_parent()
    if not options.same_network:
        enter_own_network()
    side = options.inner
    command = options.ours if side == "ours" else options.other
    pid_command = options.ours_pid if side == "ours" else options.other_pid
    try:
        rows = measure_once(options, command, pid_command)
    except (BrokerFailed, load_client.PhaseFailed) as error:
        sys.exit(f"{side}: {error}")
    Path(options.json).write_text(json.dumps(rows))


def run_once(
    options: argparse.Namespace, side: str, directory: str, client_command: list[str]
) -> dict[str, float]:
    result_path = Path(directory) / "rows.json"
    inner = [sys.executable, os.path.abspath(__file__), *sys.argv[1:]]
    inner += ["--inner", side, "--json", str(result_path), "--client-command", json.dumps(client_command)]
    inner += ["--work-dir", directory]
    with subprocess.Popen(inner) as process:
        try:
            process.wait(RUN_SECONDS_MAX)
        finally:
            if process.poll() is None:
                process.terminate()
    if process.returncode != 0:
        sys.exit(process.returncode)
    return dict(json.loads(result_path.read_text()))


def times_better(row: Row, ours: float, other: float) -> float | None:
    """None where a figure is nothing, such as a lateness of 0 ms."""
    if ours <= 0 or other <= 0:
        return None
    return ours / other if row.more_is_better else other / ours


def print_table(results: dict[str, list[dict[str, float]]]) -> None:
    pairs = list(zip(results["ours"], results["other"], strict=False))
    print(f"\n{'':<34}{'unit':<8}{'ours':>10}{'other':>10}   times better (range)")
    for row in ROWS:
        line = f"{row.label:<34}{row.unit:<8}"
        for side in ("ours", "other"):
            values = [rows[row.key] for rows in results[side]]
            line += f"{statistics.median(values):>10,.{row.digits}f}" if values else f"{'-':>10}"
        compared = [times_better(row, ours[row.key], other[row.key]) for ours, other in pairs]
        ratios = sorted(ratio for ratio in compared if ratio is not None)
        if ratios:
            line += f"   {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        print(line)
    for side, runs in results.items():
        if runs:
            figures = []
            for phase in ("publish_unbatched", "publish_batched", "consume_unbatched", "consume_batched"):
                cpu_us = statistics.median(rows[f"client_{phase}_cpu_us"] for rows in runs)
                figures.append(f"{cpu_us:.1f} {phase.replace('_', ' ')}")
            print(f"client CPU against {side}, us/msg: {', '.join(figures)}")


def parse_options() -> argparse.Namespace:
    description, _, usage = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", default="", help="command that starts the other broker in the foreground")
    parser.add_argument(
        "--ours", default=OURS, help="command that starts this broker (default: this checkout)"
    )
    parser.add_argument("--other-pid", default="", help="command that prints the other broker's pid")
    parser.add_argument("--ours-pid", default="", help="command that prints this broker's pid")
    parser.add_argument("--only", choices=("ours", "other"), help="measure just one of them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=100_000, help="of each unbatched row")
    parser.add_argument("--batched-messages", type=int, default=300_000)
    parser.add_argument("--latency-rate", type=int, default=500, help="messages per second")
    parser.add_argument("--latency-seconds", type=int, default=5)
    parser.add_argument("--warm-up-seconds", type=float, default=8)
    parser.add_argument("--type", choices=("exclusive", "shared", "failover", "key_shared"), default="shared")
    parser.add_argument("--client", choices=("auto", "go", "python"), default="auto")
    parser.add_argument("--port", type=int, default=Ports.broker)
    parser.add_argument("--admin-port", type=int, default=Ports.admin)
    parser.add_argument("--same-network", action="store_true", help="no network namespace for each run")
    parser.add_argument("--work-dir", help="where the data directories go: the disk that is measured")
    parser.add_argument("--json", help="write all rounds to this file")
    for internal in ("--inner", "--client-command"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.other and options.only != "ours":
        parser.error("--other COMMAND is needed, or --only ours")
    return options


def main() -> None:
    options = parse_options()
    if options.inner:
        inner_main(options)
        return
    sides = [options.only] if options.only else ["ours", "other"]
    results: dict[str, list[dict[str, float]]] = {"ours": [], "other": []}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.work_dir) as directory:
        client_command, client_line = load_client.build(Path(directory), options.client)
        print(client_line)
        for number in range(options.rounds):
            for side in sides:
                started = time.monotonic()
                rows = run_once(options, side, directory, client_command)
                results[side].append(rows)
                print(
                    f"round {number + 1} {side:<6} {time.monotonic() - started:5.1f} s: publish"
                    f" {rows['publish_unbatched']:,.0f}, consume {rows['consume_unbatched']:,.0f} msg/s,"
                    f" publish p50 {rows['publish_p50_ms']:.2f} ms (load {rows['load_average']:.1f})",
                    flush=True,
                )
    print_table(results)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
