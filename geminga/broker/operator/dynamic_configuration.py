"""Settings that change while the broker runs: stored in a document, in effect on return and after every
start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geminga.broker.policies.documents import ABSENT, DYNAMIC_CONFIGURATION, Documents
from geminga.broker.policies.policies import EffectivePolicies, Policies
from geminga.broker.policies.values import PolicyInvalid
from geminga.config.config import Config

BROKER = "broker"


def stored_values(documents: Documents) -> dict[str, str]:
    """The values that were changed and not removed."""
    found = documents.get(DYNAMIC_CONFIGURATION, BROKER)
    return {} if found is ABSENT else dict(found)


class DynamicConfiguration:
    """The current settings of one broker."""

    def __init__(
        self,
        config: Config,
        documents: Documents,
        policies: Policies,
        policies_of: Callable[[Config], EffectivePolicies],
    ) -> None:
        """`config` is the configuration of the start; `policies_of` returns a configuration's default
        policies for topics.
        """
        self._started_with = config
        self._documents = documents
        self._policies = policies
        self._policies_of = policies_of

    def names(self) -> list[str]:
        """Settings that may be changed at run time, sorted."""
        from geminga.config.dynamic import DYNAMIC

        return sorted(DYNAMIC)

    def values(self) -> dict[str, str]:
        return stored_values(self._documents)

    def current(self) -> Config:
        """The configuration with all changes."""
        values = self.values()
        if not values:
            return self._started_with
        from geminga.config.dynamic import with_values

        return with_values(self._started_with, values)

    def follow(self) -> None:
        """Apply earlier changes; call this once, at the start."""
        if self.values():
            self._policies.use_defaults(self._policies_of(self.current()))

    async def set(self, key: str, text: str) -> bool:
        """Set a value, durable and in effect on return. Returns False if it has no effect here. Raises
        `PolicyInvalid` if the setting may not be changed at run time, or not to this value.
        """
        from geminga.config.dynamic import DYNAMIC, EFFECTIVE, checked

        if key not in DYNAMIC:
            raise PolicyInvalid("Can't update non-dynamic configuration")
        try:
            checked(key, text)
        except ValueError as error:
            raise PolicyInvalid(f"Invalid dynamic-config value: {error}") from None
        await self._change(lambda values: {**values, key: text})
        return key in EFFECTIVE

    async def unset(self, key: str) -> None:
        """Restore the value of the start; may be repeated. Raises `PolicyInvalid` as `set` does."""
        from geminga.config.dynamic import DYNAMIC

        if key not in DYNAMIC:
            raise PolicyInvalid("Can't delete non-dynamic configuration")
        await self._change(lambda values: {name: text for name, text in values.items() if name != key})

    async def _change(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        def changed(old: Any) -> Any:
            return change({} if old is ABSENT else old) or ABSENT

        await self._documents.change(DYNAMIC_CONFIGURATION, BROKER, change=changed)
        await self._policies.change_defaults(self._policies_of(self.current()))
