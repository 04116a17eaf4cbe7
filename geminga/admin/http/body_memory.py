"""What the bodies of all requests and answers under way take together, and a bound for requests. Pure."""

from __future__ import annotations

from typing import Final

from geminga.errors import PeerError
from geminga.limits import KIB, MIB

BODIES_BYTES_MAX: Final = 8 * MIB
"""Of all connections together, beyond the share that each of them has for itself."""
OWN_BYTES: Final = 16 * KIB
"""Of each body, not counted: most requests bring less, and are read however many large ones are under way."""


class TooManyBodies(PeerError):
    http_status = 503

    def __init__(self) -> None:
        super().__init__("too many large requests are under way; try again")


class BodyMemory:
    """What is counted for all bodies that are read, being answered, or sent, on one port."""

    def __init__(self) -> None:
        self.held_bytes = 0
        """Of requests, beyond each one's own share."""
        self.sending_bytes = 0
        """Of answers, or parts of them, that wait until their peer takes them."""

    def hold(self, before_bytes: int, size_bytes: int) -> None:
        """A body grows from one size to another. Raises `TooManyBodies`; then nothing is counted."""
        more = _counted(size_bytes) - _counted(before_bytes)
        if more and self.held_bytes + more > BODIES_BYTES_MAX:
            raise TooManyBodies
        self.held_bytes += more

    def send(self, size_bytes: int) -> None:
        """So much of an answer waits for its peer, until `sent`."""
        self.sending_bytes += size_bytes

    def sent(self, size_bytes: int) -> None:
        """The peer has taken it, or is gone."""
        self.sending_bytes -= size_bytes

    def release(self, size_bytes: int) -> None:
        """A body of that size is gone."""
        self.held_bytes -= _counted(size_bytes)


def _counted(size_bytes: int) -> int:
    return max(0, size_bytes - OWN_BYTES)
