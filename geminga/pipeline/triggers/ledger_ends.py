"""Where the ledgers ended that a stream has read, as the admin API told before they were deleted.

A ledger may end, and be deleted, between two triggers. Then only a counter tells whether something of it was
missed: how many entries were added to the topic since its broker has loaded it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from geminga.pipeline.client.topic_questions import TopicQuestions
from geminga.pipeline.client.topics import Added, Last, Ledger
from geminga.pipeline.columns.message_id import EARLIEST, MessageId
from geminga.pipeline.errors import PipelineError

VERSION = 1
_POSITIONS_MAX = 4
"""Of one topic."""
AllAdded = Callable[[list[str]], Mapping[str, Added | None]]


class _Look(NamedTuple):
    load: object
    added: Added


class _When(NamedTuple):
    """When something was asked: there is nothing new to learn until it differs."""

    load: object
    ledger_id: int
    position: MessageId | None

    def same(self, other: _When | None) -> bool:
        return other is not None and other.load is self.load and other[1:] == self[1:]


class LedgerEnds:
    """Which ledger follows the one that was read up to a position. Lives in the driver."""

    def __init__(self, questions: TopicQuestions, added_of_all: AllAdded | None) -> None:
        """Without `added_of_all`, only what `adopt` is told is known."""
        self._questions = questions
        self._added_of_all = added_of_all
        self._looks: dict[str, _Look] = {}
        self._asked: dict[str, _When] = {}
        self._next: dict[str, dict[MessageId, int]] = {}
        """By topic, of the last few positions: a micro-batch is planned after its end is known."""
        self._has_answered = False

    def next_ledger(self, topic: str, position: MessageId) -> int | None:
        """The ledger that follows, if that of `position` is known to have ended there."""
        return self._next.get(topic, {}).get(position)

    def _know(self, topic: str, position: MessageId, following: int | None) -> bool:
        """Whether there is anything to know."""
        if following is None:
            return False
        known = self._next.setdefault(topic, {})
        known[position] = following
        while len(known) > _POSITIONS_MAX:
            del known[next(iter(known))]
        return True

    def note(self, topic: str, position: MessageId, ledgers: Sequence[Ledger]) -> None:
        """These ledgers, in order, are known, and all but the last one are closed."""
        self._know(topic, position, _closed_before(position, ledgers))

    def learn(self, positions: Mapping[str, MessageId], lasts: Mapping[str, Last]) -> None:
        """Look at ledgers that began or ended, unless it is known what follows these positions. Raises
        `PipelineError` if the admin API has never answered.
        """
        if self._added_of_all is None:
            return
        asked: dict[str, _When] = {}
        for topic, position in positions.items():
            when = self._when(topic, position, lasts[topic]) if topic in lasts else None
            if when is not None and not when.same(self._asked.get(topic)):
                asked[topic] = when
        if not asked:
            return
        try:
            found = self._added_of_all(list(asked))
            self._has_answered = True
            self._questions.lasts(asked)  # tells of topics that were unloaded meanwhile
        except PipelineError:
            if not self._has_answered:
                raise
            return
        for topic, when in asked.items():
            added = found[topic]
            if added is None or self._questions.load_of(topic) is not when.load:
                continue
            self._asked[topic] = when
            look = _Look(when.load, added)
            position = positions[topic]
            self._know(topic, position, _following(position, look, self._looks.get(topic)))
            self._looks[topic] = look

    def _when(self, topic: str, position: MessageId, last: Last) -> _When | None:
        """None: there is nothing to learn."""
        if position <= EARLIEST or self.next_ledger(topic, position) is not None:
            return None
        look, load = self._looks.get(topic), self._questions.load_of(topic)
        if load is None:
            return None
        has_ended = last.message_id is None or last.message_id.ledger_id > position.ledger_id
        if look is not None and look.load is load:
            if self._know(topic, position, _following(position, look, None)):
                return None
            ledger_ids = [ledger.ledger_id for ledger in look.added.ledgers]
            is_last = position.ledger_id == ledger_ids[-1]
            if position.ledger_id in ledger_ids and not (is_last and has_ended):
                return None
        return _When(load, position.ledger_id, position if has_ended else None)

    # -- in offsets -----------------------------------------------------------------------------------------

    def text(self, positions: Mapping[str, MessageId]) -> str | None:
        """What is known of these positions, for a checkpoint."""
        found = {topic: self.next_ledger(topic, position) for topic, position in positions.items()}
        known = {topic: ledger_id for topic, ledger_id in found.items() if ledger_id is not None}
        return json.dumps({"version": VERSION, "next": known}) if known else None

    def adopt(self, text: str | None, positions: Mapping[str, MessageId]) -> None:
        """What a checkpoint knows; nothing of a version that is not known here."""
        told = json.loads(text) if text else {}
        if told.get("version") != VERSION:
            return
        for topic, ledger_id in told["next"].items():
            if topic in positions and self.next_ledger(topic, positions[topic]) is None:
                self._know(topic, positions[topic], int(ledger_id))


def _closed_before(position: MessageId, ledgers: Sequence[Ledger]) -> int | None:
    """The ledger after that of `position`, if that one has nothing at the position or behind it."""
    for ledger, after in itertools.pairwise(ledgers):
        if ledger.ledger_id == position.ledger_id and ledger.entries <= position.entry_id:
            return after.ledger_id if position.batch_index == 0 else None
    return None


def _following(position: MessageId, look: _Look, before: _Look | None) -> int | None:
    """The ledger after that of `position`, if that one ended there and nothing is missing in between."""
    if position.batch_index > 0:
        return None
    ledgers = look.added.ledgers
    if any(ledger.ledger_id == position.ledger_id for ledger in ledgers):
        return _closed_before(position, ledgers)
    if before is None or before.load is not look.load or position.ledger_id >= ledgers[0].ledger_id:
        return None
    began, ended = before.added.before(position.ledger_id), look.added.before(ledgers[0].ledger_id)
    if began is None or ended is None or ended - began != position.entry_id:
        return None
    return ledgers[0].ledger_id
