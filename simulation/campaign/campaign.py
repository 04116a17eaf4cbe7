"""What the campaigns share: cases in many processes, what they add up to, and the command around them."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Protocol

from geminga.clock import RealClock

CHUNK: Final = 100
PROGRESS_S: Final = 5.0


class CaseFailed(Exception):
    """A case broke a promise. `text` has all that is needed to run it again."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.name = name
        self.text = text


@dataclass(slots=True)
class Tally:
    """What was done; added up over cases."""

    cases: int = 0
    crashes: int = 0
    """Of these, in recoveries: `nested`."""
    nested: int = 0
    faults: int = 0
    operations: int = 0

    def add(self, other: Tally) -> None:
        self.cases += other.cases
        self.crashes += other.crashes
        self.nested += other.nested
        self.faults += other.faults
        self.operations += other.operations


class RunCase(Protocol):
    """Runs the case of a name; raises `CaseFailed`."""

    def __call__(self, name: str, *, nested_max: int) -> Tally: ...


def process_pool(jobs: int) -> ProcessPoolExecutor:
    """Silent processes that inherit nothing: a fork would take the locks of other threads along."""
    return ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=logging.disable,
        initargs=(logging.CRITICAL,),
    )


def run_cases(run_case: RunCase, names: Sequence[str], nested_max: int) -> Tally:
    """One after the other; raises `CaseFailed`."""
    tally = Tally()
    for name in names:
        tally.add(run_case(name, nested_max=nested_max))
    return tally


def random_cases(points: int, seed: int, layout: str = "", *, kind: str = "random") -> list[str]:
    """Other seeds share no case, up to a billion points. `layout` is "" or, say, "/2x3"."""
    return [f"{kind}{layout}:{seed * 10**9 + number}" for number in range(points)]


def campaign(
    names: Iterator[str],
    total: int,
    run_case: RunCase,
    *,
    nested_max: int,
    jobs: int,
    say: Callable[[str], None],
) -> Tally:
    """All cases, in so many processes. Raises `CaseFailed` of the first that fails."""
    now_s = RealClock().monotonic_s
    started_s = said_s = now_s()
    tally = Tally()
    chunks = iter(lambda: list(islice(names, CHUNK)), [])
    with process_pool(jobs) as pool:
        running: set[Future[Tally]] = set()
        try:
            while True:
                while len(running) < 2 * jobs and (chunk := next(chunks, None)):
                    running.add(pool.submit(run_cases, run_case, chunk, nested_max))
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


def campaign_parser(
    name: str, description: str | None, scripts: Sequence[str], nested_max: int
) -> argparse.ArgumentParser:
    """The options of every campaign; the module `name` may add some."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--points", type=int, default=10_000, help="random lives (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--workloads",
        default="all",
        help=f"all, none, or some of {','.join(scripts)}; every operation of each",
    )
    parser.add_argument(
        "--nested", type=int, default=nested_max, help="crashes in recoveries, one in the other"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--replay", metavar="CASE", help="only this case")
    return parser


def chosen_scripts(options: argparse.Namespace, scripts: Sequence[str]) -> list[str]:
    named: str = options.workloads
    return {"all": list(scripts), "none": []}.get(named, named.split(","))


def run_command(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    run_case: RunCase,
    titled_cases: Callable[[argparse.Namespace], Sequence[tuple[str, Sequence[str]]]],
) -> int:
    """Replay one case or run all; the exit code. `titled_cases` is asked in the latter case only."""
    try:
        if options.replay:
            run_case(options.replay, nested_max=options.nested)
            print(f"{options.replay}: all promises kept")
            return 0
        whole = Tally()
        for title, cases in titled_cases(options):
            if cases:
                whole.add(_titled(title, cases, run_case, options))
    except CaseFailed as failure:
        print(f"FAILED {failure.text}")
        print(f"run again: {parser.prog} --nested {options.nested} --replay {failure.name}")
        return 1
    print(f"{whole.cases} points, {whole.crashes} crashes, {whole.faults} faults: no promise broken")
    return 0


def _titled(title: str, cases: Sequence[str], run_case: RunCase, options: argparse.Namespace) -> Tally:
    now_s = RealClock().monotonic_s
    started_s = now_s()
    tally = campaign(
        iter(cases),
        len(cases),
        run_case,
        nested_max=options.nested,
        jobs=options.jobs,
        say=partial(_say, title),
    )
    seconds = now_s() - started_s
    _say(
        title,
        f"{tally.cases} points in {seconds:.1f} s ({tally.cases / seconds:.0f}/s), "
        f"{tally.crashes} crashes, {tally.nested} of them in recoveries, {tally.faults} faults",
    )
    return tally


def _say(title: str, text: str) -> None:
    print(f"{title}: {text}", flush=True)
