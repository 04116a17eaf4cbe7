"""What a broker once could do without being found out, and what an honest one was accused of."""

from __future__ import annotations

from geminga.cli.chaos.checking.scenario import Scenario, Step
from tests.cli.chaos.story import BEGAN_MS, Story

# -- keys ----------------------------------------------------------------------------------------------------


def test_a_key_may_be_at_a_consumer_of_each_partition() -> None:
    story = Story("Key_Shared", messages=2, keys=1)
    story.deliver(0, 1000, partition=0, acked_ms=1100).acknowledge(BEGAN_MS + 1099)
    story.deliver(1, 1050, partition=1, session=1, acked_ms=1100)
    story.finds()
    story.got[1].partition = 0
    story.finds(two_at_a_key=1)


def test_an_answer_may_take_as_long_as_a_scenario_holds_the_broker_up() -> None:
    assert Scenario(name="s").holds_up_ms == 0
    rule = {"place": "process", "kind": "pause", "latencyMs": 9_000, "jitterMs": 500}
    steps = [Step(do="pause", length=7_000), Step(do="fault", rule=rule), Step(do="advance", length=90_000)]
    assert Scenario(name="s", steps=steps).holds_up_ms == 9_500
