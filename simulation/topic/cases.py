"""One case of the topic's crash campaign: a world, a way to break it, recoveries broken too, and the check.

A case has a name from which it can be run again: `trimming:41:torn` is script, operation and way;
`random:7` is the seed of lives and faults.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from simulation.campaign.breaking import (
    CRASHES,
    FAILURES,
    crash,
    cut_recoveries,
    every_operation,
    fail_at,
    leaves,
    lengths_of,
)
from simulation.campaign.campaign import CaseFailed, Tally
from simulation.disk.sim_disk import CrashMode
from simulation.topic.check import check
from simulation.topic.scripts import SCRIPTS, random_life, random_reminders
from simulation.topic.world import TopicWorld

WAYS: Final = (*CRASHES, *FAILURES)
RANDOM: Final = ("random", "jumps")
"""Lives by seed; `jumps`: under the virtual clock."""
JUMPS: Final = "+jumps"
"""Behind a way: under the virtual clock, time passes by jumps."""
STORE_KINDS: Final = (
    "tree write",
    "tree sync",
    "index write",
    "index sync",
    "write",
    "sync",
    "unlink",
    "read",
)
RECOVERY_OPERATIONS: Final = 60
"""A recovery with its sweep and collection is cut short within about so many operations."""


def scripted_cases(scripts: Iterable[str], ways: Iterable[str], *, jumps: bool = False) -> list[str]:
    """The names of every operation of every script in every way, with `jumps` under the virtual clock. Runs
    each script once to count.
    """

    def lengths(script: str) -> tuple[int, int]:
        world = TopicWorld(jumps=jumps)
        return lengths_of(world.disk, lambda: world.run(SCRIPTS[script]))

    return [name + JUMPS * jumps for name in every_operation(scripts, ways, lengths)]


def run_case(name: str, *, nested_max: int = 2) -> Tally:
    """Raises `CaseFailed`. `nested_max` recoveries in a row may be cut short."""
    script, _, rest = name.partition(":")
    chance = random.Random(name)
    at_text, _, way = rest.partition(":")
    world = TopicWorld(int(at_text), jumps=script == "jumps" or way.endswith(JUMPS))
    way = way.removesuffix(JUMPS)
    tally = Tally(cases=1)
    try:
        if script in RANDOM:
            _run_random(world, chance, nested_max, tally)
        elif way in FAILURES:
            _run_failing(world, script, int(at_text), way)
            crash(world, "drop", tally)
        else:
            world.disk.crash_at = int(at_text)
            world.run(SCRIPTS[script])
            mode: CrashMode = "drop" if way == "drop" else "keep" if way == "keep" else "torn"
            crash(world, mode, tally)
            if way == "torn":
                _cut(world, chance, nested_max, tally)
        check(world)
    except Exception as error:
        raise CaseFailed(name, f"{name}: {leaves(error)}\n{world.disk.story()}") from error
    tally.faults = len(world.disk.faults.log)
    tally.operations = world.disk.operations
    return tally


def _run_random(world: TopicWorld, chance: random.Random, nested_max: int, tally: Tally) -> None:
    for _ in range(chance.choice((1, 1, 2, 3))):
        world.disk.crash_at = world.disk.operations + chance.randrange(chance.choice((40, 150, 400)))
        if chance.random() < 0.2:
            kind, skip, sticky = chance.choice(STORE_KINDS), chance.randrange(60), chance.random() < 0.3
            world.disk.faults.fail(kind, skip=skip, sticky=sticky)
            world.fault_lasts = sticky
        # All lives of a world are of one kind: `TopicDelay` knows an index of one subscription alone.
        reminds = world.clock.is_virtual and world.seed % 3 > 0
        world.run(random_reminders(chance) if reminds else random_life(chance))
        crash(world, chance.choice(("drop", "keep", "torn", "torn")), tally)
        _cut(world, chance, nested_max, tally)


def _run_failing(world: TopicWorld, script: str, at: int, way: str) -> None:
    """The `at`-th operation fails, reads included."""
    world.fault_lasts = way in ("full", "sticky")
    fail_at(world.disk, at, way)
    world.run(SCRIPTS[script])


def _cut(world: TopicWorld, chance: random.Random, nested_max: int, tally: Tally) -> None:
    count = chance.randrange(nested_max + 1)
    cut_recoveries(world, chance, count, tally, operations_max=RECOVERY_OPERATIONS)
