"""What a batch query reads: topics into partitions, offsets into ranges, ranges into splits."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from geminga.clock import RealClock
from geminga.pipeline.client.admin_http import ledgers_of
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.entry_stream import EntryStream
from geminga.pipeline.client.topics import Last, Ledger, TopicMissing, last_of, matching, partitions_of
from geminga.pipeline.columns.places import EARLIEST, LATEST, Place
from geminga.pipeline.errors import Access, BadOption, PipelineError
from geminga.pipeline.topics.offset_options import LATEST_TEXT, check_named, of_topic
from geminga.pipeline.topics.options import Options
from geminga.pipeline.topics.pruning import EVERYTHING, Pruning
from geminga.pipeline.topics.publish_times import Published
from geminga.pipeline.topics.reading import Range
from geminga.pipeline.topics.splits import cut

_PAUSE_SECONDS = 0.5


def topics_of(options: Options) -> list[str]:
    """The topics named or matched, as full names, partitioned ones as one. Raises `BadOption`."""
    if options.topics is None:
        raise BadOption("no topic is named; give one of the options topic, topics and topicsPattern")
    if options.topics.pattern is None:
        return list(options.topics.names)
    with Connection.open(options.access) as connection:
        found = matching(connection, options.topics.pattern)
    if not found and not options.wait_for_topic:
        raise TopicMissing(f"no topic matches topicsPattern {options.topics.pattern!r}")
    return found


def partitions(options: Options) -> list[str]:
    """Everything to read, each partition by its own name. Waits for topics if told so, for the poll
    timeout.
    """
    clock = RealClock()
    until = clock.monotonic_s() + (options.poll_timeout_s if options.wait_for_topic else 0)
    while True:
        try:
            with Connection.open(options.access) as connection:
                return [part for topic in topics_of(options) for part in partitions_of(connection, topic)]
        except TopicMissing:
            if clock.monotonic_s() >= until:
                raise
            threading.Event().wait(_PAUSE_SECONDS)


def check_topics(options: Options, topics: list[str]) -> None:
    """Raises `BadOption` if something is said of a topic that is not among them."""
    check_named("startingOffsets", options.starting, topics)
    check_named("endingOffsets", options.ending, topics)
    check_named("startingTime", options.starting_time_ms, topics)
    check_named("endingTime", options.ending_time_ms, topics)


def plan_batch(options: Options, pruning: Pruning = EVERYTHING) -> list[Range]:
    """The splits of a batch query; empty ranges are left out, and what cannot fulfil its conditions.

    Raises `PipelineError`.
    """
    if options.starting == LATEST_TEXT:
        raise BadOption("startingOffsets=latest reads nothing in a batch query; use earliest or JSON")
    topics = partitions(options)
    check_topics(options, topics)
    found: list[Range] = []
    for topic in pruning.topics(topics):
        last = last_of(options.access, topic)
        wanted = _batch_range(options, topic, last, pruning)
        if wanted is None:
            continue
        if pruning.names_messages:
            found += pruning.parts(wanted)
        else:
            found += cut_range(options, wanted, last)
    return found


def _batch_range(options: Options, topic: str, last: Last, pruning: Pruning) -> Range | None:
    """Topics of which nothing is said are read from the begin, and to the end."""
    if last.place is None:
        return None
    start = _first_place(options, topic)
    end = min(_end_place(options, topic, last), last.end)
    if start > last.place.after() and options.fail_on_data_loss:
        raise PipelineError(
            f"{topic} ends at {last.place}, before startingOffsets {start}: the topic was deleted and "
            "created again, or the offset is of another topic"
        )
    published = pruning.published(Published.of(options, topic))
    if published.is_empty:
        return None
    start = max(start, published.begin(options.access, topic))
    end = min(end, published.end(options.access, topic, last.end))
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
        published_from_ms=published.from_ms,
        published_before_ms=published.before_ms,
    )


def _first_place(options: Options, topic: str) -> Place:
    if not isinstance(options.starting, Mapping):
        return EARLIEST
    place: Place = of_topic(options.starting, topic) or EARLIEST
    if place == LATEST:
        raise BadOption(f"startingOffsets: from the latest message of {topic} on a batch query reads nothing")
    return place


def _end_place(options: Options, topic: str, last: Last) -> Place:
    if not isinstance(options.ending, Mapping):
        return LATEST
    place: Place = of_topic(options.ending, topic) or LATEST
    if last.end < place < LATEST and options.fail_on_data_loss:
        raise PipelineError(
            f"{topic} ends at {last.place}, but endingOffsets wants messages up to {place}: the topic was "
            "deleted and created again, or the offset is of another topic"
        )
    return place


def cut_range(options: Options, wanted: Range, last: Last) -> list[Range]:
    """By the ledgers that the admin API tells, else by what first and last message tell."""
    if options.splits_per_partition == 1:
        return [wanted]
    if options.admin_url is not None:
        ledgers = ledgers_of(options.admin_access or options.access, options.admin_url, wanted.topic)
    else:
        ledgers = _guess_ledgers(options.access, wanted, last, options.poll_timeout_s)
    return cut(wanted, ledgers, splits=options.splits_per_partition)


def _guess_ledgers(access: Access, wanted: Range, last: Last, timeout_s: float) -> list[Ledger]:
    """Without the admin API only a ledger that holds both ends of the range is known well enough."""
    if last.place is None:
        return []
    first = wanted.start
    if first.ledger_id != last.place.ledger_id:
        stream = EntryStream(access, wanted.topic, first, permits=1)
        try:
            if not stream.receive(timeout_s) or stream.buffer.last_position is None:
                return []
            first = Place(*stream.buffer.last_position, 0)
        finally:
            stream.close()
    if first.ledger_id != last.place.ledger_id:
        return []
    return [Ledger(first.ledger_id, last.place.entry_id + 1)]


def narrowed(options: Options) -> Options:
    """What workers need of the options: everything but the choice of topics."""
    return replace(options, topics=None)
