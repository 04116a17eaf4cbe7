"""One event, and what a reader asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from geminga.errors import PeerError
from geminga.events.kinds import KINDS

TEXT_MAX: Final = 500
"""Characters of an event's text."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """As it stands in the files and in answers."""

    sequence: int
    """Counts up by one from event to event, also over restarts, and never comes again. After a crash it goes
    on behind the next multiple of a million.
    """
    time_ms: int
    """Message time: that of the broker's clock, which may be virtual."""
    wall_ms: int
    """The machine's clock."""
    kind: str
    topic: str = ""
    subscription: str = ""
    bucket: int = -1
    """The ledger of a bucket."""
    text: str = ""
    counts: dict[str, int] = {}
    times: int = 1
    """How many events about the same thing are joined in this one; its counts are those of the last."""

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return 600 + len(self.topic) + len(self.subscription) + 4 * len(self.text)


class InvalidFilter(PeerError):
    http_status = 400


class Filter(NamedTuple):
    """Which events a reader wants. Empty: all."""

    kinds: frozenset[str] = frozenset()
    topic: str = ""
    """A full name, or its beginning and `*`."""
    subscription: str = ""

    def check(self) -> None:
        """Raises InvalidFilter for a kind that does not exist."""
        unknown = sorted(self.kinds - KINDS.keys())
        if unknown:
            raise InvalidFilter(f"kind: there is no {unknown[0][:100]!r}; there are {', '.join(KINDS)}")

    def wants(self, event: Event) -> bool:
        return (
            (not self.kinds or event.kind in self.kinds)
            and self.subscription in ("", event.subscription)
            and (
                event.topic.startswith(self.topic[:-1])
                if self.topic.endswith("*")
                else self.topic in ("", event.topic)
            )
        )

    def of(self, events: Iterable[Event]) -> Iterator[Event]:
        return filter(self.wants, events)
