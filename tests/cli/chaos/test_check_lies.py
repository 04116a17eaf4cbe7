"""What a broker once could do without being found out, and what an honest one was accused of."""

from __future__ import annotations

from geminga.cli.chaos.checking.scenario import Scenario, Step


def test_an_answer_may_take_as_long_as_a_scenario_holds_the_broker_up() -> None:
    assert Scenario(name="s").holds_up_ms == 0
    rule = {"place": "process", "kind": "pause", "latencyMs": 9_000, "jitterMs": 500}
    steps = [Step(do="pause", length=7_000), Step(do="fault", rule=rule), Step(do="advance", length=90_000)]
    assert Scenario(name="s", steps=steps).holds_up_ms == 9_500
