"""Which topics a command is about: one, its partitions, or all that match a pattern."""

from __future__ import annotations

import re

from geminga.cli.client.client import Client
from geminga.cli.client.errors import ClientError
from geminga.names import NamespaceName

_DOMAIN = re.compile(r"^(persistent|non-persistent)://")


class Pattern:
    """A regular expression over the names of a namespace's topics, as pulsar-client's `--regex` takes it:
    `persistent://tenant/namespace/orders-.*`, or only its last part in public/default.
    """

    def __init__(self, given: str) -> None:
        bare = _DOMAIN.sub("", given)
        parts = bare.split("/", 2)
        if len(parts) < 3:
            parts = ["public", "default", bare]
        self.namespace = str(NamespaceName.parse(f"{parts[0]}/{parts[1]}"))
        try:
            self._expression = re.compile(parts[2])
        except re.error as error:
            raise ClientError(f"{parts[2]!r} is no regular expression: {error}") from None

    def matches(self, topic: str) -> bool:
        """`topic` in full; of a partition the name without its number counts."""
        local = _DOMAIN.sub("", topic).split("/", 2)[-1]
        return self._expression.fullmatch(re.sub(r"-partition-\d+$", "", local)) is not None

    async def topics(self, client: Client) -> list[str]:
        """Those that exist now, partitions one by one."""
        return sorted(name for name in await client.topics(self.namespace) if self.matches(name))
