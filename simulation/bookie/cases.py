"""One case of the crash campaign: a world, a way to break it, recoveries that are broken too, and the check.

A case has a name from which it can be run again: `bursts:41:torn` is script, operation and way (and, if not
the operation's number, a seed: `bursts:41:torn:5`); `random:7` is the seed of lives, settings and faults.
`bursts/2x3:41:torn` and `random/2x3:7` have two journal directories and three ledger directories.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

import trio
from msgspec.structs import replace

from geminga.bookie.records.settings import BookieSettings
from simulation.bookie.scripts import SCRIPTS, random_life
from simulation.bookie.world import TINY, BookieWorld, Layout
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
from simulation.disk.disk_faults import FAILING_KINDS

INDEX_LOST: Final = "lost"
"""As torn, and nothing is left of the index."""
RECOVERY_OPERATIONS: Final = 16
"""A recovery is cut short within about so many operations."""


WAYS: Final = (*CRASHES, *FAILURES, INDEX_LOST)


def split_layout(script: str) -> tuple[str, Layout]:
    """`bursts/2x3` is a script and how many directories of each kind there are."""
    name, _, numbers = script.partition("/")
    journals, _, ledgers = numbers.partition("x")
    return name, Layout(int(journals), int(ledgers)) if numbers else Layout()


def scripted_cases(scripts: Iterable[str], ways: Iterable[str]) -> list[str]:
    """The names of every operation of every script, given with or without a layout, in every way. Runs each
    script once to count.
    """
    return every_operation(scripts, ways, _lengths)


def _lengths(script: str) -> tuple[int, int]:
    name, layout = split_layout(script)
    world = BookieWorld(layout=layout)
    # The seed of a case may lead to a few operations more or less.
    return lengths_of(world.disk, lambda: world.run(SCRIPTS[name]))


def run_case(name: str, *, nested_max: int = 3) -> Tally:
    """Raises `CaseFailed`. `nested_max` recoveries in a row may be cut short."""
    numbered, _, rest = name.partition(":")
    script, layout = split_layout(numbered)
    if script == "random":
        seed = int(rest)
        chance = random.Random(f"point {seed}")
        world = BookieWorld(seed, _random_settings(chance), layout)
    else:
        text, way, *seeds = rest.split(":")
        at = int(text)
        seed = int(seeds[0]) if seeds else at
        chance = random.Random(name)
        # An old journal that is written over takes entries along that a new index would need.
        settings = replace(TINY, journal_free_files_max=0) if way == INDEX_LOST else TINY
        world = BookieWorld(seed, settings, layout)
    tally = Tally(cases=1)
    try:
        if script == "random":
            _run_random(world, chance, nested_max, tally)
        elif way in FAILURES:
            _run_failing(world, script, at, way)
            world.crash("drop")
        else:
            world.disk.crash_at = at
            world.run(SCRIPTS[script])
            crash(world, "drop" if way == "drop" else "keep" if way == "keep" else "torn", tally)
            if way == INDEX_LOST:
                world.lose_index(number=None if at % 2 else chance.randrange(layout.ledgers))
            if way in ("torn", INDEX_LOST):
                cut_recoveries(world, chance, nested_max, tally, operations_max=RECOVERY_OPERATIONS)
        world.check()
    except Exception as error:
        raise CaseFailed(name, f"{name}: {leaves(error)}\n{world.disk.story()}") from error
    tally.faults = len(world.disk.faults.log)
    tally.operations = world.disk.operations
    return tally


def _run_random(world: BookieWorld, chance: random.Random, nested_max: int, tally: Tally) -> None:
    for _ in range(chance.choice((1, 1, 2, 3))):
        world.disk.crash_at = world.disk.operations + chance.randrange(chance.choice((20, 100, 300)))
        _plan_faults(world, chance)
        try:
            world.run(random_life(chance))
        except trio.TooSlowError:
            if world.disk.space_bytes is None:  # waiting for space is as good as giving up
                raise
        world.check_told_unless_off()
        crash(world, chance.choice(("drop", "keep", "torn", "torn", "torn")), tally)
        count = chance.randrange(nested_max + 1)
        cut_recoveries(world, chance, count, tally, operations_max=RECOVERY_OPERATIONS)


def _plan_faults(world: BookieWorld, chance: random.Random) -> None:
    """None in most lives; else some, each often or rare."""
    faults = world.disk.faults
    faults.sync_s = None
    if chance.random() < 0.3:
        longest_s = chance.choice((0.01, 1.0, 100.0))
        faults.sync_s = lambda: chance.random() * longest_s
    if chance.random() < 0.75:
        return
    for _ in range(chance.randrange(1, 3)):
        kind = chance.choice(FAILING_KINDS)
        faults.fail(
            kind,
            skip=chance.randrange(chance.choice((5, 50))),
            sticky=chance.random() < 0.3,
            short=kind == "write" and chance.random() < 0.5,
        )
    if chance.random() < 0.2:
        world.disk.space_bytes = chance.randrange(2000, 60_000)


def _run_failing(world: BookieWorld, script: str, at: int, way: str) -> None:
    """The `at`-th operation fails, reads included. Nobody may be left waiting for what will not come."""
    fail_at(world.disk, at, way)
    try:
        world.run(SCRIPTS[script])
    except trio.TooSlowError:
        # A bookie that waits for space is as good as one that gives up.
        if way != "full":
            raise
    world.disk.inject = None
    world.check_told_unless_off()


def _random_settings(chance: random.Random) -> BookieSettings:
    if chance.random() < 0.4:
        return TINY
    return replace(
        TINY,
        journal_file_bytes=chance.choice((1024, 4096, 20_000)),
        journal_allocate_bytes=chance.choice((512, 2048, 20_000)),
        journal_alignment_bytes=chance.choice((512, 1024)),
        journal_free_files_max=chance.choice((0, 1, 3)),
        journal_group_bytes_max=chance.choice((100, 1500, 10_000)),
        journal_group_entries_max=chance.choice((1, 8, 100)),
        queue_bytes_max=chance.choice((500, 3000, 50_000)),
        write_cache_bytes=chance.choice((2000, 9000, 100_000)),
        read_cache_bytes=chance.choice((1, 2000, 50_000)),
        row_entries_max=chance.choice((1, 5, 1000)),
        entry_log_bytes=chance.choice((500, 3000, 50_000)),
        entry_log_sync_bytes=chance.choice((200, 1000, 100_000)),
    )
