"""The tests tested: bugs put in on purpose are noticed.

`python -m tests.chaos.planted_bugs` prints the table.
"""

from __future__ import annotations

import pytest

from tests.chaos.bookie_bugs import BY_CRASHES, BY_FLIPS, BY_LOST_INDEXES, Plant
from tests.chaos.compaction_bugs import COMPACTION_BUGS
from tests.chaos.planted_bugs import cases_for, cases_in_order, hunt, hunt_by_flips

CASES = 600


@pytest.fixture(scope="module")
def cases() -> list[str]:
    return cases_in_order()[:CASES]


@pytest.mark.parametrize(
    "plant", [*BY_CRASHES, *COMPACTION_BUGS, *BY_LOST_INDEXES], ids=lambda plant: plant.__name__
)
def test_the_campaign_catches(plant: Plant, cases: list[str]) -> None:
    assert hunt(plant, cases_for(plant, cases)) is not None


@pytest.mark.parametrize("plant", BY_FLIPS, ids=lambda plant: plant.__name__)
def test_the_flips_catch(plant: Plant) -> None:
    assert hunt_by_flips(plant) is not None


def test_there_are_enough() -> None:
    names = {plant.__name__ for plant in (*BY_CRASHES, *COMPACTION_BUGS, *BY_LOST_INDEXES, *BY_FLIPS)}
    assert len(names) >= 15


def test_without_a_bug_nothing_is_caught(cases: list[str]) -> None:
    assert hunt(lambda patch: None, cases[:50]) is None
