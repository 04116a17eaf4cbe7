"""What our own client could not do, in words for the user of a command."""

from __future__ import annotations

from geminga.client.refusal import Refusal
from geminga.errors import GemingaError


class ClientError(GemingaError):
    """What a command of ours could not do, in words for its user."""


class Refused(ClientError):
    """The broker answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(str(Refusal(code, text)))
        self.code = code


class ConnectionLost(ClientError):
    """The connection ended while something was still expected of it."""
