"""Which entries a driver looks at to admit a micro-batch, and how far it admits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from geminga.pipeline.client.shared_connection import EntryFacts
from geminga.pipeline.client.topic_questions import TopicQuestions
from geminga.pipeline.columns.message_id import MessageId
from geminga.pipeline.triggers.samples import Limit, Piece, Reach, Samples, pieces, reach
from geminga.pipeline.triggers.windows import Window

ENTRIES_PER_LOOK = 100
"""One of so many admitted entries is looked at, at most."""
LOOKS_OF_TOPIC_MAX = 15
"""Of one topic in one trigger, beside its first entry."""
LOOKS_MAX = 256
"""In one trigger, for each of the reasons to look."""
FIRST_LOOKS_MAX = 64
"""Topics of which nothing is known that are looked at in one trigger; others are taken for like them."""
UNKNOWN_LOOKS = 2
"""Of them where nothing is known of any, whatever is admitted."""


class Unread(NamedTuple):
    """What a topic has for a micro-batch."""

    start: MessageId
    window: Window


class Sampling:
    """Lives as long as the stream: what it has seen of a topic it keeps."""

    def __init__(self, questions: TopicQuestions) -> None:
        self._questions = questions
        self._samples: dict[str, Samples] = {}
        self._since: dict[str, int] = {}
        """Entries of each topic that were admitted since it was last looked at."""

    def admit(self, unread: Mapping[str, Unread], limit: Limit) -> dict[str, MessageId]:
        """Where each topic is to stop, those first that come first, for which there is anything in the limit;
        at least one. Spends the limit. Raises `PipelineError`.
        """
        unread = {topic: each for topic, each in unread.items() if each.window.entries}
        if not unread or limit.is_spent:
            return {}
        share = limit.share(len(unread))
        if limit.rows is not None or not all(each.window.has_sizes for each in unread.values()):
            self.look_first(unread, share)
            self._look_between(unread, share)
            self._look_inside(unread, share)
        found: dict[str, MessageId] = {}
        admitted: dict[str, Reach] = {}
        waiting = list(unread)
        while waiting:
            before = dict(admitted)
            for index, topic in enumerate(waiting):
                if limit.is_spent:
                    break
                self._admit_more(topic, unread[topic], limit, len(waiting) - index, found, admitted)
            # What those with little to read have left goes to the others.
            unfinished = [
                topic
                for topic in waiting
                if topic not in admitted or admitted[topic].entries < unread[topic].window.entries
            ]
            waiting = [] if limit.is_spent or admitted == before else unfinished
        if not found:
            topic, each = next(iter(unread.items()))
            ledger_id, entry_id = each.window.entry(0)
            found[topic] = MessageId(ledger_id, entry_id + 1, 0)
        return found

    def _admit_more(
        self,
        topic: str,
        unread: Unread,
        limit: Limit,
        parts: int,
        found: dict[str, MessageId],
        admitted: dict[str, Reach],
    ) -> None:
        """One part of so many of what is left of the limit, beyond what is admitted of the topic."""
        before = admitted.get(topic, Reach(0, 0.0, 0.0))
        share = limit.share(parts)
        share.spend(-before.rows, -before.size_bytes)
        message_id, reached = self._stop(topic, unread, share)
        if message_id is None or reached <= before:
            return
        found[topic], admitted[topic] = message_id, reached
        limit.spend(reached.rows - before.rows, reached.size_bytes - before.size_bytes)
        self._since[topic] = self._since.get(topic, 0) + reached.entries - before.entries

    def size(self, topic: str, window: Window) -> Reach:
        """What all of a window is thought to hold, without looking; nothing where nothing is known."""
        return reach(self._pieces(topic, window), Limit())

    def _stop(self, topic: str, unread: Unread, limit: Limit) -> tuple[MessageId | None, Reach]:
        window, start = unread.window, unread.start
        first = window.entry(0)
        read_rows = start.batch_index if start.entry == first else 0
        found = reach(self._pieces(topic, window), limit, read_rows)
        if found.entries:
            ledger_id, entry_id = window.entry(found.entries - 1)
            return MessageId(ledger_id, entry_id + 1, 0), found
        facts = self._of(topic).at(first)
        if facts is None or limit.rows is None or facts.rows - read_rows <= limit.rows:
            return None, found
        inside = MessageId(*first, read_rows + int(limit.rows))
        return inside, Reach(1, int(limit.rows), facts.size_bytes)

    # -- looking --------------------------------------------------------------------------------------------

    def look_first(self, unread: Mapping[str, Unread], share: Limit) -> None:
        """At topics of which nothing is known, and those of which it is a while ago."""
        due = [topic for topic in unread if self._since.get(topic, 0) >= ENTRIES_PER_LOOK][:LOOKS_MAX]
        unknown = [topic for topic in unread if not self._of(topic).entries]
        if not self._typical():
            some, unknown = unknown[:UNKNOWN_LOOKS], unknown[UNKNOWN_LOOKS:]
            self._look({topic: [0] for topic in some}, unread)
        admitted = sum(self._admitted(topic, each, share) for topic, each in unread.items())
        count = min(admitted // ENTRIES_PER_LOOK, FIRST_LOOKS_MAX)
        self._look({topic: [0] for topic in (*unknown[:count], *due)}, unread)

    def _admitted(self, topic: str, unread: Unread, share: Limit) -> int:
        return reach(self._pieces(topic, unread.window), share, unread.start.batch_index).entries

    def _look_between(self, unread: Mapping[str, Unread], share: Limit) -> None:
        """At entries spread over what is about to be admitted."""
        ordinals: dict[str, list[int]] = {}
        left = LOOKS_MAX
        for topic, each in unread.items():
            admitted = self._admitted(topic, each, share)
            count = min(admitted // ENTRIES_PER_LOOK - 1, LOOKS_OF_TOPIC_MAX, left)
            if count > 0:
                ordinals[topic] = [(number + 1) * admitted // (count + 1) for number in range(count)]
                left -= count
        self._look(ordinals, unread)

    def _look_inside(self, unread: Mapping[str, Unread], share: Limit) -> None:
        """At the first entries of which a limit allows only a part."""
        if share.rows is None:
            return
        ordinals: dict[str, list[int]] = {}
        for topic, each in unread.items():
            if len(ordinals) == LOOKS_MAX:
                break
            if self._of(topic).at(each.window.entry(0)) is None and not self._admitted(topic, each, share):
                ordinals[topic] = [0]
        self._look(ordinals, unread)

    def _look(self, ordinals: Mapping[str, Sequence[int]], unread: Mapping[str, Unread]) -> None:
        asked = [
            (topic, MessageId(*unread[topic].window.entry(ordinal), 0))
            for topic, some in ordinals.items()
            for ordinal in some
        ]
        for (topic, _), facts in zip(asked, self._questions.first_entries(asked), strict=True):
            if facts is not None:
                self._of(topic).add(facts)
                self._since[topic] = 0
        for topic in ordinals:
            self._of(topic).forget_before(unread[topic].window.entry(0))

    def _of(self, topic: str) -> Samples:
        return self._samples.setdefault(topic, Samples())

    def _pieces(self, topic: str, window: Window) -> list[Piece]:
        samples = self._of(topic).entries or self._typical()
        return pieces(window, samples or [EntryFacts(0, 0, 1.0, 0, 0)])

    def _typical(self) -> list[EntryFacts]:
        """What an entry holds on average, of the last that was looked at in each topic."""
        last = [each.entries[-1] for each in self._samples.values() if each.entries]
        if not last:
            return []
        rows = sum(facts.rows for facts in last) / len(last)
        return [EntryFacts(0, 0, rows, sum(facts.size_bytes for facts in last) // len(last), 0)]
