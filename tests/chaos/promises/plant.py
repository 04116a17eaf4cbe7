"""Plant each bug alone in the broker of a copy, and run its scenario there: the checker has to find it.

    python -m tests.chaos.promises.plant             all of them
    python -m tests.chaos.promises.plant NAME ...    only these

A line for each: with which word it was found, with which seed of up to `--seeds`, and what was counted. Exit
code 1 if one was found with no word, or with another than its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from geminga.cli.chaos.shipped.scenarios import text_of
from tests.chaos.promises.bugs import BUGS, Bug
from tests.chaos.promises.sizes import size_of
from tests.mutants.__main__ import copy_checkout
from tests.mutants.mutant import mutated

DRAIN = 'drain = "8s"\n'
"""So long the end waits without progress; the scenarios' 30 s are for machines of any speed."""
WALL_S_MAX = 400


class Outcome(NamedTuple):
    verdict: str
    seed: int
    runs: int
    counts: str
    took_s: float


def run_scenario(checkout: Path, name: str, seed: int | None = None, arguments: Sequence[str] = ()) -> Any:
    """What the command of this checkout found, as its JSON; or a text if it found nothing."""
    with tempfile.TemporaryDirectory(prefix="geminga-promises-") as directory:
        file = Path(directory) / f"{name}.toml"
        text = text_of(name)
        file.write_text(text if "\ndrain" in text else DRAIN + text)
        scale, pace = size_of(name)
        command = [sys.executable, "-m", "geminga", "chaos", "run", str(file), "--json", "--quiet"]
        command += ["--scale", scale, "--pace", pace, *arguments]
        command += ["--seed", str(seed)] if seed is not None else []
        environment = os.environ | {"PYTHONPATH": str(checkout), "TMPDIR": directory}
        try:
            done = subprocess.run(
                command, cwd=directory, env=environment, capture_output=True, text=True, timeout=WALL_S_MAX
            )
        except subprocess.TimeoutExpired:
            return f"no end within {WALL_S_MAX} s"
        lines = done.stdout.splitlines()
        return json.loads(lines[-1]) if lines else f"exit code {done.returncode}: {done.stderr[-400:]}"


def counts_of(found: Any) -> str:
    """The findings that there were, or why there is none."""
    if isinstance(found, str):
        return found
    counts = [f"{name} {one['count']}" for name, one in found["counts"].items() if one["count"]]
    other = [text for texts in found["reasons"].values() for text in texts]
    return ", ".join(counts) or (other[0][:100] if other else "nothing")


def judge(bug: Bug, checkout: Path, seeds: int) -> Outcome:
    """With up to so many seeds, until it is found. The copy is left as it was."""
    path = checkout / bug.path
    original = path.read_text()
    began_s = time.monotonic()
    found: Any = ""
    seed = 0
    try:
        path.write_text(mutated(bug.mutant, checkout))
        for seed in range(1, seeds + 1):
            whole = ("--scale", "1", "--pace", "1") if bug.is_whole else ()
            found = run_scenario(checkout, bug.scenario, seed, whole)
            if not isinstance(found, str) and found["verdict"] in {"wrong", "late"}:
                break
    finally:
        path.write_text(original)
    verdict = "no result" if isinstance(found, str) else found["verdict"]
    return Outcome(verdict, seed, seed, counts_of(found), time.monotonic() - began_s)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.promises.plant")
    parser.add_argument("names", metavar="NAME", nargs="*", help="only this bug")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=2)
    flags = parser.parse_args()
    if unknown := set(flags.names) - {bug.name for bug in BUGS}:
        sys.exit(f"no such bug: {', '.join(sorted(unknown))}")
    bugs = [bug for bug in BUGS if not flags.names or bug.name in flags.names]
    with (
        tempfile.TemporaryDirectory(prefix="geminga-promises-") as directory,
        ThreadPoolExecutor(flags.at_once) as threads,
    ):
        # Python takes a compiled file for current by its time and size, which a bug may leave as they are.
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(flags.at_once):
            copy_checkout(Path(directory) / str(number))
            copies.put(Path(directory) / str(number))

        def one(bug: Bug) -> bool:
            checkout = copies.get()
            try:
                found = judge(bug, checkout, flags.seeds)
            finally:
                copies.put(checkout)
            is_found = found.verdict == bug.word
            mark = "found " if is_found else "MISSED"
            text = f"{found.verdict} with seed {found.seed}: {found.counts}"
            print(
                f"{mark} {bug.area:13} {bug.name} ({bug.scenario}): {text} [{found.took_s:.0f} s]", flush=True
            )
            return is_found

        results = list(threads.map(one, bugs))
    print(f"{sum(results)} of {len(results)} found with their word")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
