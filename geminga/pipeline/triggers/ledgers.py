"""How long the ledgers of topics are, asked for many topics at once and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from geminga.pipeline.client.topic_questions import TopicQuestions
from geminga.pipeline.client.topics import Ledger
from geminga.pipeline.columns.message_id import MessageId

STEPS_MAX = 10_000
"""Ledgers of one topic that are asked for one after the other."""

Sizes = Callable[[list[str]], Mapping[str, list[Ledger]]]
"""All ledgers of each topic with their bytes."""


class Ledgers:
    """By the admin API where there is one, else by asking what comes before each ledger, from the last one
    on. What is known of closed ledgers is kept: they never change.
    """

    def __init__(self, questions: TopicQuestions, sizes: Sizes | None = None) -> None:
        self._questions = questions
        self._sizes = sizes
        self._before: dict[str, dict[int, Ledger]] = {}
        """Topic -> ledger -> the one before it; of a negative id: there is none."""
        self._known: dict[str, dict[int, Ledger]] = {}
        """With bytes, as the admin API told."""

    def between(self, wanted: Mapping[str, tuple[MessageId, MessageId]]) -> dict[str, list[Ledger] | None]:
        """For each topic the ledgers between two message ids, in order; the last one ends at the second id.
        None: there are too many to ask for. Raises `PipelineError`.
        """
        if self._sizes is not None:
            return dict(self._told(wanted))
        return self._walked(wanted)

    def _told(self, wanted: Mapping[str, tuple[MessageId, MessageId]]) -> dict[str, list[Ledger]]:
        assert self._sizes is not None
        unknown = [
            topic for topic, (_, end) in wanted.items() if end.ledger_id not in self._known.get(topic, {})
        ]
        for topic, ledgers in self._sizes(unknown).items():
            self._known[topic] = {ledger.ledger_id: ledger for ledger in ledgers}
        found = {}
        for topic, (start, end) in wanted.items():
            kept = self._known.setdefault(topic, {})
            last = kept.get(end.ledger_id)
            each = last.size_bytes / max(last.entries, 1) if last is not None else 0
            entries = _entries_at(end)
            kept[end.ledger_id] = Ledger(end.ledger_id, entries, int(each * entries))
            found[topic] = [
                ledger
                for ledger_id, ledger in sorted(kept.items())
                if start.ledger_id <= ledger_id <= end.ledger_id
            ]
        return found

    def _walked(self, wanted: Mapping[str, tuple[MessageId, MessageId]]) -> dict[str, list[Ledger] | None]:
        found: dict[str, list[Ledger] | None] = {
            topic: [Ledger(end.ledger_id, _entries_at(end))] for topic, (_, end) in wanted.items()
        }
        waiting = {topic: end.ledger_id for topic, (_, end) in wanted.items()}
        for _ in range(STEPS_MAX):
            waiting = {topic: at for topic, at in waiting.items() if at > wanted[topic][0].ledger_id}
            if not waiting:
                break
            self._ask([(topic, at) for topic, at in waiting.items() if at not in self._of(topic)])
            for topic, at in list(waiting.items()):
                before = self._of(topic)[at]
                waiting[topic] = before.ledger_id
                ledgers = found[topic]
                if before.ledger_id >= max(wanted[topic][0].ledger_id, 0) and ledgers is not None:
                    ledgers.insert(0, before)
        else:
            found |= dict.fromkeys(waiting)
        for topic, (start, _) in wanted.items():
            kept = self._of(topic)
            for ledger_id in [each for each in kept if each <= start.ledger_id]:
                del kept[ledger_id]
        return found

    def _of(self, topic: str) -> dict[int, Ledger]:
        return self._before.setdefault(topic, {})

    def _ask(self, asked: list[tuple[str, int]]) -> None:
        for (topic, at), (ledger_id, entry_id) in zip(asked, self._questions.last_before(asked), strict=True):
            before = Ledger(ledger_id, entry_id + 1) if entry_id >= 0 and ledger_id < at else Ledger(-1, 0)
            self._of(topic)[at] = before


def _entries_at(end: MessageId) -> int:
    return end.entry_id + (1 if end.batch_index else 0)
