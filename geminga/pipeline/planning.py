"""What a batch query reads: topics into partitions, offsets into ranges, ranges into splits."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from geminga.clock import RealClock
from geminga.pipeline.admin_http import ledgers_of
from geminga.pipeline.connection import Access, Connection, PipelineError
from geminga.pipeline.options import LATEST_TEXT, BadOption, Options
from geminga.pipeline.places import EARLIEST, Place
from geminga.pipeline.reading import EntryStream, Range
from geminga.pipeline.splits import Ledger, cut
from geminga.pipeline.topics import Last, TopicMissing, full_name, last_of, matching, partitions_of

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


def chosen(places: Mapping[str, Place], topic: str) -> Place | None:
    """What was said of a partition, or of the topic that it is of."""
    return places.get(topic) or places.get(str(full_name(topic).partitioned_name))


def plan_batch(options: Options) -> list[Range]:
    """The splits of a batch query; empty ranges are left out. Raises `PipelineError`."""
    if options.starting == LATEST_TEXT:
        raise BadOption("startingOffsets=latest reads nothing in a batch query; use earliest or JSON")
    found: list[Range] = []
    for topic in partitions(options):
        last = last_of(options.access, topic)
        wanted = _batch_range(options, topic, last)
        if wanted is not None:
            found += cut_range(options, wanted, last)
    return found


def _batch_range(options: Options, topic: str, last: Last) -> Range | None:
    start, strict = EARLIEST, False
    if isinstance(options.starting, Mapping):
        given = chosen(options.starting, topic)
        if given is None:
            raise BadOption(f"startingOffsets says nothing of {topic}; name every topic that is read")
        start, strict = given, given > EARLIEST
    end = last.end
    if isinstance(options.ending, Mapping):
        given = chosen(options.ending, topic)
        if given is None:
            raise BadOption(f"endingOffsets says nothing of {topic}; name every topic that is read")
        if given.after() > end:
            raise PipelineError(
                f"{topic} ends at {last.place}, but endingOffsets wants messages up to {given}: the "
                "topic was "
                "deleted and created again, or the offset is of another topic"
            )
        end = given.after()
    if (
        strict
        and start >= end
        and options.fail_on_data_loss
        and last.place is not None
        and start > last.place.after()
    ):
        raise PipelineError(
            f"{topic} ends at {last.place}, before startingOffsets {start}: the topic was deleted and "
            "created "
            "again, or the offset is of another topic"
        )
    if last.place is None or start >= end:
        return None
    return Range(
        topic,
        start,
        end,
        strict=strict and options.fail_on_data_loss,
        loss_allowed=not options.fail_on_data_loss,
        published_from_ms=options.starting_time_ms,
        published_before_ms=options.ending_time_ms,
    )


def cut_range(options: Options, wanted: Range, last: Last) -> list[Range]:
    """By the ledgers that the admin API tells, else by what first and last message tell."""
    if options.splits_per_partition == 1:
        return [wanted]
    if options.admin_url is not None:
        ledgers = ledgers_of(options.access, options.admin_url, wanted.topic)
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
