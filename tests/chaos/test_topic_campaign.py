"""A slice of the topic's crash campaign in every test run; `python -m simulation.topic.topic_campaign` runs
all of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from geminga.clock import Alarm, VirtualClock
from simulation.campaign.breaking import CRASHES, FAILURES
from simulation.campaign.campaign import CaseFailed, random_cases, run_cases
from simulation.topic import world as topic_world
from simulation.topic.cases import run_case, scripted_cases
from simulation.topic.check import check
from simulation.topic.scripts import SCRIPTS
from simulation.topic.topic_campaign import main
from simulation.topic.world import TopicWorld

CRASHED, FAILED, RANDOM = 220, 70, 60


@pytest.mark.usefixtures("silent")
def test_no_promise_is_broken_in_this_slice() -> None:
    """Some operations of every script in every way, and random lives."""
    chance = random.Random(1)
    cases = chance.sample(scripted_cases(SCRIPTS, CRASHES), CRASHED)
    cases += chance.sample(scripted_cases(SCRIPTS, FAILURES), FAILED)
    cases += random_cases(RANDOM, seed=5)
    assert {case.partition(":")[0] for case in cases} == {*SCRIPTS, "random"}
    tally = run_cases(run_case, cases, nested_max=2)
    assert tally.cases == len(cases)
    assert tally.crashes >= len(cases)
    assert tally.nested > 50
    assert tally.faults > 40


@pytest.mark.usefixtures("silent")
def test_a_ledger_that_is_left_for_its_age_may_go() -> None:
    """In this life it is as old as a ledger may be when the topic is truncated."""
    assert run_cases(run_case, ["random:7000000838"], nested_max=2).cases == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_does_what_it_is_for_and_leaves_nothing(script: str) -> None:
    """Without a fault, but for the check's own crash."""
    world = TopicWorld(3)
    assert world.run(SCRIPTS[script])
    paths = {path for kind, path in world.disk.log if kind == "tree sync"}
    assert paths == {"tree"}
    world.crash("drop")
    check(world)


def test_space_comes_back() -> None:
    """What a topic took is on the disk no more once the next collection has run."""
    world = TopicWorld(3)
    seen: list[int] = []
    step = world.disk.step

    def watched(kind: str, path: str) -> None:
        step(kind, path)
        if kind == "unlink" and path.startswith(f"{topic_world.DIRECTORY}/entry-logs"):
            seen.append(world.used_bytes())

    world.disk.step = watched  # type: ignore[method-assign]
    assert world.run(SCRIPTS["retaining"])
    world.crash("drop")
    check(world)
    assert max(seen) > 1500
    assert world.used_bytes() < 1000


def test_a_failure_says_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("simulation.disk.sim_disk.SimFile.sync", lambda file: None)
    failing = next(case for case in scripted_cases(["trimming"], ["drop"]) if not _holds(case))
    assert main(["--replay", failing]) == 1
    said = capsys.readouterr().out
    assert f"FAILED {failing}: Broken: " in said
    assert "last operations of" in said
    monkeypatch.undo()
    assert main(said.splitlines()[-1].partition("topic_campaign ")[2].split()) == 0


def _holds(case: str) -> bool:
    try:
        run_cases([case])
    except Exception:
        return False
    return True


@pytest.mark.usefixtures("silent")
def test_no_promise_is_broken_under_a_clock_that_jumps() -> None:
    """Lives that go by jumps of up to months: nothing early, nothing lost, and the clock never goes back."""
    chance = random.Random(2)
    cases = chance.sample(scripted_cases(["delaying", "sharing", "expiring"], CRASHES, jumps=True), 60)
    cases += random_cases(60, seed=6, kind="jumps")
    tally = run_cases(run_case, cases, nested_max=2)
    assert tally.cases == len(cases)
    assert tally.crashes >= len(cases)


def _not_saved(patch: pytest.MonkeyPatch) -> None:
    """A jump is begun before it is durable."""

    async def save_nothing(*args: object) -> None:
        pass

    patch.setattr(topic_world, "save_clock", save_nothing)


def _back_to_the_machines(patch: pytest.MonkeyPatch) -> None:
    """A start takes the machine's time for the broker's."""
    patch.setattr(topic_world, "restored_clock", lambda store, make: make(0, 0))


def _no_alarm(patch: pytest.MonkeyPatch) -> None:
    """A jump wakes no task, so that it ends with what it should have loaded still on disk."""
    patch.setattr(VirtualClock, "alarm", lambda self, due_ms, call: Alarm(call))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("plant", [_not_saved, _back_to_the_machines, _no_alarm])
def test_bugs_in_the_clock_break_a_promise(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    cases = random_cases(60, seed=6, kind="jumps")
    with pytest.raises(CaseFailed):
        run_cases(run_case, cases, nested_max=2)
