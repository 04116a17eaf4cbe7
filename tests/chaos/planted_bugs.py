"""Bugs that are put into the bookie on purpose, one by one, to see that the tests would notice.

    python -m tests.chaos.planted_bugs            # each against up to 2,000 cases; a table

A bug is a function that patches what it breaks. It counts as caught when a case of the crash campaign fails,
or, for bugs that only damage can show, when a flipped bit leads to a wrong byte. Exit code 1 if one gets
away.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from simulation.bookie.cases import INDEX_LOST, WAYS, run_case, scripted_cases
from simulation.bookie.scripts import SCRIPTS
from simulation.campaign.breaking import CRASHES
from simulation.campaign.campaign import CaseFailed
from tests.chaos.bookie_bugs import (
    BY_CRASHES,
    BY_FLIPS,
    BY_LOST_INDEXES,
    Plant,
    index_written_after_the_unlink,
)
from tests.chaos.compaction_bugs import COMPACTION_BUGS

SIM_FLIPS = 400
UNFIT = ("TypeError", "AttributeError", "NameError")
"""What a patch raises that does not fit what it replaces: that would be no bug found."""


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        yield


def cases_in_order(seed: int = 0) -> list[str]:
    """Scripted and random ones mixed, the same for every bug."""
    scripted = scripted_cases(SCRIPTS, WAYS)
    cases = scripted + [f"random:{number}" for number in range(len(scripted) // 2)]
    random.Random(seed).shuffle(cases)
    return cases


def cases_for(plant: Plant, cases: list[str]) -> list[str]:
    """Those of the campaign's cases that could show this bug; for a rare one with other seeds too."""
    if plant in COMPACTION_BUGS:
        compactions = scripted_cases(("compactions",), CRASHES)
        random.Random(0).shuffle(compactions)
        return compactions
    if plant is index_written_after_the_unlink:
        deleting = scripted_cases(("deletions", "overlaps"), CRASHES)
        random.Random(0).shuffle(deleting)
        return deleting
    if plant not in BY_LOST_INDEXES:
        return cases
    lost = scripted_cases(("bursts", "overlaps"), (INDEX_LOST,))
    return [f"{case}:{seed}" for seed in range(8) for case in lost]


def hunt(plant: Plant, cases: list[str]) -> tuple[int, str] | None:
    """After how many cases the bug showed, and how; None if it did not."""
    with planted(plant):
        for number, case in enumerate(cases, 1):
            try:
                run_case(case)
            except CaseFailed as failure:
                said = failure.text.splitlines()[0]
                assert not any(kind in said for kind in UNFIT), f"{plant.__name__} fits no more: {said}"
                return number, said
    return None


def hunt_by_flips(plant: Plant) -> tuple[int, str] | None:
    from tests.chaos.sim_flips import WrongBytes, flip_on_sim_disk

    with planted(plant):
        for seed in range(SIM_FLIPS):
            try:
                flip_on_sim_disk(seed)
            except WrongBytes as error:
                return seed + 1, f"flip {seed}: {error}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.planted_bugs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--cases", type=int, default=2000, help="at most so many for each bug")
    parser.add_argument("--only", help="this bug alone")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    cases = cases_in_order()
    escaped = 0
    print(f"{'bug':42} {'cases':>6} {'seconds':>8}  caught by")
    for plant in (*BY_CRASHES, *COMPACTION_BUGS, *BY_LOST_INDEXES, *BY_FLIPS):
        if options.only not in (None, plant.__name__):
            continue
        started = time.monotonic()
        found = (
            hunt_by_flips(plant)
            if plant in BY_FLIPS
            else hunt(plant, cases_for(plant, cases)[: options.cases])
        )
        escaped += found is None
        number, text = found or (options.cases, "NOT CAUGHT")
        print(f"{plant.__name__:42} {number:6} {time.monotonic() - started:8.2f}  {text[:100]}", flush=True)
    print(f"{escaped} not caught")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
