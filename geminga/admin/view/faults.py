"""What the admin API needs of the faults; `geminga.broker.operator.faults_view` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from geminga.chaos.rules.faults import RuleState
    from geminga.chaos.rules.rule import Rule


class FaultsView(Protocol):
    """All calls but `figures` raise `NotAllowed` if the broker was started without `--chaos`."""

    def check_enabled(self) -> None: ...

    def rules(self) -> Sequence[RuleState]: ...

    def get(self, rule_id: str) -> RuleState:
        """Raises `NoSuchRule`."""
        ...

    async def set(self, rule: Rule) -> RuleState:
        """Put the rule in force. A fault that acts at once has acted on return. Raises `PeerError`."""
        ...

    def clear(self, rule_id: str) -> RuleState:
        """Raises `NoSuchRule`."""
        ...

    def clear_all(self) -> Sequence[RuleState]: ...

    def in_force(self) -> Sequence[tuple[str, str, int]]:
        """(place, kind, rules), empty without `--chaos`."""
        ...

    def hits(self) -> Sequence[tuple[str, str, int]]:
        """(place, kind, hits since the start), empty without `--chaos`."""
        ...
