"""All shipped scenarios on the broker as it is, with several seeds: none may be called wrong.

    python -m tests.chaos.promises.honest --seeds 3               as large as they are
    python -m tests.chaos.promises.honest --small --busy 4        a part of each, beside four busy processes

A line for each run. Exit code 1 if one was wrong, or gave no result.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from geminga.cli.chaos.shipped.scenarios import names
from tests.chaos.promises.plant import counts_of, run_scenario
from tests.mutants.mutant import ROOT

COMPUTES = "while True: sum(range(100_000))"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.promises.honest")
    parser.add_argument("names", metavar="SCENARIO", nargs="*", help="only this one")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="beside N processes that compute")
    parser.add_argument("--small", action="store_true", help="in the size of the tests")
    parser.add_argument("--histories", type=Path, metavar="DIR", help="keep those of runs that did not pass")
    flags = parser.parse_args()
    if flags.histories is not None:
        flags.histories.mkdir(parents=True, exist_ok=True)
    size = () if flags.small else ("--scale", "1", "--pace", "1")
    busy = [subprocess.Popen([sys.executable, "-c", COMPUTES]) for _ in range(flags.busy)]

    def one(run: tuple[str, int]) -> str:
        name, seed = run
        history = flags.histories.resolve() / f"{name}-{seed}" if flags.histories else None
        kept = ("--history", str(history)) if history else ()
        found: Any = run_scenario(ROOT, name, seed, (*size, *kept))
        verdict = "no result" if isinstance(found, str) else found["verdict"]
        if history and verdict == "passed":
            history.unlink()
        print(f"{verdict:9} {name} seed {seed}: {counts_of(found)}", flush=True)
        return verdict

    try:
        runs = [(name, seed) for seed in range(1, flags.seeds + 1) for name in flags.names or names()]
        with ThreadPoolExecutor(flags.at_once) as threads:
            words = list(threads.map(one, runs))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(", ".join(f"{words.count(word)} {word}" for word in sorted(set(words))))
    return 1 if {"wrong", "no result"} & set(words) else 0


if __name__ == "__main__":
    sys.exit(main())
