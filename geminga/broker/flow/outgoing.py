"""What leaves at the end of a turn of the loop: the outboxes that were written to in it, each in one write.

To wake a task for each would cost a further turn of the loop, which is most of what a single message costs.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from geminga.broker.flow.outbox import Outbox


class Outgoing:
    """One per broker."""

    __slots__ = ("_outboxes", "is_sending")

    def __init__(self) -> None:
        self._outboxes: list[Outbox] = []
        """At most one place for each connection."""
        self.is_sending = False
        """Whether `send_all` is called at the end of each turn: else nothing may be added."""

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Meanwhile the caller has `send_all` called at the end of each turn."""
        self.is_sending = True
        try:
            yield
        finally:
            self.is_sending = False
            self.send_all()

    def add(self, outbox: Outbox) -> None:
        """Have `outbox.send_now()` called at the end of this turn."""
        self._outboxes.append(outbox)

    def send_all(self) -> None:
        """At the end of a turn."""
        if self._outboxes:
            outboxes, self._outboxes = self._outboxes, []
            for outbox in outboxes:
                outbox.send_now()
