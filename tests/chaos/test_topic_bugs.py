"""The topic's crash campaign tested: bugs put in on purpose are noticed, each in a script that does what it
breaks.
"""

from __future__ import annotations

import random

import pytest

from simulation.campaign.breaking import CRASHES
from simulation.campaign.campaign import CaseFailed
from simulation.topic.cases import run_case, scripted_cases
from tests.chaos.planted_bugs import UNFIT, planted
from tests.chaos.topic_bugs import BUGS, Plant

CASES = 400


def hunt(plant: Plant, script: str) -> str | None:
    """How the bug showed; None if it did not."""
    cases = scripted_cases((script,), CRASHES)
    random.Random(0).shuffle(cases)
    with planted(plant):
        for case in cases[:CASES]:
            try:
                run_case(case)
            except CaseFailed as failure:
                said = failure.text.splitlines()[0]
                assert not any(kind in said for kind in UNFIT), f"{plant.__name__} fits no more: {said}"
                return said
    return None


@pytest.mark.parametrize(("plant", "script"), BUGS, ids=lambda value: getattr(value, "__name__", ""))
def test_the_campaign_catches(plant: Plant, script: str) -> None:
    assert hunt(plant, script) is not None


def test_there_are_enough() -> None:
    assert len({plant for plant, _ in BUGS}) >= 12
