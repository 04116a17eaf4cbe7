"""Mutants of `geminga/pipeline/`: topics read as Arrow, without Spark."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ARROW_TESTS = "tests/pipeline/arrow/test_read_topic.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "arrow-reader-open-after-close",
        "geminga/pipeline/arrow/topic_reader.py",
        "            self._batches.close()\n",
        "            pass\n",
        (ARROW_TESTS + "test_it_reads_as_it_is_asked_and_leaves_nothing_when_closed",),
        "that a reader which is closed leaves no connection behind",
    ),
    Mutant(
        "arrow-columns-all-decoded",
        "geminga/pipeline/values/decoding.py",
        "    if wanted.issuperset(shape.fields):\n",
        "    if True:\n",
        (ARROW_TESTS + "test_what_nobody_asked_for_is_not_decoded",),
        "that fields of a record which are not asked for are skipped",
    ),
    Mutant(
        "arrow-end-time-rounded-down",
        "geminga/pipeline/arrow/reading.py",
        "return -((dt.datetime(1970, 1, 1, tzinfo=dt.UTC) - time) // dt.timedelta(milliseconds=1))",
        "return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)",
        (ARROW_TESTS + "test_from_a_message_to_a_message_and_from_time_to_time",),
        "that a time between two milliseconds counts as the later one",
    ),
)
