"""CPU and system calls for each message of a publisher that keeps a pace, and of one message in flight.

    python bench/paced.py                                    this checkout alone
    python bench/paced.py --before ../before                 and another checkout, in turns
    python bench/paced.py --other 'path/to/other-broker {data_dir}'     any broker, on 6650 and 8080
    python bench/paced.py --phases delayed --messages 100000 --rate 3333 --delay-max-ms 10000
    python bench/paced.py --syscalls                         by strace, in a run of their own

All brokers run all the time, and get a burst of each kind one after the other: all meet the same weather, and
the ratio of each turn is worth something on a busy machine. `delayed`: `--rate` messages a second, each due
after `--delay-ms`, or at random from there up to `--delay-max-ms`, consumed as they come; `delayed_late`
is at p50, p99 and p99.9. `roundtrip`: a message is published, received and acknowledged before the next one
is published. CPU is that of all threads of a broker, system calls of ours alone. Linux; the client is the Go
one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import load_client
from bench.broker_process import CHECKOUT, Ports, answers, enter_own_network, has_namespace
from bench.two_checkouts import CPUCLOCK_SCHED

PHASES = ("delayed", "roundtrip")
TOPIC = "persistent://public/default/paced-"
READY_S = 60
SYSCALLS = (
    "futex",
    "epoll_wait",
    "poll",
    "recvfrom",
    "sendto",
    "pwritev",
    "pwritev2",
    "fdatasync",
    "clock_nanosleep",
)


class Broker(NamedTuple):
    name: str
    process: subprocess.Popen[str]
    url: str


def start_ours(name: str, checkout: Path, data_dir: Path, number: int) -> Broker:
    command = [sys.executable, "-P", "-m", "geminga", "standalone", "--data-dir", str(data_dir)]
    command += ["--port", str(7000 + number), "--web-port", str(8000 + number)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    return Broker(name, process, json.loads(process.stdout.readline())["binary"])


def start_other(command: str, data_dir: Path) -> Broker:
    ports = Ports()
    process = subprocess.Popen(
        shlex.split(command.format(data_dir=data_dir)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    until_s = time.monotonic() + READY_S
    while not (answers(ports.broker) and answers(ports.admin) and has_namespace(ports.admin)):
        if process.poll() is not None or time.monotonic() > until_s:
            process.kill()
            sys.exit("the other broker is not ready")
        time.sleep(0.1)
    return Broker("other", process, ports.url)


def cpu_s(pid: int) -> float:
    """Of a whole process, by its own clock: threads that have ended count too."""
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def burst(client: list[str], broker: Broker, phase: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the client reports of its phase, and `cpu_us` and `syscalls` for each message."""
    count = options.messages if phase == "delayed" else options.trips
    words = [*client, "-url", broker.url, "-type", "shared", "-phase", phase, "-topic", TOPIC + phase]
    words += ["-count", str(count), "-rate", str(options.rate), "-delay", f"{options.delay_ms}ms"]
    words += ["-delay-max", f"{options.delay_max_ms}ms"]
    words += ["-timeout", "240s"]
    used: dict[str, float] = {}
    fields: dict[str, Any] = {}
    tracer: subprocess.Popen[str] | None = None
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            fields = json.loads(line)
            used[fields["event"]] = cpu_s(broker.process.pid)
            if options.syscalls and fields["event"] == "begin":
                command = ["strace", "-c", "-f", "-p", str(broker.process.pid)]
                tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    if process.returncode:
        sys.exit(f"the client failed at {phase}")
    if tracer is not None:
        tracer.terminate()
        fields["syscalls"] = {name: calls / count for name, calls in _counted(tracer.communicate()[1])}
    fields["cpu_us"] = (used["end"] - used["begin"]) / count * 1e6
    return fields


def _counted(table: str) -> list[tuple[str, int]]:
    """(system call, calls) from what `strace -c` prints."""
    rows = [line.split() for line in table.splitlines()]
    return [
        (row[-1], int(row[3])) for row in rows if len(row) >= 5 and row[3].isdigit() and row[-1] != "total"
    ]


def measure(client: list[str], brokers: list[Broker], options: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for turn in range(-options.warm_up_turns, options.turns):
        for phase in options.phases:
            for broker in brokers if turn % 2 else reversed(brokers):
                fields = burst(client, broker, phase, options)
                row = {"turn": turn, "phase": phase, "broker": broker.name, **fields}
                rows.append(row)
                print(
                    f"{turn:3} {phase:9} {broker.name:7} {row['cpu_us']:7.1f} us, publish p50"
                    f" {row['publish_p50_ms']:.2f} p99 {row['publish_p99_ms']:.2f} ms"
                    + "".join(
                        f", {key} {row[key + '_p50_ms']:.2f} / {row[key + '_p99_ms']:.2f}"
                        for key in ("end_to_end", "delayed_early", "delayed_late")
                        if key + "_p50_ms" in row
                    )
                    + (f" / {row['delayed_late_p999_ms']:.2f}" if "delayed_late_p999_ms" in row else ""),
                    flush=True,
                )
                if "syscalls" in row:
                    most = sorted(row["syscalls"].items(), key=lambda item: -item[1])[:9]
                    print("     " + ", ".join(f"{name} {calls:.2f}" for name, calls in most))
    return [row for row in rows if row["turn"] >= 0]


def print_table(rows: list[dict[str, Any]], names: list[str], phases: list[str]) -> None:
    print(f"\n{'us/msg':12}" + "".join(f"{name:>10}" for name in names) + "   ours/it, median of the turns")
    for phase in phases:
        used = {
            name: [row["cpu_us"] for row in rows if row["phase"] == phase and row["broker"] == name]
            for name in names
        }
        line = f"{phase:12}" + "".join(f"{statistics.median(used[name]):10.1f}" for name in names) + "   "
        for name in names[1:]:
            ratios = [mine / its for mine, its in zip(used["ours"], used[name], strict=True)]
            line += f"{name} {statistics.median(ratios):.3f} ({min(ratios):.2f}-{max(ratios):.2f})  "
        print(line)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--other", default="", help="command of another broker, in the foreground")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--warm-up-turns", type=int, default=1)
    parser.add_argument("--messages", type=int, default=10_000, help="of each burst of delayed ones")
    parser.add_argument("--trips", type=int, default=2000, help="of each burst")
    parser.add_argument("--rate", type=int, default=5000, help="delayed messages per second")
    parser.add_argument("--delay-ms", type=int, default=2000)
    parser.add_argument("--delay-max-ms", type=int, default=0, help="random delays, up to this")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--syscalls", action="store_true", help="count them; CPU and times mean nothing then")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    directory = Path(tempfile.mkdtemp(prefix="paced-"))
    brokers: list[Broker] = []
    try:
        client, line = load_client.build(directory, "go")
        print(line)
        if not enter_own_network():
            sys.exit("needs a network namespace of its own")
        brokers.append(start_ours("ours", CHECKOUT, directory / "ours", 0))
        if options.before:
            brokers.append(start_ours("before", options.before.resolve(), directory / "before", 1))
        if options.other:
            brokers.append(start_other(options.other, directory / "other"))
        rows = measure(client, brokers, options)
    finally:
        for broker in brokers:
            broker.process.kill()
            broker.process.wait()
        shutil.rmtree(directory, ignore_errors=True)
    print_table(rows, [broker.name for broker in brokers], options.phases)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
