"""When the steps of a scenario are done."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from geminga.cli.chaos.checking.history import History
from geminga.cli.chaos.checking.scenario import Step, parse_scenario
from geminga.cli.chaos.running.doing import LOOK_SECONDS_MAX, Steps
from geminga.cli.chaos.running.target import RemoteTarget

TWO = """
[[consumers]]
subscription = "s"
[[steps]]
do = "burst"
messages = 1
[[steps]]
do = "burst"
messages = 2
at = "1s"
"""


async def test_steps_do_not_wait_for_a_broker_that_is_slow_to_show_its_metrics(
    autojump_clock: MockClock,
) -> None:
    done: list[tuple[int, float]] = []
    began_s = trio.current_time()

    def burst(step: Step) -> None:
        done.append((step.messages, trio.current_time() - began_s))

    async def grow(partitions: int) -> None:
        raise AssertionError

    steps = Steps(
        parse_scenario(TWO, "two"), RemoteTarget("", ""), History(0), [], burst, grow, partial(trio.sleep, 60)
    )
    await steps.run()
    assert done == [(1, pytest.approx(LOOK_SECONDS_MAX)), (2, pytest.approx(1 + LOOK_SECONDS_MAX))]
