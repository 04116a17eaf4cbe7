"""Ways to break a life on the simulated disk, whatever lives there."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

import trio

from simulation.campaign.campaign import Tally
from simulation.campaign.deterministic import run_deterministically
from simulation.disk.sim_disk import CrashMode, SimDisk

CRASHES: Final[tuple[CrashMode, ...]] = ("drop", "keep", "torn")
"""Ways of losing what was not synced, when the power goes at an operation."""
FAILURES: Final = ("once", "sticky", "short", "full")
"""Ways for an operation to fail while the power is on: it alone, all of its kind from then on, a write in its
middle, no more space."""


class World(Protocol):
    """What stands on a simulated disk."""

    disk: SimDisk

    def crash(self, mode: CrashMode) -> None:
        """The power goes; what was not synced is lost as `mode` says."""
        ...

    def recover(self) -> bool:
        """Open and leave without a check; False if the power went."""
        ...


def every_operation(
    scripts: Iterable[str], ways: Iterable[str], lengths: Callable[[str], tuple[int, int]]
) -> list[str]:
    """The names of all cases. `lengths` of a script: how many operations change something, and how many
    there are with reads.
    """
    ways = list(ways)
    names = []
    for script in scripts:
        crash_points, calls = lengths(script)
        for way in ways:
            names += [f"{script}:{at}:{way}" for at in range(calls if way in FAILURES else crash_points)]
    return names


def lengths_of(disk: SimDisk, run: Callable[[], bool]) -> tuple[int, int]:
    """How many operations of `run`, which must end well, change something, and how many there are with
    reads; one more of both, for what comes behind the last.
    """
    calls = 0

    def count(kind: str, path: str) -> None:
        nonlocal calls
        calls += 1

    disk.inject = count
    assert run()
    return disk.operations + 1, calls + 1


def fail_at(disk: SimDisk, at: int, way: str) -> None:
    """The `at`-th operation from now, reads included, will fail, in a way of `FAILURES`."""
    calls, faults = 0, disk.faults

    def inject(kind: str, path: str) -> None:
        nonlocal calls
        calls += 1
        if calls != at + 1:
            return
        if way == "full":
            faults.log.append(f"no more space from operation {at} on")
            disk.space_bytes = 0
        else:
            faults.fail(kind, sticky=way == "sticky", short=way == "short" and kind == "write")

    disk.inject = inject


def crash(world: World, mode: CrashMode, tally: Tally) -> None:
    world.crash(mode)
    tally.crashes += 1


def cut_recoveries(
    world: World, chance: random.Random, count: int, tally: Tally, *, operations_max: int
) -> None:
    """So many in a row, each within its first `operations_max` operations."""
    for _ in range(count):
        world.disk.crash_at = world.disk.operations + chance.randrange(operations_max)
        world.recover()
        crash(world, chance.choice(("drop", "torn", "torn")), tally)
        tally.nested += 1


def lives(
    disk: SimDisk,
    seed: int,
    life: Callable[[], Awaitable[None]],
    may_end: Callable[[BaseException], bool],
    hang_s: float,
) -> bool:
    """False if `life` ended by what `may_end` allows. Anything else that comes out is a bug and raised, and
    TooSlowError if life does not end within `hang_s` seconds of virtual time.

    What waits for a full disk while it closes is shielded from being cancelled: the power is cut then, after
    twice the time. It would wait for ever otherwise, and a test with it.
    """
    hangs = False

    async def end_hang() -> None:
        nonlocal hangs
        await trio.sleep(2 * hang_s)
        hangs = True
        disk.cut_power()

    async def live() -> None:
        trio.lowlevel.spawn_system_task(end_hang)
        with trio.fail_after(hang_s):
            await life()

    try:
        run_deterministically(seed, live)
    except BaseException as error:  # a power cut is none of Exception's
        if hangs:
            raise trio.TooSlowError from error
        if may_end(error):
            return False
        raise
    return True


def leaves(error: BaseException) -> str:
    """What really went wrong, in one line."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(leaves(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"
