"""Bugs of the managed ledger that tests once let pass."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "each-new-ledger-moves-the-last-confirmed-entry",
        "geminga/managed_ledger/chain/appender.py",
        "        if self.last_confirmed.ledger_id < 0:\n            # The first ledger",
        "        if self.last_confirmed.entry_id >= -1:\n            # The first ledger",
        ("tests/managed_ledger/chain/test_appender.py",),
        "a rollover after which the last confirmed entry is not the newest durable one",
    ),
    Mutant(
        "ledgers-go-before-cursors-are-saved",
        "geminga/managed_ledger/lifecycle.py",
        '                await self.cursors.persist_all()\n            # "Metadata first',
        '                pass\n            # "Metadata first',
        ("tests/managed_ledger/test_managed_ledger.py::test_a_trim_and_a_kill_leave_where_cursors_stood",),
        "that a crash behind a trim does not bring a cursor back into a ledger that is gone",
    ),
    Mutant(
        "a-dropped-ledger-is-forgotten",
        "geminga/managed_ledger/cursor/acknowledgments.py",
        "            self._dropped_end = self.mark_delete\n",
        "            pass\n",
        ("tests/managed_ledger/cursor/test_acknowledgments.py",),
        "that a subscription says where it stood in a ledger that was deleted",
    ),
    Mutant(
        "every-ledger-without-a-record-is-doubtful",
        "geminga/managed_ledger/unrecorded.py",
        "if each in held.doubtful and each < next_id]",
        "if each < next_id]",
        ("tests/managed_ledger/test_unrecorded.py",),
        "metadata that is behind, beside an index that is whole",
    ),
    Mutant(
        "nothing-keeps-what-is-restored",
        "geminga/managed_ledger/restore.py",
        "if changed.ledgers and (returned or is_cursor_lost or lacks_changes):",
        "if changed.ledgers and (is_cursor_lost or lacks_changes):",
        ("tests/managed_ledger/test_unrecorded.py",),
        "a restored topic without its subscriptions",
    ),
    Mutant(
        "a-rebuilt-index-needs-no-look",
        "geminga/bookie/index/ledger_index.py",
        '            puts.append((UNSORTED_KEY, b"1"))\n',
        "            pass\n",
        ("tests/managed_ledger/test_old_metadata.py",),
        "a crash between an index that was made anew and the setting aside of its ledgers",
    ),
    Mutant(
        "every-ledger-of-a-backlog-by-share",
        "geminga/managed_ledger/lifecycle.py",
        "if ledger.ledger_id == position.ledger_id and ledger.entries:",
        "if ledger.entries:",
        ("tests/managed_ledger/test_backlog_size.py",),
        "size of a backlog that begins in the middle of a ledger and goes on over more",
    ),
    Mutant(
        "no-ledger-of-a-backlog-by-share",
        "geminga/managed_ledger/lifecycle.py",
        "if ledger.ledger_id == position.ledger_id and ledger.entries:",
        "if False:",
        ("tests/managed_ledger/test_backlog_size.py",),
        "the same; the first ledger counted as a whole",
    ),
    Mutant(
        "acknowledged-runs-are-not-passed",
        "geminga/managed_ledger/cursor/acknowledged.py",
        "while (bitmap := self._acked.get(found.ledger_id)) is not None and found.entry_id in bitmap:",
        "while (bitmap := None) is not None and found.entry_id in bitmap:",
        ("tests/managed_ledger/cursor/test_next_unacknowledged.py",),
        "the next unacknowledged entry behind entries acknowledged beyond mark-delete",
    ),
    Mutant(
        "readers-before-their-ledger",
        "geminga/managed_ledger/chain/ledger_chain.py",
        "        if found.entry_id < 0:\n",
        "        if False:\n",
        (
            "tests/pipeline/triggers/test_planning_at_size.py::"
            "test_the_last_entry_before_a_ledger_tells_how_long_the_one_before_is",
        ),
        "that a reader's mark-delete position is in the ledger before, as in Pulsar",
    ),
    Mutant(
        "unload-without-the-cursors",
        "geminga/managed_ledger/lifecycle.py",
        "            await self.cursors.persist_all()\n            if self.chain.newest_is_open",
        "            if self.chain.newest_is_open",
        ("tests/e2e/faults/test_e2e_unload_acks.py",),
        "end to end: that an unload keeps the acknowledgements which the broker has taken",
    ),
    Mutant(
        "scattered-reads-read-ahead",
        "geminga/managed_ledger/chain/ledger_reads.py",
        "goes_on=_is_in_order(rest)",
        "goes_on=True",
        ("tests/managed_ledger/test_managed_ledger.py",),
        "that a million random delays do not have all that lies between them loaded",
    ),
)
