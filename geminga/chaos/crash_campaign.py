"""The crash campaign: the bookie loses power, and worse, at every operation and at random, and is checked.

    python -m geminga.chaos.crash_campaign --points 100000 --seed 1
    python -m geminga.chaos.crash_campaign --points 100000 --seed 1 --directories 2x3

First every operation of every script in every way (`--workloads none` leaves this out), then `--points`
random lives. Prints progress and a final figure. On a failure: exit code 1, and what broke, the faults
injected, the last operations, and the command that runs this one case again.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from typing import Final

from geminga.chaos.bookie_scripts import SCRIPTS
from geminga.chaos.crash_cases import WAYS, CaseFailed, Tally, run_case, scripted_cases
from geminga.clock import RealClock

CHUNK: Final = 100
PROGRESS_S: Final = 5.0


def process_pool(jobs: int) -> ProcessPoolExecutor:
    """Silent processes that inherit nothing: a fork would take the locks of other threads along."""
    return ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=logging.disable,
        initargs=(logging.CRITICAL,),
    )


def run_cases(names: Sequence[str], nested_max: int) -> Tally:
    """One after the other; raises `CaseFailed`."""
    tally = Tally()
    for name in names:
        tally.add(run_case(name, nested_max=nested_max))
    return tally


def random_cases(points: int, seed: int, layout: str = "") -> Iterator[str]:
    """Other seeds share no case, up to a billion points. `layout` is "" or, say, "/2x3"."""
    return (f"random{layout}:{seed * 10**9 + number}" for number in range(points))


def campaign(
    names: Iterator[str],
    total: int,
    *,
    nested_max: int,
    jobs: int,
    say: Callable[[str], None],
    run: Callable[[Sequence[str], int], Tally] = run_cases,
) -> Tally:
    """All cases, in so many processes; `run` does some of them. Raises `CaseFailed` of the first that
    fails.
    """
    now_s = RealClock().monotonic_s
    started_s = said_s = now_s()
    tally = Tally()
    chunks = iter(lambda: list(islice(names, CHUNK)), [])
    with process_pool(jobs) as pool:
        running: set[Future[Tally]] = set()
        try:
            while True:
                while len(running) < 2 * jobs and (chunk := next(chunks, None)):
                    running.add(pool.submit(run, chunk, nested_max))
                if not running:
                    return tally
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    tally.add(future.result())
                if now_s() - said_s > PROGRESS_S:
                    said_s = now_s()
                    rate = tally.cases / (said_s - started_s)
                    say(f"{tally.cases} of {total} points, {rate:.0f}/s, {tally.crashes} crashes")
        except CaseFailed:
            pool.shutdown(cancel_futures=True)
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m geminga.chaos.crash_campaign", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--points", type=int, default=10_000, help="random lives (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--workloads",
        default="all",
        help=f"all, none, or some of {','.join(SCRIPTS)}; every operation of each",
    )
    parser.add_argument(
        "--directories",
        default="1x1",
        metavar="JxL",
        help="so many journal and ledger directories (default: %(default)s)",
    )
    parser.add_argument("--nested", type=int, default=3, help="crashes in recoveries, one in the other")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--replay", metavar="CASE", help="only this case")
    options = parser.parse_args(arguments)
    try:
        if options.replay:
            run_case(options.replay, nested_max=options.nested)
            print(f"{options.replay}: all promises kept")
            return 0
        return _run(options)
    except CaseFailed as failure:
        print(f"FAILED {failure.text}")
        print(f"run again: {parser.prog} --nested {options.nested} --replay {failure.name}")
        return 1


def _run(options: argparse.Namespace) -> int:
    chosen = {"all": list(SCRIPTS), "none": []}.get(options.workloads, options.workloads.split(","))
    layout = "" if options.directories == "1x1" else f"/{options.directories}"
    now_s = RealClock().monotonic_s
    whole = Tally()
    for title, cases in (
        ("every operation", scripted_cases([f"{script}{layout}" for script in chosen], WAYS)),
        ("random lives", list(random_cases(options.points, options.seed, layout))),
    ):
        if not cases:
            continue
        started_s = now_s()
        tally = campaign(
            iter(cases),
            len(cases),
            nested_max=options.nested,
            jobs=options.jobs,
            say=lambda text, title=title: print(f"{title}: {text}", flush=True),  # type: ignore[misc]
        )
        seconds = now_s() - started_s
        print(
            f"{title}: {tally.cases} points in {seconds:.1f} s ({tally.cases / seconds:.0f}/s), "
            f"{tally.crashes} crashes, {tally.nested} of them in recoveries, {tally.faults} faults",
            flush=True,
        )
        whole.add(tally)
    print(f"{whole.cases} points, {whole.crashes} crashes, {whole.faults} faults: no promise broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
