"""A virtual clock over restarts, a few times; `clock_restarts.py` does it many times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.broker_process import BrokerProcess
from tests.e2e.delays.clock_restarts import (
    LEAP_MS_MAX,
    killed_within_a_move,
    leap_after_a_move_ms,
    leap_within_a_move_ms,
)

pytestmark = pytest.mark.geminga_only


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", arguments=["--clock", "virtual"]) as process:
        yield process


def test_an_orderly_restart_is_no_leap(broker: BrokerProcess) -> None:
    assert abs(leap_after_a_move_ms(broker)) <= LEAP_MS_MAX
    assert abs(leap_within_a_move_ms(broker, day=2)) <= LEAP_MS_MAX


def test_after_a_kill_in_a_move_the_clock_is_at_its_target_once(broker: BrokerProcess) -> None:
    killed = killed_within_a_move(broker, day=1, twice=True)
    assert killed is not None
    assert killed.is_within_bounds, killed
