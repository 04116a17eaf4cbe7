"""Mutants of `geminga/bookie/`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RECOVERY = "geminga/bookie/recovery/recovery.py"
JOURNAL_REPLAY = "geminga/bookie/recovery/journal_replay.py"
MARKS = "tests/bookie/recovery/test_directory_marks.py::"
DELETED = (MARKS + "test_a_ledger_that_was_deleted_does_not_come_back_by_another_directory_s_mark",)
QUEUE = "test_publishers_wait_as_soon_as_one_journal_has_its_share_of_what_may_wait"

NAMED = "tests/bookie/offline/test_ledger_names.py::"

JOURNAL = "geminga/bookie/journal/journal.py"
TURNS = "tests/bookie/journal/test_turns.py::"

DIRECTORY_REPLAY = "geminga/bookie/recovery/directory_replay.py"
LEDGER_INDEX = "geminga/bookie/index/ledger_index.py"
REAL_FILE = "geminga/storage/real_file.py"
REAL_FILES = "tests/storage/test_disk.py::"
UNCOVERED = "geminga/bookie/entry_logs/uncovered.py"
OLDER = "tests/bookie/recovery/test_older_index.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "the-rest-of-a-short-write-is-not-synced",
        REAL_FILE,
        '                rest = [memoryview(b"".join(rest))[written:]]\n                length -= written\n',
        '                self.pwrite(offset + written, memoryview(b"".join(rest))[written:])\n'
        "                break\n",
        (REAL_FILES + "test_each_part_of_a_write_is_synced",),
        "a receipt for a group of which the disk has the beginning",
    ),
    Mutant(
        "every-file-system-is-taken-to-keep-the-flag",
        REAL_FILE,
        "return not failed and facts[0] & 0xFFFFFFFF in _DSYNC_FILE_SYSTEMS",
        "return not failed",
        (REAL_FILES + "test_file_systems_that_keep_the_flag_are_known_by_their_number",),
        "a file system that takes the flag and does not sync",
    ),
    Mutant(
        "a-refused-flag-is-left-out-without-a-sync",
        REAL_FILE,
        "        self.pwrite_many(offset, parts)\n        self.sync()\n",
        "        self.pwrite_many(offset, parts)\n",
        (REAL_FILES + "test_a_system_that_refuses_the_call_gets_two",),
        "an old kernel whose groups would not be synced",
    ),
    Mutant(
        "a-write-whose-sync-fails-is-tried-again",
        REAL_FILE,
        "if error.errno not in _DSYNC_REFUSALS:",
        "if error.errno == 0:",
        (REAL_FILES + "test_a_write_with_its_sync_that_fails_is_not_tried_again",),
        "a sync that succeeds because the failed one has cleaned the pages",
    ),
    Mutant(
        "journals-under-other-names-count-as-unused",
        "geminga/bookie/recovery/recovery.py",
        "            journal.check_names(directory.marks[number] for directory in self._directories)",
        "            pass",
        ("tests/bookie/recovery/test_misnamed_journals.py",),
        "that a start with journals under other names is refused",
    ),
    Mutant(
        "an-older-index-is-believed",
        DIRECTORY_REPLAY,
        "        self._take_uncovered()\n        # Marks and lost rows",
        "        # Marks and lost rows",
        (OLDER + "test_each_entry_of_the_logs_is_served_and_no_log_is_deleted",),
        "a ledger would be closed shorter than its bytes in the entry logs",
    ),
    Mutant(
        "a-mismatch-keeps-no-log",
        DIRECTORY_REPLAY,
        "below = self._writer.position.log_id + 1 if self.mismatch else self._index.kept.below",
        "below = self._index.kept.below * 0",
        (OLDER + "test_each_entry_of_the_logs_is_served_and_no_log_is_deleted",),
        "what the first start deletes could be missed when the right index is put back",
    ),
    Mutant(
        "a-log-that-is-back-is-dead",
        UNCOVERED,
        "return bool(index.usage.get(log_id)) or log_id in index.dead",
        "return True",
        (OLDER + "test_a_log_that_is_put_back_is_served_and_not_deleted",),
        "the advice to put the file back would end with its deletion",
    ),
    Mutant(
        "a-compacted-log-is-not-known-as-dead",
        LEDGER_INDEX,
        ", *(_dead_put(dead) if emptied else [])]",
        "]",
        (OLDER + "test_a_compacted_log_does_not_bring_back_what_was_deleted_before",),
        "ledgers that were deleted long ago would be set aside after a kill",
    ),
    Mutant(
        "gaps-behind-what-was-found-are-not-named",
        DIRECTORY_REPLAY,
        "            self._torn.update(row.ledger_id for row in found)\n",
        "",
        (OLDER + "test_what_no_file_has_is_named",),
        "a consumer would stop at entries that no message of the start has named",
    ),
    Mutant(
        "old-journals-are-overwritten-while-a-log-is-missing",
        "geminga/bookie/journal/files.py",
        "may_overwrite = bool(self._free) and self._may_overwrite()",
        "may_overwrite = bool(self._free)",
        (
            "tests/bookie/running/test_removed_files.py::"
            "test_spare_journals_stay_from_the_moment_a_closed_log_is_removed",
        ),
        "the only other place of a removed log's entries would be gone before anybody looks",
    ),
    Mutant(
        "a-missing-journal-s-name-is-given-again",
        RECOVERY,
        "SKIPPED_IDS = 20",
        "SKIPPED_IDS = 0",
        ("tests/e2e/files/test_journal_put_back.py",),
        "a journal that is put back after a crash would overwrite another one, or not be read",
    ),
    Mutant(
        "the-queue-counts-bodies-without-their-prefix",
        JOURNAL,
        "self.queued_bytes += sum(map(len, bodies)) + len(bodies) * RECORD_PREFIX_BYTES",
        "self.queued_bytes += sum(map(len, bodies))",
        ("tests/bookie/journal/test_queue.py",),
        "a count that goes below zero, by what the loop subtracts for each record",
    ),
    Mutant(
        "journal-holds-what-somebody-waits-for",
        JOURNAL,
        "is_wanted = self._is_hurried or self._stopping",
        "is_wanted = self._stopping",
        (TURNS + "test_each_entry_that_somebody_waits_for_is_a_group_at_once",),
        "every publisher with one message in flight would wait a millisecond more",
    ),
    Mutant(
        "journal-forgets-the-held",
        JOURNAL,
        " or self.queued_entries >= SPACED_ENTRIES_MAX",
        "",
        (TURNS + "test_many_entries_are_worth_a_group",),
        "groups at full speed would be two milliseconds apart",
    ),
    Mutant(
        "recovery-journal-ids-above-the-earliest-mark",
        RECOVERY,
        "latest = [max(of_journal) for of_journal",
        "latest = [min(of_journal) for of_journal",
        (MARKS + "test_journals_that_are_gone_leave_their_ids_used",),
        "that journal ids are not used again when the journals are gone and the directories' marks differ",
    ),
    Mutant(
        "journal-replay-refill-without-flushing",
        JOURNAL_REPLAY,
        "                            directory.refill(segment)\n"
        "                            directory.flush_if_full()\n",
        "                            directory.refill(segment)\n",
        ("tests/bookie/recovery/test_lost_logs.py::test_no_more_than_a_write_cache_is_in_memory_meanwhile",),
        "how much is in memory while a lost entry log is put together again from the journals",
    ),
    Mutant(
        "missing-logs-last-record-cut",
        "geminga/bookie/entry_logs/missing_logs.py",
        "row.offset + row.ends[-1] <= length:",
        "row.offset + row.ends[-1] <= length + 1:",
        ("tests/bookie/recovery/test_lost_logs.py",),
        "that a log which lacks a byte of its last record lacks that entry",
    ),
    Mutant(
        "log-ends-all-logs-closed",
        "geminga/bookie/entry_logs/log_ends.py",
        "if not is_whole and ",
        "if False and ",
        ("tests/bookie/recovery/test_lost_logs.py",),
        "that a log without the last record that the index names in it is healed at the start",
    ),
    Mutant(
        "log-deleted-for-another",
        "geminga/bookie/entry_logs/reader.py",
        "if other_log_in_header(file, log_id) is not None:",
        "if False:",
        ("tests/bookie/recovery/test_misnamed_logs.py",),
        "that a log is not deleted in the place of the one whose name its file has",
    ),
    Mutant(
        "healing-names-at-every-pass",
        "geminga/bookie/running/healing.py",
        "            for run in lost:\n                self._remember(run)\n",
        "",
        ("tests/bookie/running/test_scrub.py",),
        "that damage which cannot be healed is named once and counted once",
    ),
    Mutant(
        "healing-rows-before-records",
        "geminga/bookie/running/healing.py",
        "healed = await self._storage.rewrite(found)",
        "healed = found.entries",
        ("tests/bookie/running/test_scrub.py",),
        "that healed entries are written and found at their new place",
    ),
    Mutant(
        "journal-replay-loss-before-a-mark",
        JOURNAL_REPLAY,
        "                if end > directory.marks[self._number]:\n                    directory.lose",
        "                if True:\n                    directory.lose",
        DELETED,
        "that damage in what a directory has flushed brings back no deleted ledger",
    ),
    Mutant(
        "journal-replay-loss-at-a-mark",
        JOURNAL_REPLAY,
        "                if end > directory.marks[self._number]:\n                    directory.lose",
        "                if end >= directory.marks[self._number]:\n                    directory.lose",
        DELETED,
        "the same for the last group before the mark",
    ),
    Mutant(
        "journal-queue-full-one-byte-late",
        "geminga/bookie/journal/journal_set.py",
        "journal.queued_bytes >= self.queue_bytes_max",
        "journal.queued_bytes > self.queue_bytes_max",
        (f"tests/bookie/running/test_directories.py::{QUEUE}",),
        "the exact bound of what may wait for one journal",
    ),
    Mutant(
        "journal-queue-full-of-all-journals",
        "geminga/bookie/journal/journal_set.py",
        "return any(journal.queued_bytes",
        "return all(journal.queued_bytes",
        (f"tests/bookie/running/test_directories.py::{QUEUE}",),
        "that a single journal that is full makes publishers wait",
    ),
    Mutant(
        "journal-name-forgotten",
        "geminga/bookie/journal/journal.py",
        "if first == 0 and adder.name is not None:",
        "if first == 1 and adder.name is not None:",
        (NAMED + "test_a_journal_names_the_ledgers_that_begin_in_it",),
        "that a ledger's name is durable with its first entry",
    ),
    Mutant(
        "entry-log-name-in-the-footer-only",
        "geminga/bookie/entry_logs/writer.py",
        "if body := encode_name(name):",
        'if body := b"":',
        (NAMED + "test_a_log_that_was_never_closed_names_its_ledgers",),
        "that a log which a crash left open names its ledgers",
    ),
    Mutant(
        "recovery-without-names",
        "geminga/bookie/recovery/directory_replay.py",
        "self._writer.write(self._cache, self.names)",
        "self._writer.write(self._cache, {})",
        (NAMED + "test_a_log_that_was_never_closed_names_its_ledgers",),
        "that names go on from the journal to the logs that a recovery writes",
    ),
    Mutant(
        "compaction-forgets-names-of-unclosed-logs",
        "geminga/bookie/entry_logs/slices.py",
        "self.names = self._logs.names(log_id)",
        "pass",
        (NAMED + "test_compaction_carries_names_out_of_a_log_that_was_never_closed",),
        "that compaction carries the names out of a log without a footer",
    ),
    Mutant(
        "compaction-counts-names-as-dead",
        "geminga/bookie/entry_logs/scan.py",
        "    return sum(ledger.usage.bytes for",
        "    return file.size() - HEADER_BYTES + 0 * sum(ledger.usage.bytes for",
        (NAMED + "test_names_are_nothing_to_compact_a_log_for",),
        "that a log of short ledgers is not compacted for its names",
    ),
)
