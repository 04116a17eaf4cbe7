"""Mutants of `geminga/pipeline/`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STREAMING = "geminga/pipeline/topics/streaming.py"
TESTS = "tests/pipeline/topics/test_acknowledged.py::"
READ = (TESTS + "test_what_the_subscription_has_acknowledged_counts_as_read",)
SPLITS = "geminga/pipeline/topics/splits.py"
SPLITS_TESTS = ("tests/pipeline/topics/test_splits.py",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "stream-acknowledged-unknown",
        STREAMING,
        "        return mark_delete\n",
        "        return None\n",
        READ,
        "that what the subscription has acknowledged counts as read when its ledger was trimmed",
    ),
    Mutant(
        "stream-acknowledged-at-the-begin-of-a-ledger",
        STREAMING,
        "            mark_delete[1] >= 0 and mark_delete > (start.ledger_id, start.entry_id - 1)",
        "            mark_delete > (start.ledger_id, start.entry_id - 1)",
        READ,
        "the same where trimming has moved the mark-delete position before a new ledger's first entry",
    ),
    Mutant(
        "reading-entry-behind-the-acknowledged",
        "geminga/pipeline/topics/reading.py",
        "first <= (wanted.acknowledged[0], wanted.acknowledged[1] + 1)",
        "first <= (wanted.acknowledged[0], wanted.acknowledged[1])",
        READ,
        "that the entry behind the mark-delete position is the next one",
    ),
    Mutant(
        "acknowledger-without-its-consumer",
        "geminga/pipeline/topics/acknowledging.py",
        "if error.code != ServerError.METADATA:",
        "if True:",
        (TESTS + "test_a_stream_goes_on_after_its_topic_was_unloaded",),
        "that a stream with a subscription survives the unloading of its topic",
    ),
    Mutant(
        "bucket-ranges-by-ledger",
        "geminga/pipeline/buckets/buckets.py",
        "if ends_ledger else ((block + 1) << BLOCK_BITS) - 1",
        "if True else ((block + 1) << BLOCK_BITS) - 1",
        ("tests/pipeline/buckets/test_buckets.py::test_ranges_end_inside_ledgers_and_leave_nothing_out",),
        "that a range may end inside a ledger",
    ),
    Mutant(
        "bucket-regions-of-the-widest",
        "geminga/pipeline/buckets/buckets.py",
        "waiting = sorted((one.first_code, one.last_code - one.first_code, n)",
        "waiting = sorted((one.first_code, one.first_code - one.last_code, n)",
        (
            "tests/pipeline/buckets/test_buckets.py::test_a_position_belongs_to_the_narrowest_bucket_that_has_it",
        ),
        "to which of several buckets that overlap a position belongs",
    ),
    Mutant(
        "bucket-faults-unexplained",
        "geminga/pipeline/buckets/buckets.py",
        'is_open = overlaps and fault in ("missing", "unknown")',
        "is_open = False",
        ("tests/pipeline/buckets/test_buckets.py::test_buckets_that_overlap_are_right_together",),
        "that what a bucket lacks and an overlapping one has is no fault",
    ),
    Mutant(
        "splits-first-entry-of-the-next-ledger",
        SPLITS,
        "            if left < last - first:",
        "            if left <= last - first:",
        SPLITS_TESTS,
        "where a part begins whose border is that of two ledgers",
    ),
    Mutant(
        "splits-bytes-of-whole-ledgers",
        SPLITS,
        "sum((last - first) * each for _, first, last, each in parts)",
        "sum(last * each for _, first, last, each in parts)",
        SPLITS_TESTS,
        "that only the bytes within the range decide how many parts there are",
    ),
    Mutant(
        "splits-lenient-about-lost-entries",
        SPLITS,
        "strict=wanted.strict or index > 0",
        "strict=wanted.strict",
        SPLITS_TESTS,
        "that every part but the first notices when the entry that it begins with is gone",
    ),
    Mutant(
        "splits-without-the-entry-that-is-read-in-part",
        SPLITS,
        "end.entry_id + (1 if end.batch_index else 0)",
        "end.entry_id",
        SPLITS_TESTS,
        "that an entry of which the range wants the first messages counts like any other",
    ),
)
