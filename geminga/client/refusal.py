"""An error in a broker's answer. Separate from the session, because errors use it and need no protobuf."""

from __future__ import annotations

from typing import NamedTuple

from geminga.errors import ServerError


class Refusal(NamedTuple):
    """`code` is a `ServerError` if it is known; newer brokers may have others."""

    code: int
    text: str

    def __str__(self) -> str:
        known = self.code in ServerError.__members__.values()
        name = ServerError(self.code).name if known else str(self.code)
        return f"the broker refused ({name}): {self.text}"
