"""What earlier attempts at a task have stored: the broker's word, and the entries on the topic."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from geminga.clock import RealClock
from geminga.pipeline.client.producing import Producer
from geminga.pipeline.topics.options import Options
from geminga.pipeline.writing.last_entries import newest_first
from geminga.pipeline.writing.repetitions import (
    NO_ROWS,
    Note,
    Search,
    Task,
    check_not_later,
    not_comparable,
)
from geminga.pipeline.writing.sequences import bounds

_CLOCK = RealClock()
_SECONDS = 5.0
"""How long an entry that the broker has taken may need until it can be read."""
_PAUSE_SECONDS = 0.1


def earlier_attempts(options: Options, task: Task, producers: Sequence[Producer]) -> list[Note | None]:
    """For each of a task's producers (to the partitions of one topic) what it has written last in this micro
    batch; None: nothing. Raises `PipelineError` where that cannot be told.
    """
    for producer in producers:
        check_not_later(producer.topic, task, producer.last_sequence_id)
    attempt = _earlier_attempt if options.check_repetition else _believed_attempt
    return [attempt(options, task, producer) for producer in producers]


def last_note(options: Options, task: Task, topic: str, *, is_known: bool) -> Note | None:
    """Of the last entry of the task's producer. Raises `PipelineError`."""
    search = Search(topic, task, is_known)
    for window in newest_first(options.access, topic, poll_timeout_s=options.poll_timeout_s):
        if search.is_done(window):
            break
    return search.found


def stored_digest(options: Options, task: Task, topic: str, known: int) -> int | None:
    """Of the row that the broker knows of a task's producer; None: its word is to be taken. Raises
    `PipelineError`.
    """
    if not options.check_repetition:
        return None
    found = _stored(options, task, topic, known)
    return found.digest if found.last_sequence_id == known else -1


def _believed_attempt(_: Options, task: Task, producer: Producer) -> Note | None:
    known = producer.last_sequence_id
    return Note(known, NO_ROWS, False, "") if known >= bounds(task.batch_id)[0] else None


def _earlier_attempt(options: Options, task: Task, producer: Producer) -> Note | None:
    begin, end = bounds(task.batch_id)
    known = producer.last_sequence_id
    if begin <= known < end:
        return _stored(options, task, producer.topic, known)
    if known >= 0 or task.is_first:
        return None
    found = last_note(options, task, producer.topic, is_known=False)
    if found is None:
        return None
    check_not_later(producer.topic, task, found.last_sequence_id)
    return found if found.last_sequence_id >= begin else None


def _stored(options: Options, task: Task, topic: str, known: int) -> Note:
    """The note of the row that the broker knows, which it may only just have taken."""
    until = _CLOCK.monotonic_s() + _SECONDS
    while True:
        found = last_note(options, task, topic, is_known=True)
        if found is not None and found.last_sequence_id >= known:
            check_not_later(topic, task, found.last_sequence_id)
            return found
        if _CLOCK.monotonic_s() > until:
            raise not_comparable(topic, task, "the broker knows of some that cannot be read")
        threading.Event().wait(_PAUSE_SECONDS)
