"""The operator's rules of faults: `admin.view.faults.FaultsView`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from geminga.errors import NotAllowed

if TYPE_CHECKING:
    from geminga.broker.topic.topics import Topics
    from geminga.chaos.rules.faults import Faults, RuleState
    from geminga.chaos.rules.rule import Rule
    from geminga.clock import Clock

NOT_ENABLED = "faults are injected only where the broker was started with --chaos"


class FaultsOperator:
    """`faults` is None without `--chaos`."""

    def __init__(self, faults: Faults | None, topics: Topics, clock: Clock) -> None:
        self._faults = faults
        self._clock = clock
        self._topics = topics

    def check_enabled(self) -> None:
        self._enabled()

    def _enabled(self) -> Faults:
        if self._faults is None:
            raise NotAllowed(NOT_ENABLED)
        return self._faults

    def get(self, rule_id: str) -> RuleState:
        return self._enabled().get(rule_id)

    async def set(self, rule: Rule) -> RuleState:
        faults = self._enabled()
        # Only a broker with faults needs it.
        from geminga.broker.operator.faults_at_once import act, acts_at_once

        if rule.place == "clock" and self._clock.is_virtual:
            from geminga.chaos.rules.rule import InvalidRule

            raise InvalidRule(f"clock/{rule.kind}: the clock is virtual; 'geminga clock' moves it")
        state = faults.set(rule)
        if not acts_at_once(rule):
            return state

        try:
            await act(state.rule, self._topics)
        except BaseException:
            faults.clear(state.rule.id)
            raise
        return faults.struck(state.rule.id)

    def clear(self, rule_id: str) -> RuleState:
        return self._enabled().clear(rule_id)

    def clear_all(self) -> Sequence[RuleState]:
        return self._enabled().clear_all()

    def in_force(self) -> Sequence[tuple[str, str, int]]:
        return [] if self._faults is None else list(self._faults.in_force())

    def hits(self) -> Sequence[tuple[str, str, int]]:
        return [] if self._faults is None else list(self._faults.hits())

    def rules(self) -> Sequence[RuleState]:
        return self._enabled().rules()
