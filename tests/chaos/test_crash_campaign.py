"""A slice of the crash campaign in every test run: other points of it each day would not be repeatable, so it
is the same slice. `python -m simulation.bookie.crash_campaign` runs all of it.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from geminga.bookie.journal.files import JournalFiles
from simulation.bookie import crash_campaign
from simulation.bookie.cases import WAYS, run_case, scripted_cases
from simulation.bookie.scripts import SCRIPTS, random_life
from simulation.bookie.world import BookieWorld
from simulation.campaign import campaign
from simulation.campaign.campaign import CaseFailed, Tally, random_cases, run_cases
from simulation.disk.sim_disk import SimFile

SCRIPTED, RANDOM = 700, 280
CALLS = {"write", "sync", "sync_directory", "rename", "unlink", "read", "index sync", "index read"}


@pytest.mark.usefixtures("silent")
def test_no_promise_is_broken_in_this_slice() -> None:
    """Operations of every script in every way, and random lives."""
    every = scripted_cases(SCRIPTS, WAYS)
    assert len(SCRIPTS) >= 10
    cases = random.Random(2).sample(every, SCRIPTED) + list(random_cases(RANDOM, seed=3))
    assert {case.partition(":")[0] for case in cases} == {*SCRIPTS, "random"}
    tally = run_cases(run_case, cases, nested_max=3)
    assert tally.cases == SCRIPTED + RANDOM
    assert tally.crashes > 900
    assert tally.nested > 450
    assert tally.faults > 170


@pytest.mark.usefixtures("silent")
def test_the_nth_call_fails_for_every_n() -> None:
    """A script that makes each kind of call; by command all scripts do that, in three more ways."""
    kinds: set[str] = set()
    world = BookieWorld()
    world.disk.inject = lambda kind, path: kinds.add(kind)
    assert world.run(SCRIPTS["compactions"])
    assert kinds >= CALLS
    cases = scripted_cases(["compactions"], ["once"])
    assert run_cases(run_case, cases, nested_max=0).faults >= len(cases) - 5


def test_a_life_is_a_function_of_its_seed() -> None:
    def log(seed: int) -> list[tuple[str, str]]:
        world = BookieWorld(seed)
        world.disk.crash_at = 200
        world.run(random_life(random.Random(seed)))
        world.forget_writers()
        world.crash("torn")
        world.recover()
        return world.disk.log

    assert log(4) == log(4)
    assert len({tuple(log(seed)) for seed in range(10)}) == 10


def lying_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimFile, "sync", lambda file: None)
    patch.setattr(SimFile, "write_synced", SimFile.pwrite_many)


def test_a_failure_says_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lying_sync(monkeypatch)
    monkeypatch.setattr(campaign, "campaign", _in_this_process)
    assert crash_campaign.main(["--workloads", "trickle", "--points", "0", "--nested", "1"]) == 1
    said = capsys.readouterr().out
    assert "FAILED trickle:" in said
    # The index says what no journal holds.
    assert "Broken: a crash looks like damage: damages: data/journal/0000" in said
    assert "faults injected: 0" in said
    assert "last operations of" in said
    command = said.splitlines()[-1].partition("crash_campaign ")[2].split()
    assert crash_campaign.main(command) == 1
    assert capsys.readouterr().out == said
    monkeypatch.undo()
    assert crash_campaign.main(command) == 0


def _in_this_process(names: Any, total: int, run_case: Any, *, nested_max: int, jobs: int, say: Any) -> Tally:
    return run_cases(run_case, list(names), nested_max)


def test_a_writer_left_waiting_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = JournalFiles.write
    calls = 0

    def write(self: JournalFiles, batches: Any) -> Any:
        nonlocal calls
        calls += 1
        group = real(self, batches)
        # The third group's entries are written and nobody hears of them.
        return group if calls != 3 else group._replace(segments=[])

    monkeypatch.setattr(JournalFiles, "write", write)
    with pytest.raises(CaseFailed):
        run_case("trickle:60:keep")
