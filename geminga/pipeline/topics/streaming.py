"""What a stream reads with each trigger: offsets, limits, new partitions, lost data, acknowledgements."""

from __future__ import annotations

from collections.abc import Mapping

from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.lookup import owner_of
from geminga.pipeline.client.topics import Last, Ledger, TopicMissing, ask_last, subscribe_for_questions
from geminga.pipeline.columns.places import EARLIEST, LATEST, Place, parse
from geminga.pipeline.errors import BrokerUnreachable, PipelineError
from geminga.pipeline.topics.acknowledging import Acknowledger
from geminga.pipeline.topics.admission import Budget, advance
from geminga.pipeline.topics.offset_options import EARLIEST_TEXT, of_topic
from geminga.pipeline.topics.options import Options
from geminga.pipeline.topics.planning import check_topics, partitions
from geminga.pipeline.topics.publish_times import Published
from geminga.pipeline.topics.reading import DataLost, Range
from geminga.pipeline.topics.splits import cut

Offsets = dict[str, str]
"""Partition -> the first place that is not read yet, as text. `SPLITS` is beside them if it was chosen."""
SPLITS = "splitsPerPartition"
"""Into how many parts the ranges up to these offsets are cut: a micro batch that runs again, perhaps with
other options, has to have the same tasks, or what it writes would not be the same.
"""


def _places(offsets: Offsets | None) -> dict[str, Place]:
    return {topic: parse(text) for topic, text in (offsets or {}).items() if topic != SPLITS}


class StreamPlan:
    """Lives in the driver. Keeps a connection to each partition's broker; `close` ends them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._asking: dict[str, Connection] = {}
        self._acknowledgers: dict[str, Acknowledger] = {}
        self._target: dict[str, Last] | None = None
        """What there was when a run over what is available now began."""
        self._turn = 0
        """Counts limited triggers: another partition comes first each time, so that none starves."""

    # -- offsets --------------------------------------------------------------------------------------------

    def initial(self) -> Offsets:
        """Where a new query begins. Creates the subscription, if one is used. Raises `PipelineError`."""
        topics = partitions(self._options)
        check_topics(self._options, topics)
        found = {}
        for topic in topics:
            place = self._first_place(topic)
            found[topic] = str(place)
            if self._options.acknowledges:
                self._acknowledger(topic).open()
                self._acknowledger(topic).acknowledge(place)
        return found

    def _first_place(self, topic: str) -> Place:
        """Of topics of which nothing is said the end."""
        options = self._options
        published = Published.of(options, topic)
        place = LATEST
        if not published.says_nothing:
            place = published.begin(options.access, topic)
        elif options.starting == EARLIEST_TEXT:
            place = EARLIEST
        elif isinstance(options.starting, Mapping):
            place = of_topic(options.starting, topic) or LATEST
        return self._last(topic).end if place == LATEST else place

    def fix_target(self) -> None:
        """From now on behave as if nothing more came."""
        self._target = {topic: self._last(topic) for topic in partitions(self._options)}

    def latest(self, start: Offsets | None, *, limited: bool) -> Offsets:
        """How far to read from `start`; `limited`: no more than maxRowsPerTrigger and maxBytesPerTrigger
        allow.

        Everything before `start` is finished by now, so it is acknowledged. Raises `DataLost`.
        """
        if start is not None:
            self.acknowledge(start)
        options = self._options
        known = _places(start)
        lasts = self._target if self._target is not None else self._all_lasts(known)
        ranges = {
            topic: self._range(topic, known.get(topic, EARLIEST), last) for topic, last in lasts.items()
        }
        for topic, place in known.items():
            if topic not in lasts:
                self._lost(f"topic {topic} was read up to {place} and is no longer there")
        budget = Budget(options.rows_per_trigger_max, options.bytes_per_trigger_max) if limited else Budget()
        ends: Offsets = {}
        waiting = [wanted for wanted in ranges.values() if wanted.start < wanted.end]
        for wanted in ranges.values():
            ends[wanted.topic] = str(known.get(wanted.topic, wanted.start))
        first = self._turn % max(len(waiting), 1)
        self._turn += limited
        for index, wanted in enumerate(waiting[first:] + waiting[:first]):
            share = budget.share(len(waiting) - index)
            before = (share.rows, share.size_bytes)
            place = advance(options.access, wanted, share, poll_timeout_s=options.poll_timeout_s)
            budget.spend((before[0] or 0) - (share.rows or 0), (before[1] or 0) - (share.size_bytes or 0))
            if place > wanted.start:
                ends[wanted.topic] = str(place)
            if budget.is_spent:
                break
        if start is not None and _places(start) == _places(ends):
            return start  # nothing new: other options are no news
        if options.splits_per_partition:
            ends[SPLITS] = str(options.splits_per_partition)
        return ends

    def report(self) -> Offsets | None:
        """Where the topics end, for whoever watches the query; None if that cannot be told now."""
        try:
            lasts = self._all_lasts({})
        except PipelineError:
            return None
        return {topic: str(last.end) for topic, last in lasts.items()}

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """The splits between two offsets; none for a partition without news."""
        found: list[Range] = []
        known, splits = _places(start), int(end.get(SPLITS, 0))
        for topic, last in _places(end).items():
            first = known.get(topic, EARLIEST)
            if first > last:
                first = EARLIEST  # the topic was created anew, and failOnDataLoss is off
            if first == last:
                continue
            guard = self._options.fail_on_data_loss and first > EARLIEST
            wanted = Range(
                topic,
                first,
                last,
                check_previous=guard,
                ends_with_message=self._options.fail_on_data_loss,
                loss_allowed=not self._options.fail_on_data_loss,
                published_from_ms=Published.of(self._options, topic).from_ms,
                acknowledged=self._acknowledged(topic, first) if guard else None,
            )
            found += _cut(wanted, splits)
        return found

    # -- what was finished ----------------------------------------------------------------------------------

    def acknowledge(self, end: Offsets) -> None:
        """On the subscription, if one is used."""
        if self._options.acknowledges:
            for topic, place in _places(end).items():
                self._acknowledger(topic).acknowledge(place)

    def _acknowledged(self, topic: str, start: Place) -> tuple[int, int] | None:
        if not self._options.acknowledges:
            return None
        mark_delete = self._acknowledger(topic).mark_delete()
        if mark_delete is None or (
            mark_delete[1] >= 0 and mark_delete > (start.ledger_id, start.entry_id - 1)
        ):
            return None  # somebody else has moved it past what was read
        return mark_delete

    def _acknowledger(self, topic: str) -> Acknowledger:
        found = self._acknowledgers.get(topic)
        if found is None:
            subscription = self._options.subscription_of(topic)
            assert subscription is not None
            found = Acknowledger(self._options.access, topic, subscription)
            self._acknowledgers[topic] = found
        return found

    # -- what there is --------------------------------------------------------------------------------------

    def _range(self, topic: str, start: Place, last: Last) -> Range:
        if last.place is None or start > last.end:
            if start > EARLIEST and (last.place is not None and start > last.end):
                self._lost(
                    f"{topic} ends at {last.place}, but was read up to {start}: it was deleted and "
                    "created again"
                )
                return Range(topic, EARLIEST, last.end)
            return Range(topic, start, start)
        return Range(topic, start, last.end)

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{text}. Set failOnDataLoss=false to go on with what there is, or begin a new checkpoint"
            )

    def _all_lasts(self, known: Mapping[str, Place]) -> dict[str, Last]:
        found = {}
        for topic in partitions(self._options):
            try:
                found[topic] = self._last(topic)
            except TopicMissing:
                if topic not in known:
                    raise
        return found

    def _last(self, topic: str) -> Last:
        connection = self._asking.get(topic)
        if connection is not None:
            try:
                return ask_last(connection)
            except PipelineError:
                connection.close()
                del self._asking[topic]
        for attempt in (0, 1):
            connection = owner_of(self._options.access, topic)
            try:
                subscribe_for_questions(connection, topic, self._options.access.reader_name)
                last = ask_last(connection)
            except BrokerUnreachable:
                connection.close()
                if attempt:
                    raise
            except BaseException:
                connection.close()
                raise
            else:
                self._asking[topic] = connection
                return last
        raise AssertionError("not reached")

    def close(self) -> None:
        for connection in self._asking.values():
            connection.close()
        for acknowledger in self._acknowledgers.values():
            acknowledger.close()
        self._asking.clear()
        self._acknowledgers.clear()


def _cut(wanted: Range, splits: int) -> list[Range]:
    if wanted.start.ledger_id != wanted.end.ledger_id:
        return [wanted]
    ledger = Ledger(wanted.end.ledger_id, wanted.end.entry_id + 1)
    return cut(wanted, [ledger], splits=splits)
