"""Plans a batch query: topics into partitions, offsets into ranges, ranges into splits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from geminga.clock import RealClock
from geminga.limits import MESSAGE_BYTES_MAX
from geminga.pipeline.client.admin_http import added_of_all, ledgers_of_all
from geminga.pipeline.client.shared_connection import EntryFacts
from geminga.pipeline.client.topic_questions import TopicQuestions
from geminga.pipeline.client.topics import Last, Ledger, matching
from geminga.pipeline.columns.message_id import EARLIEST, LATEST, MessageId
from geminga.pipeline.errors import TOPICS_PATTERN, BadOption, PipelineError, TopicMissing
from geminga.pipeline.topics.offset_options import LATEST_TEXT, check_named, of_topic
from geminga.pipeline.topics.options import Options
from geminga.pipeline.topics.pruning import EVERYTHING, Pruning
from geminga.pipeline.topics.publish_times import MessageIdsByTime, Published
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.splits import SPLIT_BYTES, cut, looks, splits_wanted
from geminga.pipeline.topics.splitting import AS_WORTH, SPLITS_OF_OPTIONS_MAX, WHOLE, Splitting
from geminga.pipeline.triggers.ledger_ends import AllAdded
from geminga.pipeline.triggers.ledgers import Ledgers, Sizes
from geminga.pipeline.triggers.samples import Samples
from geminga.pipeline.triggers.windows import Window

_PAUSE_SECONDS = 0.5


def topics_of(options: Options, questions: TopicQuestions | None = None) -> list[str]:
    """The named or matching topics, as full names, each partitioned one once. Raises `BadOption`."""
    if options.topics is None:
        raise BadOption("no topic is named; give one of the options topic, topics and ", TOPICS_PATTERN)
    if options.topics.pattern is None:
        return list(options.topics.names)
    with contextlib.nullcontext(questions) if questions else TopicQuestions(options.access) as asking:
        found = matching(asking, options.topics.pattern)
    if not found and not options.wait_for_topic:
        raise TopicMissing("no topic matches ", TOPICS_PATTERN, f" {options.topics.pattern!r}")
    return found


def partitions(options: Options, questions: TopicQuestions | None = None) -> list[str]:
    """All partitions to read, each by its own name. Waits for topics for the poll timeout, if the options
    say so.
    """
    if questions is None:
        with TopicQuestions(options.access) as questions:
            return partitions(options, questions)
    clock = RealClock()
    until = clock.monotonic_s() + (options.poll_timeout_s if options.wait_for_topic else 0)
    while True:
        try:
            return questions.partitions(topics_of(options, questions))
        except TopicMissing:
            if clock.monotonic_s() >= until:
                raise
            threading.Event().wait(_PAUSE_SECONDS)


def check_topics(options: Options, topics: list[str]) -> None:
    """Raises `BadOption` if an option names a topic that is not among these."""
    check_named("startingOffsets", options.starting, topics)
    check_named("endingOffsets", options.ending, topics)
    check_named("startingTime", options.starting_time_ms, topics)
    check_named("endingTime", options.ending_time_ms, topics)


def plan_batch(options: Options, pruning: Pruning = EVERYTHING) -> list[Range]:
    """The splits of a batch query, without empty ranges and ranges that its conditions exclude.

    Raises `PipelineError`.
    """
    if options.starting == LATEST_TEXT:
        raise BadOption("startingOffsets=latest reads nothing in a batch query; use earliest or JSON")
    with TopicQuestions(options.access) as questions:
        topics = partitions(options, questions)
        check_topics(options, topics)
        found = []
        lasts = questions.lasts(pruning.topics(topics))
        message_ids = MessageIdsByTime(questions.brokers)
        message_ids.ask(
            (topic, time)
            for topic in lasts
            for time in pruning.published(Published.of(options, topic)).times()
        )
        for topic, last in lasts.items():
            if isinstance(last, TopicMissing):
                raise last
            wanted = _batch_range(options, topic, last, pruning, message_ids)
            if wanted is not None:
                found.append((wanted, last))
        if pruning.names_messages:
            return [part for wanted, _ in found for part in pruning.parts(wanted)]
        return cut_ranges(options, found, questions)


def _batch_range(
    options: Options, topic: str, last: Last, pruning: Pruning, message_ids: MessageIdsByTime
) -> Range | None:
    """Topics without offsets are read from the beginning, and to the end."""
    if last.message_id is None:
        return None
    start = _first_message_id(options, topic)
    end = min(_end_message_id(options, topic, last), last.end)
    if start > last.end and options.fail_on_data_loss:
        raise PipelineError(
            f"{topic} ends at {last.message_id}, before startingOffsets {start}: the topic was deleted and "
            "created again, or the offset is of another topic"
        )
    published = pruning.published(Published.of(options, topic))
    if published.is_empty:
        return None
    start = max(start, published.begin(message_ids, topic, last))
    end = min(end, published.end(message_ids, topic, last.end))
    if start >= end:
        return None
    named = isinstance(options.starting, Mapping) and start > EARLIEST
    return Range(
        topic,
        start,
        end,
        strict=named and options.fail_on_data_loss,
        ends_with_message=end == last.end and options.fail_on_data_loss,
        loss_allowed=not options.fail_on_data_loss,
        unknown_end="lost" if options.admin_url else options.unknown_ledger_end,
        published_from_ms=published.from_ms,
        published_before_ms=published.before_ms,
    )


def _first_message_id(options: Options, topic: str) -> MessageId:
    if not isinstance(options.starting, Mapping):
        return EARLIEST
    message_id: MessageId = of_topic(options.starting, topic) or EARLIEST
    if message_id == LATEST:
        raise BadOption(f"startingOffsets: from the latest message of {topic} on a batch query reads nothing")
    return message_id


def _end_message_id(options: Options, topic: str, last: Last) -> MessageId:
    if not isinstance(options.ending, Mapping):
        return LATEST
    message_id: MessageId = of_topic(options.ending, topic) or LATEST
    if last.end < message_id < LATEST and options.fail_on_data_loss:
        raise PipelineError(
            f"{topic} ends at {last.message_id}, but endingOffsets wants messages up to {message_id}: the "
            "topic was deleted and created again, or the offset is of another topic"
        )
    return message_id


def cut_ranges(
    options: Options, found: Sequence[tuple[Range, Last]], questions: TopicQuestions
) -> list[Range]:
    """Each range, cut as the options say: by its ledgers, and by bytes if the admin API reports them."""
    splitting = options.splitting
    sought = {
        wanted.topic: (wanted.start, min(wanted.end, last.end))
        for wanted, last in found
        if splitting != WHOLE and not (splitting == AS_WORTH and _is_small(wanted))
    }
    ledgers = Ledgers(questions, sizes_by(options)).between(sought)
    known = [(wanted, ledgers.get(wanted.topic) or []) for wanted, _ in found]
    check_splits(known, splitting, questions)
    return split(known, splitting, questions)


def split(
    found: Sequence[tuple[Range, Sequence[Ledger]]], splitting: Splitting, questions: TopicQuestions
) -> list[Range]:
    """As `cut`, with the samples that it needs. Ranges without ledgers stay whole. Raises `PipelineError`."""
    return cut(found, splitting, _samples(found, splitting, questions))


def check_splits(
    found: Sequence[tuple[Range, Sequence[Ledger]]], splitting: Splitting, questions: TopicQuestions
) -> None:
    """Raises `BadOption` if the options ask for more splits than a driver can keep. A stream checks that
    before its checkpoint has the offsets: after that, a micro-batch has to have the splits that it had.
    """
    entries = sum(Window.between(each.start, each.end, ledgers).entries for each, ledgers in found)
    if entries <= SPLITS_OF_OPTIONS_MAX:
        return
    samples = _samples(found, splitting, questions)
    count = splits_wanted(found, splitting, samples)
    most = max(SPLITS_OF_OPTIONS_MAX, len(found))  # each range is one, whatever the options say
    if count <= most:
        return
    too_many = (
        f"the {entries:,} entries would be about {count:,} splits, and {SPLITS_OF_OPTIONS_MAX:,} is the most"
    )
    if not splitting.rows_max:
        raise BadOption(f"option splitsPerPartition is {splitting.of_each}: {too_many}. Lower it")
    enough = splitting.rows_max
    while splits_wanted(found, replace(splitting, rows_max=enough), samples) > most:
        enough *= 2
    raise BadOption(
        f"option maxRecordsPerPartition is {splitting.rows_max}: {too_many}. Raise it to {enough}, or let a "
        "stream read less at once (maxRowsPerTrigger)"
    )


def _samples(
    found: Sequence[tuple[Range, Sequence[Ledger]]], splitting: Splitting, questions: TopicQuestions
) -> dict[str, list[EntryFacts]]:
    samples: dict[str, Samples] = {}
    if splitting.rows_max:
        asked = looks(found)
        for (topic, _), facts in zip(asked, questions.first_entries(asked), strict=True):
            if facts is not None:
                samples.setdefault(topic, Samples()).add(facts)
    return {topic: some.entries for topic, some in samples.items()}


def _is_small(wanted: Range) -> bool:
    """Whether a range is one split, however large its entries are."""
    start, end = wanted.start, wanted.end
    entries = end.entry_id + 1 - start.entry_id
    return start.ledger_id == end.ledger_id and entries * MESSAGE_BYTES_MAX <= SPLIT_BYTES


def sizes_by(options: Options) -> Sizes | None:
    """The function that gets the ledgers of many topics from the admin API; None without one."""
    if options.admin_url is None:
        return None
    access, admin_url = options.admin_access or options.access, options.admin_url
    return lambda topics: ledgers_of_all(access, admin_url, topics)


def added_by(options: Options) -> AllAdded | None:
    """The function that gets from the admin API how much was added to topics; None without one."""
    if options.admin_url is None:
        return None
    access, admin_url = options.admin_access or options.access, options.admin_url
    return lambda topics: added_of_all(access, admin_url, topics)


def narrowed(options: Options) -> Options:
    """The options for workers: all but the choice of topics."""
    return replace(options, topics=None)
