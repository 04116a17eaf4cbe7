"""Mutants of `geminga/pipeline/`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STREAMING = "geminga/pipeline/topics/streaming.py"
TESTS = "tests/pipeline/topics/test_acknowledged.py::"
READ = (TESTS + "test_what_the_subscription_has_acknowledged_counts_as_read",)

MUTANTS = (
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
        "stream-acknowledged-by-others",
        STREAMING,
        "            mark_delete[1] >= 0 and mark_delete > (start.ledger_id, start.entry_id - 1)",
        "            False",
        (TESTS + "test_what_others_have_acknowledged_on_the_subscription_is_lost",),
        "without Spark, that what others have acknowledged on the subscription does not count as read",
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
        "except (BrokerUnreachable, Refused):",
        "except BrokerUnreachable:",
        (TESTS + "test_a_stream_goes_on_after_its_topic_was_unloaded",),
        "that a stream with a subscription survives the unloading of its topic",
    ),
)
