"""What is missing between two entries of a topic: deleted unread, or never to be seen by a reader.

Brokers leave out what a reader must not see: markers and aborted messages of transactions. They delete
whole ledgers, the oldest first. So messages can be lost only between two ledgers, and only if the first one
is gone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from geminga.pipeline.client.topic_questions import TopicQuestions
from geminga.pipeline.columns.entries import Entries
from geminga.pipeline.columns.message_id import EARLIEST, MessageId
from geminga.pipeline.errors import ADMIN_URL, ALLOW_LOSS, WARN_OF_UNKNOWN_END, Access, DataLost
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.triggers.ledgers import Ledgers

DELETED = (
    "was deleted (perhaps because it was unused for a while; a subscription keeps it) or trimmed. ",
    ALLOW_LOSS,
    " to continue with the remaining messages",
)
_SET_ALLOW_LOSS = replace(ALLOW_LOSS, verb="set")
_TRIMMED = (
    "the rest was trimmed (retention, TTL, or a cleared backlog), "
    "or the topic was deleted and created again. "
)


class Gaps:
    """Checks the entries of one range as they come. Close it."""

    def __init__(self, access: Access, wanted: Range) -> None:
        self._access = access
        self._wanted = wanted
        self._questions: TopicQuestions | None = None
        """Opened for the first gap that the range says nothing of."""

    def close(self) -> None:
        if self._questions is not None:
            self._questions.close()

    def check(self, entries: Entries, due: tuple[int, int], *, begins: bool, reconnected: bool) -> None:
        """`due` is the entry that is next. `begins`: nothing of the range has come yet; `reconnected`:
        nothing has come over this connection. Raises `DataLost`.
        """
        wanted = self._wanted
        if not wanted.is_guarded:
            return
        first = int(entries.ledger_id[0]), int(entries.entry_id[0])
        if first > due:
            if not begins or (wanted.start > EARLIEST and (wanted.strict or wanted.check_previous)):
                self._check_gap(due, first, begins=begins)
            if reconnected and wanted.ends_with_message and first >= wanted.past:
                self._check_last(first)
        for row in np.flatnonzero(np.diff(entries.ledger_id)).tolist():
            last = int(entries.ledger_id[row]), int(entries.entry_id[row]) + 1
            following = int(entries.ledger_id[row + 1]), int(entries.entry_id[row + 1])
            if due <= last < wanted.end.entry:
                self._check_gap(last, following, begins=False)

    def nothing_is_left(self) -> DataLost:
        """For a topic that is empty."""
        return self._lost(f"nothing is left of it: {_TRIMMED}")

    def _check_gap(self, due: tuple[int, int], first: tuple[int, int], *, begins: bool) -> None:
        """`first` came, which is behind `due`."""
        wanted, (ledger_id, entry_id) = self._wanted, due
        if first[0] == ledger_id:
            return
        acknowledged = wanted.acknowledged if begins else None
        if acknowledged is not None and first <= (acknowledged[0], acknowledged[1] + 1):
            return
        inside = begins and wanted.start.batch_index > 0
        length = wanted.length(ledger_id)
        following = wanted.next_ledger if begins else None
        if length is not None and length <= entry_id and not inside:
            following = wanted.ledger_after(ledger_id)
            if following is None:
                return  # the range ends there
        if following is not None and first[0] <= following:
            return
        left = self._left(ledger_id, first[0])
        if ledger_id in left or following in left:
            return
        at = wanted.start if begins else MessageId(ledger_id, entry_id, 0)
        what = f"but the first that is left is {first[0]}:{first[1]}"
        if inside or entry_id == 0 or length is not None or wanted.unknown_end == "lost":
            raise self._lost(f"messages from {at} on were asked for, {what}: {_TRIMMED}")
        text = (
            f"{wanted.topic} was read up to {at}, {what}, and ledger {ledger_id} was deleted. Either it "
            "ended there and nothing is missing, or messages behind it were deleted unread (retention, TTL, "
            "a cleared backlog, or the topic was deleted and created again). "
        )
        if wanted.unknown_end == "fail":
            raise DataLost(
                text,
                WARN_OF_UNKNOWN_END,
                " to go on with a warning, or ",
                _SET_ALLOW_LOSS,
                " to go on silently. A running stream can tell if it has ",
                ADMIN_URL,
                " or a subscription of its own",
            )
        warnings.warn(f"{text}The query goes on, because unknownLedgerEnd is warn", stacklevel=2)

    def _check_last(self, first: tuple[int, int]) -> None:
        """Only what is behind the end came: no reader sees what was before it, or that is gone."""
        wanted, end = self._wanted, self._wanted.end
        in_last_ledger = end.entry_id + end.batch_index > 0
        if in_last_ledger and first[0] == end.ledger_id:
            return
        if self._left(end.ledger_id if in_last_ledger else -1, min(first[0], end.ledger_id + in_last_ledger)):
            return
        raise DataLost(
            f"{wanted.topic}: messages up to {end} were there when the query was planned, but the "
            f"first that is left is {first[0]}:{first[1]}: the topic ",
            *DELETED,
        )

    def _left(self, from_ledger: int, before: int) -> Sequence[int]:
        """The ledgers with entries that are left in front of the ledger `before`, back to `from_ledger`."""
        if self._questions is None:
            self._questions = TopicQuestions(self._access)
        topic = self._wanted.topic
        asked = {topic: (MessageId(from_ledger, 0, 0), MessageId(before, 0, 0))}
        found = Ledgers(self._questions).between(asked)[topic]
        if found is None:
            return [from_ledger]  # there are so many that this one is left, too
        return [ledger.ledger_id for ledger in found if ledger.ledger_id < before]

    def _lost(self, text: str) -> DataLost:
        return DataLost(
            f"{self._wanted.topic}: {text}",
            ALLOW_LOSS,
            " to go on without them, or start from 'earliest' (a stream: with a new checkpoint)",
        )
