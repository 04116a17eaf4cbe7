"""The part of one topic that a task reads, and what is known of it: travels from the driver to a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from geminga.pipeline.client.topics import Ledger
from geminga.pipeline.columns.message_id import MessageId

UnknownEnd: TypeAlias = Literal["lost", "fail", "warn"]
"""What it is that a ledger was read up to some entry and is gone, if its length is not known: lost, if the
plan could have known; an error that names the option; or a warning.
"""


@dataclass(frozen=True)
class Range:
    """The part of one topic or partition to read: from `start` up to, not including, `end`."""

    topic: str
    start: MessageId
    end: MessageId
    strict: bool = False
    """The entry of `start` exists, or did: if its ledger is gone, messages were lost."""
    check_previous: bool = False
    """Messages up to `start` were read before: if their ledger is gone, later messages of it may be, too."""
    ends_with_message: bool = False
    """The message before `end` existed when this was planned: if only later ones arrive,
    and its ledger is gone, messages were lost.
    """
    closed: tuple[Ledger, ...] = ()
    """Ledgers of the range that were closed when this was planned, in order, with their lengths."""
    next_ledger: int | None = None
    """The ledger of `start` ended there: what comes next is in this ledger, or behind it if it is empty."""
    unknown_end: UnknownEnd = "fail"
    published_from_ms: int | None = None
    published_before_ms: int | None = None
    """The period of publishing to which the messages of the range are restricted."""
    loss_allowed: bool = False
    """Whether missing messages are left out silently."""
    acknowledged: tuple[int, int] | None = None
    """Entries up to this position may be gone without a loss: the stream's own subscription has acknowledged
    them.
    """

    @property
    def is_guarded(self) -> bool:
        """Whether messages that are missing are noticed."""
        return not self.loss_allowed and (self.strict or self.check_previous or self.ends_with_message)

    def ledger_after(self, ledger_id: int) -> int | None:
        """The next ledger that is known to have messages of the range."""
        known = [ledger.ledger_id for ledger in self.closed if ledger.ledger_id > ledger_id]
        if self.end.ledger_id > ledger_id and self.end.entry_id + self.end.batch_index > 0:
            known.append(self.end.ledger_id)
        return min(known, default=None)

    def length(self, ledger_id: int) -> int | None:
        """The entries of a ledger that was closed."""
        return next((each.entries for each in self.closed if each.ledger_id == ledger_id), None)

    @property
    def past(self) -> tuple[int, int]:
        """The first entry of which nothing is wanted."""
        return self.end.ledger_id, self.end.entry_id + (self.end.batch_index > 0)
