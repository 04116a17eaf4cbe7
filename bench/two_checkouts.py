"""CPU for each message of this checkout and of another one, in bursts that take turns.

    git worktree add --detach ../before SOME_COMMIT
    python bench/two_checkouts.py ../before
    python bench/two_checkouts.py ../before --batched --messages 100000
    python bench/two_checkouts.py . --python ../venv-3.14/bin/python    # two interpreters, the same code

Both brokers run all the time, and get a burst of messages one after the other, which is consumed again: so
both meet the same weather, and the ratio of each pair is worth something on a busy machine, where a whole run
of one and then of the other is not. CPU is that of all threads of the broker. `--python` names the other
broker's interpreter, which needs the packages of `locks/run.txt`; without it both use this one. Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import load_client
from bench.broker_process import CHECKOUT, enter_own_network

PHASES = ("publish", "drain")
WARM_UP_MESSAGES = 20_000
CPUCLOCK_SCHED = 2
TOPIC = "persistent://public/default/turns"


class Broker(NamedTuple):
    process: subprocess.Popen[str]
    url: str


def start(checkout: Path, data_dir: Path, number: int, python: str = sys.executable) -> Broker:
    command = [python, "-P", "-m", "geminga", "standalone", "--data-dir", str(data_dir)]
    command += ["--port", str(7000 + number), "--web-port", str(8000 + number)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    return Broker(process, json.loads(process.stdout.readline())["binary"])


@contextmanager
def both(other: Path, directory: Path, python: str = sys.executable) -> Iterator[list[Broker]]:
    """A broker of this checkout and one of the other, which `python` runs: in a network of their own, and
    killed in the end.
    """
    if not enter_own_network():
        sys.exit("needs a network namespace of its own")
    brokers: list[Broker] = []
    try:
        for number, (by, checkout) in enumerate(((sys.executable, CHECKOUT), (python, other.resolve()))):
            brokers.append(start(checkout, directory / str(number), number, by))
        yield brokers
    finally:
        for broker in brokers:
            broker.process.kill()
            broker.process.wait()


def cpu_s(pid: int) -> float:
    """Of a whole process, by its own clock: threads that have ended count too."""
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def burst(client: list[str], broker: Broker, phase: str, count: int, *, batched: bool) -> float:
    """Microseconds for each message."""
    words = [*client, "-url", broker.url, "-type", "shared", "-phase", phase, "-topic", TOPIC]
    words += ["-count", str(count), f"-batched={'true' if batched else 'false'}"]
    used: dict[str, float] = {}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            used[json.loads(line)["event"]] = cpu_s(broker.process.pid)
    if process.returncode:
        sys.exit(f"the client failed at {phase}")
    return (used["end"] - used["begin"]) / count * 1e6 if count else 0.0


def measure(options: argparse.Namespace, client: list[str], brokers: list[Broker]) -> dict[str, Any]:
    found: dict[str, list[tuple[float, float]]] = {phase: [] for phase in PHASES}
    for broker in brokers:
        burst(client, broker, "subscribe", 0, batched=False)
        for phase in PHASES:
            burst(client, broker, phase, WARM_UP_MESSAGES, batched=options.batched)
    for turn in range(options.turns):
        order = (0, 1) if turn % 2 else (1, 0)
        used: dict[int, list[float]] = {}
        for number in order:
            used[number] = [
                burst(client, brokers[number], phase, options.messages, batched=options.batched)
                for phase in PHASES
            ]
        for at, phase in enumerate(PHASES):
            found[phase].append((used[0][at], used[1][at]))
    return {phase: figures_of(pairs) for phase, pairs in found.items()}


def figures_of(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Of pairs of microseconds, here and there."""
    ratios = [here / there for here, there in pairs]
    return {
        "here_us": statistics.median(here for here, _ in pairs),
        "there_us": statistics.median(there for _, there in pairs),
        "ratio": statistics.median(ratios),
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
    }


HEAD = "us/msg            here    there    here/there, median, least and most of the pairs"


def row(name: str, figures: dict[str, float]) -> str:
    """A row of the table below `HEAD`."""
    medians = f"{name:13}{figures['here_us']:9.2f}{figures['there_us']:9.2f}{figures['ratio']:9.3f}"
    return f"{medians}{figures['ratio_least']:9.3f}{figures['ratio_most']:9.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the other broker")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--messages", type=int, default=20_000, help="in each burst")
    parser.add_argument("--batched", action="store_true")
    parser.add_argument("--client", choices=("auto", "go", "python"), default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="two-checkouts-") as name:
        directory = Path(name)
        client, line = load_client.build(directory, options.client)
        print(line)
        with both(options.other, directory, options.python) as brokers:
            figures = measure(options, client, brokers)
    print(HEAD)
    for phase, values in figures.items():
        print(row(phase, values))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
