"""One case of the topic's crash campaign: a world, a way to break it, recoveries broken too, and the check.

A case has a name from which it can be run again: `trimming:41:torn` is script, operation and way;
`random:7` is the seed of lives and faults.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from geminga.chaos.crash_cases import CRASHES, FAILURES, CaseFailed, Tally
from geminga.chaos.sim_disk import CrashMode
from geminga.chaos.topic_check import check
from geminga.chaos.topic_scripts import SCRIPTS, random_life
from geminga.chaos.topic_world import TopicWorld

WAYS: Final = (*CRASHES, *FAILURES)
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


def scripted_cases(scripts: Iterable[str], ways: Iterable[str]) -> list[str]:
    """The names of every operation of every script in every way. Runs each script once to count."""
    names = []
    for script in scripts:
        crash_points, calls = _lengths(script)
        for way in ways:
            names += [f"{script}:{at}:{way}" for at in range(calls if way in FAILURES else crash_points)]
    return names


def _lengths(script: str) -> tuple[int, int]:
    """How many operations change something, and how many there are with reads."""
    world, calls = TopicWorld(), 0

    def count(kind: str, path: str) -> None:
        nonlocal calls
        calls += 1

    world.disk.inject = count
    assert world.run(SCRIPTS[script])
    return world.disk.operations + 1, calls + 1


def random_cases(points: int, seed: int) -> list[str]:
    """Other seeds share no case, up to a billion points."""
    return [f"random:{seed * 10**9 + number}" for number in range(points)]


def run_cases(names: Sequence[str], nested_max: int = 2) -> Tally:
    """One after the other; raises `CaseFailed`."""
    tally = Tally()
    for name in names:
        tally.add(run_case(name, nested_max=nested_max))
    return tally


def run_case(name: str, *, nested_max: int = 2) -> Tally:
    """Raises `CaseFailed`. `nested_max` recoveries in a row may be cut short."""
    script, _, rest = name.partition(":")
    chance = random.Random(name)
    at_text, _, way = rest.partition(":")
    world = TopicWorld(int(at_text))
    tally = Tally(cases=1)
    try:
        if script == "random":
            _run_random(world, chance, nested_max, tally)
        elif way in FAILURES:
            _run_failing(world, script, int(at_text), way)
            _crash(world, "drop", tally)
        else:
            world.disk.crash_at = int(at_text)
            world.run(SCRIPTS[script])
            mode: CrashMode = "drop" if way == "drop" else "keep" if way == "keep" else "torn"
            _crash(world, mode, tally)
            if way == "torn":
                _cut_recoveries(world, chance, chance.randrange(nested_max + 1), tally)
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
            world.disk.faults.fail(
                chance.choice(STORE_KINDS), skip=chance.randrange(60), sticky=chance.random() < 0.3
            )
        world.run(random_life(chance))
        _crash(world, chance.choice(("drop", "keep", "torn", "torn")), tally)
        _cut_recoveries(world, chance, chance.randrange(nested_max + 1), tally)


def _run_failing(world: TopicWorld, script: str, at: int, way: str) -> None:
    """The `at`-th operation fails, reads included."""
    calls, faults = 0, world.disk.faults
    world.fault_lasts = way in ("full", "sticky")

    def inject(kind: str, path: str) -> None:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            if way == "full":
                faults.log.append(f"no more space from operation {at} on")
                world.disk.space_bytes = 0
            else:
                faults.fail(kind, sticky=way == "sticky", short=way == "short" and kind == "write")

    world.disk.inject = inject
    world.run(SCRIPTS[script])


def _crash(world: TopicWorld, mode: CrashMode, tally: Tally) -> None:
    world.crash(mode)
    tally.crashes += 1


def _cut_recoveries(world: TopicWorld, chance: random.Random, count: int, tally: Tally) -> None:
    for _ in range(count):
        world.disk.crash_at = world.disk.operations + chance.randrange(RECOVERY_OPERATIONS)
        world.recover()
        _crash(world, chance.choice(("drop", "torn", "torn")), tally)
        tally.nested += 1


def leaves(error: BaseException) -> str:
    """What really went wrong, in one line."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(leaves(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"
