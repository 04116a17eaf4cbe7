"""Plans each trigger of a stream: offsets, limits, new partitions, lost data, acknowledgements."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from geminga.clock import RealClock
from geminga.pipeline.client.topic_questions import TopicQuestions
from geminga.pipeline.client.topics import Last, full_name
from geminga.pipeline.columns.message_id import EARLIEST, LATEST, MessageId, parse
from geminga.pipeline.errors import ALLOW_LOSS, DataLost, PipelineError, TopicMissing
from geminga.pipeline.topics.acknowledging import Subscriptions
from geminga.pipeline.topics.admission import advance
from geminga.pipeline.topics.offset_options import EARLIEST_TEXT, of_topic
from geminga.pipeline.topics.options import Options
from geminga.pipeline.topics.planning import (
    added_by,
    check_splits,
    check_topics,
    partitions,
    sizes_by,
    split,
)
from geminga.pipeline.topics.publish_times import MessageIdsByTime, Published
from geminga.pipeline.topics.ranges import Range, UnknownEnd
from geminga.pipeline.topics.splitting import SPLITTING_OFFSETS, Splitting
from geminga.pipeline.triggers.lag import BEHIND, Lag, totals
from geminga.pipeline.triggers.ledger_ends import LedgerEnds
from geminga.pipeline.triggers.ledgers import Ledgers
from geminga.pipeline.triggers.samples import Limit
from geminga.pipeline.triggers.sampling import Sampling, Unread
from geminga.pipeline.triggers.waiting import Rest, Waiting
from geminga.pipeline.triggers.windows import Window
from geminga.pipeline.values.schemas import TopicSchema, with_topics

_OLDEST_LOOKS = 2
"""The number of topics, those furthest behind, whose oldest unread message is read to compute the lag."""
_ENDS_MAX = 4
"""Of one topic: a micro-batch begins where an earlier one ended, and may be planned again."""
_CLOCK = RealClock()
Offsets = dict[str, str]
"""By partition, the id of the first unread message, as text; how the ranges up to these offsets are cut, if
it was chosen; and `ENDED`, if something is known.
"""
ENDED = "endedLedgers"
"""Which ledgers ended at these offsets, as `LedgerEnds` writes it. Older checkpoints have nothing of it."""
_NO_TOPICS = (*SPLITTING_OFFSETS, ENDED)


def _wait(seconds: float) -> None:
    if seconds > 0:
        threading.Event().wait(seconds)


def _message_ids(offsets: Offsets | None) -> dict[str, MessageId]:
    return {topic: parse(text) for topic, text in (offsets or {}).items() if topic not in _NO_TOPICS}


class StreamPlan:
    """Lives in the driver. Keeps a connection to each broker; `close` ends them."""

    def __init__(self, options: Options, values: TopicSchema | None = None) -> None:
        """`values`: the schema of the topics that there are, which later ones have to have as well; None: any
        may appear.
        """
        self._options = options
        is_any = options.raw_value or options.allow_different_schemas
        self._values = None if is_any else values
        self._questions = TopicQuestions(options.access)
        counts_bytes = options.bytes_per_trigger_max is not None
        self._ledgers = Ledgers(self._questions, sizes_by(options) if counts_bytes else None)
        self._ends_of_ledgers = LedgerEnds(self._questions, added_by(options))
        self._sampling = Sampling(self._questions)
        self._waiting: Waiting | None = None
        if options.rows_per_trigger_min is not None:
            self._waiting = Waiting(
                options.rows_per_trigger_min, options.trigger_delay_max_s, _CLOCK.monotonic_s()
            )
        self._ends: dict[str, MessageId] = {}
        """The offsets at which the last micro-batch ends."""
        self._planned: dict[str, deque[MessageId]] = {}
        """Where the last few micro-batches of each topic end that this query has planned."""
        self._subscriptions = (
            Subscriptions(self._questions.brokers, options.subscription_of) if options.acknowledges else None
        )
        self._rest = Rest()
        self._lasts: dict[str, Last] | None = None
        """What the last `latest` was told, until it is reported."""
        self._target: dict[str, Last] | None = None
        """The ends of the topics when a run over the available messages began."""
        self._turn = 0
        """Counts limited triggers, so that each time another partition comes first and none starves."""

    # -- offsets --------------------------------------------------------------------------------------------

    def initial(self) -> Offsets:
        """The offsets of a new query. Creates the subscription, if one is used. Raises `PipelineError`."""
        topics = partitions(self._options, self._questions)
        check_topics(self._options, topics)
        by_time = MessageIdsByTime(self._questions.brokers)
        by_time.ask((topic, time) for topic in topics for time in Published.of(self._options, topic).times())
        message_ids = {}
        for topic, last in self._questions.lasts(topics).items():
            if isinstance(last, TopicMissing):
                raise last
            message_ids[topic] = self._first_message_id(topic, last, by_time)
        if self._subscriptions is not None:
            self._subscriptions.open(topics)
            self._subscriptions.acknowledge(message_ids)
        return {topic: str(message_id) for topic, message_id in message_ids.items()}

    def _first_message_id(self, topic: str, last: Last, message_ids: MessageIdsByTime) -> MessageId:
        """Of topics of which nothing is said the end."""
        options = self._options
        published = Published.of(options, topic)
        message_id = LATEST
        if not published.says_nothing:
            message_id = published.begin(message_ids, topic, last)
        elif options.starting == EARLIEST_TEXT:
            message_id = EARLIEST
        elif isinstance(options.starting, Mapping):
            message_id = of_topic(options.starting, topic) or LATEST
        return last.end if message_id == LATEST else message_id

    def fix_target(self) -> None:
        """From now on behave as if no more messages arrived."""
        self._target = self._all_lasts({})

    def latest(self, start: Offsets | None, *, limited: bool) -> Offsets:
        """The offsets up to which to read from `start`; with `limited`, within maxRowsPerTrigger and
        maxBytesPerTrigger. If the last call found nothing and was just now, it rests first.

        Everything before `start` is finished, so it is acknowledged. Raises `DataLost`, and `SchemaMismatch`
        for a topic that has appeared with messages of another schema.
        """
        if start is not None:
            self.acknowledge(start)
        if self._target is None:
            _wait(self._rest.left_s(_CLOCK.monotonic_s()))
        begun_s = _CLOCK.monotonic_s()
        found = self._latest(start, limited=limited)
        self._rest.asked(begun_s, _CLOCK.monotonic_s(), found=found is not start)
        return found

    def _latest(self, start: Offsets | None, *, limited: bool) -> Offsets:
        """`start` itself if there is nothing new."""
        options = self._options
        known = _message_ids(start)
        self._ends_of_ledgers.adopt((start or {}).get(ENDED), known)
        lasts = self._target
        if lasts is None:
            self._lasts = lasts = self._all_lasts(known)
        self._compare_schemas(lasts)
        ranges = {
            topic: self._range(topic, known.get(topic, EARLIEST), last) for topic, last in lasts.items()
        }
        for topic, message_id in known.items():
            if topic not in lasts:
                self._lost(self._gone(topic, message_id))
        self._ends_of_ledgers.learn(known, lasts)
        ends: Offsets = {
            wanted.topic: str(known.get(wanted.topic, wanted.start)) for wanted in ranges.values()
        }
        waiting = [wanted for wanted in ranges.values() if wanted.start < wanted.end]
        for topic, message_id in self._admit(waiting, limited=limited).items():
            ends[topic] = str(message_id)
        self._ends = _message_ids(ends)
        if start is not None and _message_ids(start) == self._ends:
            return start  # nothing new: other options are no news
        self._check_splits(ranges)
        self._ends_of_ledgers.learn(self._ends, lasts)
        self._note_ends_of_ledgers(lasts)
        ended = self._ends_of_ledgers.text(self._ends)
        if ended is not None:
            ends[ENDED] = ended
        return ends | options.splitting.offsets()

    def _check_splits(self, ranges: Mapping[str, Range]) -> None:
        splitting = self._options.splitting
        if not splitting.of_each and not splitting.rows_max:
            return
        wanted = [
            replace(each, end=self._ends[topic])
            for topic, each in ranges.items()
            if each.start < self._ends[topic]
        ]
        ledgers = self._ledgers.between({each.topic: (each.start, each.end) for each in wanted})
        check_splits([(each, ledgers[each.topic] or []) for each in wanted], splitting, self._questions)

    def _note_ends_of_ledgers(self, lasts: Mapping[str, Last]) -> None:
        """Ledgers at whose ends a limit happens to lie."""
        behind = {
            topic: (position, lasts[topic].end)
            for topic, position in self._ends.items()
            if position > EARLIEST and topic in lasts and position.ledger_id < lasts[topic].end.ledger_id
        }
        for topic, ledgers in self._ledgers.between(behind).items():
            self._ends_of_ledgers.note(topic, behind[topic][0], ledgers or [])

    def _compare_schemas(self, lasts: Mapping[str, Last]) -> None:
        if self._values is None:
            return
        filled = (topic for topic, last in lasts.items() if last.message_id is not None)
        names = dict.fromkeys(str(full_name(topic).partitioned_name) for topic in filled)
        new = [name for name in names if name not in self._values.latest]
        if new:
            self._values = with_topics(self._options.access, self._values, new)

    def _admit(self, waiting: list[Range], *, limited: bool) -> dict[str, MessageId]:
        """Where each range has to stop; leaves out ranges of which nothing is read now."""
        options = self._options
        limit = Limit(options.rows_per_trigger_max, options.bytes_per_trigger_max) if limited else Limit()
        holds_back = limited and self._waiting is not None and self._target is None
        if not waiting or (limit.is_none and not holds_back):
            return {wanted.topic: wanted.end for wanted in waiting}
        first = self._turn % len(waiting)
        self._turn += 1
        waiting = waiting[first:] + waiting[:first]
        unread, unknown = self._unread({wanted.topic: wanted for wanted in waiting})
        if holds_back and not self._is_enough(unread, some=bool(unknown)):
            return {}
        if limit.is_none:
            return {wanted.topic: wanted.end for wanted in waiting}
        if options.exact_rows:
            return self._counted(waiting, limit)
        found = self._sampling.admit(unread, limit)
        return found | self._counted(unknown, limit)

    def _unread(self, waiting: dict[str, Range]) -> tuple[dict[str, Unread], list[Range]]:
        """The unread ranges, and the ranges whose size is unknown."""
        ledgers = self._ledgers.between({topic: (each.start, each.end) for topic, each in waiting.items()})
        found: dict[str, Unread] = {}
        unknown: list[Range] = []
        for topic, each in waiting.items():
            window = Window.between(each.start, each.end, ledgers[topic] or [])
            if window.entries:
                found[topic] = Unread(each.start, window)
            else:
                unknown.append(each)
        return found, unknown

    def _is_enough(self, unread: dict[str, Unread], *, some: bool) -> bool:
        """Whether enough messages wait for a micro-batch to begin."""
        assert self._waiting is not None
        self._sampling.look_first(unread, Limit().share(1))
        rows = sum(self._sampling.size(topic, each.window).rows for topic, each in unread.items())
        return (bool(unread) or some) and self._waiting.is_over(rows, _CLOCK.monotonic_s())

    def _counted(self, waiting: list[Range], limit: Limit) -> dict[str, MessageId]:
        """Exact to the message, by reading. Uses up the limit."""
        options = self._options
        found: dict[str, MessageId] = {}
        while waiting:
            unfinished = []
            for index, wanted in enumerate(waiting):
                if limit.is_spent:
                    return found
                share = limit.share(len(waiting) - index)
                before = (share.rows, share.size_bytes)
                message_id = advance(options.access, wanted, share, poll_timeout_s=options.poll_timeout_s)
                limit.spend((before[0] or 0) - (share.rows or 0), (before[1] or 0) - (share.size_bytes or 0))
                if message_id > wanted.start:
                    found[wanted.topic] = message_id
                    if message_id < wanted.end:
                        unfinished.append(replace(wanted, start=message_id))
            waiting = unfinished  # what those with little to read have left goes to the others
        return found

    def report(self) -> dict[str, Any] | None:
        """The ends of the topics and the lag of the last micro-batch, for the query's progress; None if they
        are unknown now. Spark wants it after each `latest`, whose answers then serve twice.
        """
        try:
            lasts, self._lasts = self._lasts, None
            if lasts is None:
                lasts = self._all_lasts({})
            found: dict[str, Any] = {topic: str(last.end) for topic, last in lasts.items()}
            return found | {BEHIND: totals(self._lags(lasts))}
        except PipelineError:
            return None

    def _lags(self, lasts: Mapping[str, Last]) -> dict[str, Lag]:
        ranges = {
            topic: Range(topic, self._ends[topic], last.end)
            for topic, last in lasts.items()
            if topic in self._ends and self._ends[topic] < last.end
        }
        unread, _ = self._unread(ranges)
        now_ms = _CLOCK.now_ms()
        found = {}
        for topic, each in unread.items():
            size = self._sampling.size(topic, each.window)
            found[topic] = Lag(size.entries, round(size.rows), round(size.size_bytes))
        furthest = sorted(found, key=lambda topic: -found[topic].entries)[:_OLDEST_LOOKS]
        asked = [(topic, MessageId(*unread[topic].window.entry(0), 0)) for topic in furthest]
        for topic, facts in zip(furthest, self._questions.first_entries(asked), strict=True):
            if facts is not None:
                found[topic] = found[topic]._replace(oldest_ms=max(now_ms - facts.publish_time_ms, 0))
        return found

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """The splits between two offsets; none for a partition without new messages."""
        known, lasts = _message_ids(start), _message_ids(end)
        firsts = {}
        for topic, last in lasts.items():
            first = known.get(topic, EARLIEST)
            if first > last:
                first = EARLIEST  # the topic was created again, and failOnDataLoss is off
            if first != last:
                firsts[topic] = first
        fails = self._options.fail_on_data_loss
        guarded = {topic: first for topic, first in firsts.items() if fails and first > EARLIEST}
        acknowledged, unsure = self._acknowledged(guarded, lasts)
        self._ends_of_ledgers.adopt(start.get(ENDED), known)
        # A subscription or the admin API would have told.
        can_tell = self._subscriptions is not None or self._options.admin_url is not None
        unknown_end: UnknownEnd = "lost" if can_tell else self._options.unknown_ledger_end
        found = [
            Range(
                topic,
                first,
                lasts[topic],
                check_previous=topic in guarded,
                ends_with_message=fails,
                loss_allowed=not fails,
                next_ledger=self._ends_of_ledgers.next_ledger(topic, first),
                unknown_end=self._options.unknown_ledger_end if topic in unsure else unknown_end,
                published_from_ms=Published.of(self._options, topic).from_ms,
                acknowledged=acknowledged.get(topic),
            )
            for topic, first in firsts.items()
        ]
        for topic in firsts:
            planned = self._planned.setdefault(topic, deque(maxlen=_ENDS_MAX))
            if lasts[topic] not in planned:
                planned.append(lasts[topic])
        # Of ledgers that are closed the length stays, and their bytes are left aside: a micro-batch that runs
        # again is cut as it was.
        ledgers = self._ledgers.between({wanted.topic: (wanted.start, wanted.end) for wanted in found})
        return split(
            [
                (wanted, [ledger._replace(size_bytes=0) for ledger in ledgers[wanted.topic] or []])
                for wanted in found
            ],
            Splitting.of_offsets(end),
            self._questions,
        )

    # -- what was finished ----------------------------------------------------------------------------------

    def acknowledge(self, end: Offsets) -> None:
        """On the subscription, if one is used."""
        if self._subscriptions is not None:
            self._subscriptions.acknowledge(_message_ids(end))

    def _acknowledged(
        self, starts: Mapping[str, MessageId], lasts: Mapping[str, MessageId]
    ) -> tuple[dict[str, tuple[int, int]], set[str]]:
        """For each topic a position up to where entries may be gone without a loss, and the topics whose
        subscription does not tell. Topics whose subscription another consumer, or the broker, has moved past
        what was read are left out.

        Up to its mark-delete position the subscription has acknowledged everything. What is behind that it
        holds: if the first entry left is in a later ledger, the one before it ended with what was read.
        Pulsar deletes such a ledger after an unload and leaves the mark-delete position in it, and Geminga
        always does. While a topic is loaded, Pulsar moves it to the beginning of the ledger that follows,
        also if others have acknowledged the end of the one that is gone. Between two micro-batches of a
        running query that is taken for the query's own doing.
        """
        if self._subscriptions is None:
            return {}, set()
        crossing = [
            (topic, start) for topic, start in starts.items() if start.ledger_id < lasts[topic].ledger_id
        ]
        # Before the mark-delete positions: what is trimmed in between has moved them.
        firsts = {
            topic: facts
            for (topic, _), facts in zip(crossing, self._questions.first_entries(crossing), strict=True)
        }
        found: dict[str, tuple[int, int]] = {}
        unsure: set[str] = set()
        for topic, mark_delete in self._subscriptions.mark_deletes(starts).items():
            start = starts[topic]
            if mark_delete is None:
                continue
            if mark_delete <= (start.ledger_id, start.entry_id - 1):
                first = firsts.get(topic)
                found[topic] = mark_delete if first is None else (first.ledger_id, first.entry_id - 1)
            elif mark_delete[1] >= 0:
                continue
            elif start in self._planned.get(topic, ()):
                found[topic] = mark_delete
            else:
                unsure.add(topic)
        return found, unsure

    # -- what there is --------------------------------------------------------------------------------------

    def _range(self, topic: str, start: MessageId, last: Last) -> Range:
        if last.message_id is None or start > last.end:
            if start > EARLIEST and (last.message_id is not None and start > last.end):
                self._lost(
                    f"{topic} ends at {last.message_id}, but was read up to {start}: it was deleted and "
                    "created again"
                )
                return Range(topic, EARLIEST, last.end)
            return Range(topic, start, start)
        return Range(topic, start, last.end)

    def _gone(self, topic: str, message_id: MessageId) -> str:
        """Why a topic is not among those to read."""
        if isinstance(self._questions.lasts([topic])[topic], TopicMissing):
            return f"topic {topic} was read up to {message_id} and is no longer there: it was deleted"
        return (
            f"topic {topic} was read up to {message_id} by this query's checkpoint, but the options (topic, "
            "topics, topicsPattern) no longer name it; the topic is there. Name it again"
        )

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{text}. ", ALLOW_LOSS, " to continue with the remaining messages, or begin a new checkpoint"
            )

    def _all_lasts(self, known: Mapping[str, MessageId]) -> dict[str, Last]:
        found = {}
        for topic, last in self._questions.lasts(partitions(self._options, self._questions)).items():
            if not isinstance(last, TopicMissing):
                found[topic] = last
            elif topic not in known:
                raise last
        return found

    def close(self) -> None:
        self._questions.close()
