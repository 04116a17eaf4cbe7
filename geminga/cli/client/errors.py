"""What our own client could not do, in words for the user of a command."""

from __future__ import annotations

from geminga.errors import GemingaError, ServerError


class ClientError(GemingaError):
    """What a command of ours could not do, in words for its user."""


class Refused(ClientError):
    """The broker answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        name = ServerError(code).name if code in ServerError.__members__.values() else str(code)
        super().__init__(f"the broker refused ({name}): {text}")
        self.code = code


class ConnectionLost(ClientError):
    """The connection ended while something was still expected of it."""
