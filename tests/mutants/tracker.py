"""Mutants of `geminga/tracker/`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MERGE_PLAN = "geminga/tracker/buckets/merge_plan.py"
MERGE_PLAN_TESTS = ("tests/tracker/buckets/test_merge_plan.py",)
INDEX = "geminga/tracker/index/index.py"
BOUNDS = "tests/tracker/index/test_index_bounds.py::"
BUCKET_FORMAT = "geminga/tracker/format/bucket_format.py"
BUCKET_FORMAT_TESTS = "tests/tracker/format/test_bucket_format.py::"
LATENESS = "geminga/tracker/index/due_rows.py"
LATENESS_TESTS = "tests/tracker/index/test_lateness.py::"
TOPIC_DELAYS_TESTS = "tests/broker/delays/test_topic_delays.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "merge-plan-old-buckets-under-a-large-bound",
        MERGE_PLAN,
        "if buckets_max > SOURCES_MAX:",
        "if False:",
        MERGE_PLAN_TESTS,
        "that under a bound above SOURCES_MAX only the newest buckets are merged",
    ),
    Mutant(
        "merge-plan-price-for-each-bucket",
        MERGE_PLAN,
        "(total / (end - start - 1), (start, end))",
        "(total / (end - start), (start, end))",
        MERGE_PLAN_TESTS,
        "that the neighbours with the fewest rows for each bucket less are chosen",
    ),
    Mutant(
        "merge-plan-window-one-short",
        MERGE_PLAN,
        "min(start + WINDOW_MAX, len(sizes)) + 1",
        "min(start + WINDOW_MAX, len(sizes))",
        MERGE_PLAN_TESTS,
        "how many small neighbours are merged at once",
    ),
    Mutant(
        "merge-plan-unit-of-two-rows",
        MERGE_PLAN,
        "unit = max(1, sizes[-1])",
        "unit = max(2, sizes[-1])",
        MERGE_PLAN_TESTS,
        "how often buckets of a single row are rewritten",
    ),
    Mutant(
        "merge-plan-one-slot-more",
        MERGE_PLAN,
        "_first_of(max(1, round(left / unit)), buckets_max - i)",
        "_first_of(max(1, round(left / unit)), buckets_max - i + 1)",
        MERGE_PLAN_TESTS,
        "that the number of writes is the least possible, and not only below a generous bound",
    ),
    Mutant(
        "merge-plan-last-slot",
        MERGE_PLAN,
        "if i >= buckets_max - 1:",
        "if i >= buckets_max:",
        MERGE_PLAN_TESTS,
        "that a lowered bound is reached in one merge, and not in several that each write the same rows",
    ),
    Mutant(
        "index-override-kept-after-delivery",
        INDEX,
        "                del self.overrides[rows.codes.item(row)]",
        "                pass",
        (BOUNDS + "test_a_changed_time_is_forgotten_when_its_message_no_longer_waits",),
        "that a changed due time is forgotten once the message is delivered",
    ),
    Mutant(
        "index-override-kept-after-discard",
        INDEX,
        "self.overrides.pop(code_of(ledger_id, entry_id), None)",
        "pass",
        (BOUNDS + "test_a_changed_time_is_forgotten_when_its_message_no_longer_waits",),
        "that a changed due time is forgotten once the message is acknowledged or cancelled",
    ),
    Mutant(
        "index-due-rows-counted-after-they-fell-behind",
        INDEX,
        "            self._due_rows -= oldest.rows.length",
        "            pass",
        (BOUNDS + "test_rows_that_fell_behind_do_not_count_any_more",),
        "that DUE_ROWS_MAX bounds what is kept now, and not all that ever fell behind",
    ),
    Mutant(
        "index-due-rows-counted-after-take-back",
        INDEX,
        "self._due_rows = sum(batch.rows.length for batch in self._due)",
        "self._due_rows += 0",
        (BOUNDS + "test_rows_that_were_taken_back_do_not_count_any_more",),
        "that DUE_ROWS_MAX does not count rows that wait again",
    ),
    Mutant(
        "poke-without-loading",
        "geminga/tracker/buckets/buckets.py",
        "        self.load_signal.set()\n        self.delete_signal.set()\n",
        "        self.delete_signal.set()\n",
        ("tests/tracker/buckets/test_loading.py",),
        "that due segments are loaded when the index pokes its buckets, and not up to a second later",
    ),
    Mutant(
        "an-earlier-process-is-taken-over-with-its-last-bucket",
        "geminga/tracker/buckets/unknown.py",
        "list(accumulate((last for _, last in ranges), max))",
        "[last for _, last in ranges]",
        ("tests/tracker/buckets/test_unknown.py::test_a_long_range_behind_short_ones",),
        "that a ledger is unknown while an earlier, longer bucket may say when its entries are due",
    ),
    Mutant(
        "unreadable-bucket-is-lost",
        "geminga/tracker/buckets/bucket_store.py",
        "LOST: Final = (CorruptData, LedgerNotFound)",
        "LOST: Final = (StorageError,)",
        ("tests/tracker/buckets/test_verify.py", "tests/tracker/buckets/test_loading.py"),
        "that a bucket which cannot be read now is not deleted",
    ),
    Mutant(
        "deleted-ledger-is-told-to-no-one",
        "geminga/bookie/running/ledger_directory.py",
        "        self.healing.watch.lost(ledger_id)\n\n    def watch(",
        "\n    def watch(",
        ("tests/tracker/buckets/test_verify.py",),
        "that a bucket whose ledger is deleted under it is noticed at once",
    ),
    Mutant(
        "membership-top-goes-down",
        "geminga/tracker/index/membership.py",
        "self._top = max(self._top, self._open_bitmap.max() + 1)",
        "self._top = min(self._top, self._open_bitmap.max() + 1)",
        (
            "tests/tracker/index/test_membership.py::test_what_comes_back_to_the_open_ledger_is_not_added_twice",
        ),
        "that entries put back into the open ledger are not counted twice when they are read again",
    ),
    Mutant(
        "bucket-directory-with-bytes-behind-the-members",
        BUCKET_FORMAT,
        "if at != len(whole) or not members:",
        "if at != len(whole) and not members:",
        (BUCKET_FORMAT_TESTS + "test_bytes_behind_the_members_of_a_directory_are_refused",),
        "that a directory with trailing bytes is refused",
    ),
    Mutant(
        "bucket-directory-pieces-in-any-order",
        BUCKET_FORMAT,
        '            raise ValueError(f"another piece where {number} of {len(entries)} should be")',
        "            pass",
        (BUCKET_FORMAT_TESTS + "test_a_directory_says_which_of_its_pieces_each_is",),
        "that pieces of a directory with other numbers are refused",
    ),
    Mutant(
        "lateness-counted-when-taken",
        "geminga/tracker/index/view.py",
        "if len(due.given_ms) > GIVEN_COLUMNS_MAX:",
        "if True:",
        (LATENESS_TESTS + "test_it_counts_when_it_is_given_out_not_when_it_is_taken",),
        "at which moment a delayed message counts as given out",
    ),
    Mutant(
        "lateness-early-among-the-first-class",
        LATENESS,
        'due_ms.searchsorted(now_ms, "right")',
        "len(due_ms)",
        (LATENESS_TESTS + "test_as_if_each_was_counted",),
        "that what comes early is in no class",
    ),
    Mutant(
        "lateness-class-without-its-bound",
        LATENESS,
        "due_ms.searchsorted(now_ms - _ENDS)",
        'due_ms.searchsorted(now_ms - _ENDS, "right")',
        (LATENESS_TESTS + "test_as_if_each_was_counted",),
        "that a class includes its bound",
    ),
    Mutant(
        "lateness-by-the-kept-time",
        "geminga/tracker/index/view.py",
        "self._now_ms() - self.index.rules.middle_ms",
        "self._now_ms()",
        (LATENESS_TESTS + "test_times_that_are_kept_less_exactly_count_as_their_middle",),
        "that rounding makes a strict delivery no earlier than it is",
    ),
    Mutant(
        "index-keeps-what-a-gone-laggard-needed",
        "geminga/broker/delays/topic_delays.py",
        "        self.shared.index.trim_passed()\n",
        "",
        (TOPIC_DELAYS_TESTS + "test_what_only_the_last_laggard_needed_goes_when_it_unsubscribes",),
        "that buckets go with the subscription that needed them last",
    ),
    Mutant(
        "time-bucket-ends-with-the-next-one",
        "geminga/tracker/index/time_rules.py",
        "self.width_ms - 1 - self._slack.refused_ms",
        "self.width_ms - self._slack.refused_ms",
        (
            "tests/tracker/index/test_precision.py::test_limits_at_the_edges_of_a_time_bucket",
            "tests/tracker/index/test_precision.py::test_messages_of_a_time_bucket_come_together",
        ),
        "that a message is early by less than the precision that its subscription asked for",
    ),
    Mutant(
        "due-to-one-view-is-due-to-all",
        "geminga/tracker/index/view.py",
        "                    index.take_back(limit_ms)",
        "                    break",
        ("tests/tracker/index/test_precision.py::test_what_comes_to_a_bucket_that_was_drained_is_exact",),
        "what is due behind messages that another subscription was given early",
    ),
    Mutant(
        "a-second-row-for-what-others-have-due",
        "geminga/tracker/index/view.py",
        "            index.take_back(0)",
        "            pass",
        (
            "tests/tracker/index/test_precision.py"
            "::test_what_is_read_again_after_it_came_early_is_not_lost_to_the_others",
        ),
        "that another subscription gets what is read again after the first one got it early",
    ),
    Mutant(
        "a-leap-counts-what-is-below",
        "geminga/tracker/index/feed.py",
        "            self.tails[below[-1]] = self._tail(code - 1)",
        "            self.tails[len(below) - 1] = self._tail(code - 1)",
        (
            "tests/tracker/index/test_tails.py"
            "::test_a_leap_over_an_end_that_was_overtaken_keeps_what_overtook_it",
        ),
        "that a leap drops no rows where a stream has come past the end of the topic",
    ),
    Mutant(
        "absorbed-without-its-end",
        "geminga/tracker/index/part.py",
        "        self._floor_code = max(self._floor_code, other.last_code)\n",
        "",
        ("tests/tracker/index/test_tails.py::test_a_stream_that_ran_past_the_end_is_sealed_whole",),
        "that what is joined with the end of the topic is sealed whole where it reaches beyond",
    ),
    Mutant(
        "the-first-at-the-end-cuts-for-all",
        INDEX,
        "if self.is_behind and not any(reader.reads_behind for reader in self.readers):",
        "if self.is_behind:",
        (
            "tests/broker/delays/test_reading_behind.py"
            "::test_a_subscription_at_the_end_cuts_off_nothing_that_another_reads_again",
        ),
        "that a rebuild is not cut into runts by a subscription that waits at the end of the topic",
    ),
    Mutant(
        "early-rows-hide-earlier-ones",
        "geminga/tracker/index/view.py",
        "elif min(index.earliest_ms(), due.later_ms()) <= limit_ms:",
        "elif index.earliest_ms() <= limit_ms:",
        (
            "tests/tracker/index/test_precision.py"
            "::test_a_bucket_that_is_recovered_late_is_in_time_behind_what_came_early",
        ),
        "that a strict view is given what came to the index behind another view's early messages",
    ),
    Mutant(
        "early-rows-without-a-bound",
        INDEX,
        "if rows > EARLY_ROWS_MAX or batches > EARLY_BATCHES_MAX:",
        "if False:",
        (
            "tests/tracker/index/test_precision.py"
            "::test_what_one_view_got_early_does_not_fall_behind_for_the_others",
        ),
        "messages that come early to all since many came early to one",
    ),
    Mutant(
        "open-column-that-narrows-one-too-far",
        "geminga/tracker/index/open_column.py",
        "if highest - least < end:",
        "if highest - least <= end:",
        ("tests/tracker/index/test_open_column.py::test_numbers_are_kept_at_the_edge_of_each_width",),
        "that a number which needs one more byte gets it",
    ),
    Mutant(
        "packed-rows-decoded-before-they-are-due",
        "geminga/tracker/index/sources.py",
        "if self.min_ms[self.next_segment] > limit_ms:",
        "if False:",
        ("tests/tracker/index/test_index_memory.py",),
        "that packed rows stay packed until their time comes",
    ),
    Mutant(
        "feed-over-the-border-of-what-is-reserved",
        "geminga/tracker/index/feed.py",
        "return min(border, min((code for code in others if code > part.last_code), default=NO_CODE))",
        "return min((code for code in others if code > part.last_code), default=NO_CODE)",
        ("tests/tracker/index/test_reserved.py::test_what_is_reserved_of_a_ledger_stays_out_of_buckets",),
        "that a stream stays out of buckets from the first position on for which others are about to come",
    ),
    Mutant(
        "adopting-replaces-neighbours",
        "geminga/tracker/index/adopting.py",
        "return place >= 0 and ranges[place][1] >= first_code",
        "return place >= 0 and ranges[place][1] >> 32 >= first_code >> 32",
        ("tests/tracker/index/test_reserved.py::test_only_what_overlaps_is_cut_off_and_replaced",),
        "that buckets of the same ledger stay where they do not overlap with new ones",
    ),
    Mutant(
        "trim-without-subscriptions-that-have-no-view",
        "geminga/broker/delays/open_index.py",
        "passed_by_all=passed_by_all if settings.is_shared else None,",
        "passed_by_all=None,",
        (TOPIC_DELAYS_TESTS + "test_what_a_subscription_without_consumers_needs_stays_in_a_shared_index",),
        "that a shared index keeps what a subscription without consumers needs",
    ),
    Mutant(
        "seek-keeps-what-was-to-be-read-again",
        "geminga/broker/delays/subscription_delays.py",
        "        self.all_again()\n        self.read_until",
        "        self.read_until",
        (
            "tests/broker/delays/test_delayed_index.py::"
            "test_ranges_of_before_are_not_to_be_read_again_once_the_cursor_has_moved",
        ),
        "that a seek or a skip forgets which ranges of the index were lost before it",
    ),
    Mutant(
        "whole-backlog-read-beside-lost-ranges",
        "geminga/broker/dispatch/delaying.py",
        "        self._delayed.all_again()\n",
        "",
        (
            "tests/broker/delays/test_delayed_index.py::"
            "test_a_first_consumer_reads_the_backlog_and_no_lost_range_beside_it",
        ),
        "that a first consumer reads the backlog, and not the lost ranges of the index beside it",
    ),
    Mutant(
        "take-back-of-rows-that-all-views-have-read",
        INDEX,
        "start = 0 if min(places)[0] < number else min(row for at, row in places if at == number)",
        "start = 0",
        ("tests/tracker/index/test_index_order.py::test_what_all_views_have_read_does_not_wait_again",),
        "that what all views have read does not wait again when the clock is set back",
    ),
    Mutant(
        "lost-bucket-leaves-what-was-passed-of-it",
        INDEX,
        "            reader.passed.discard_range(first_code, last_code)\n",
        "            pass\n",
        (
            "tests/tracker/index/test_released_buckets.py::"
            "test_a_lost_bucket_takes_along_what_was_passed_of_it",
        ),
        "that a view of a shared index does not count what it had passed of a lost bucket",
    ),
    Mutant(
        "verify-without-the-members",
        "geminga/tracker/buckets/verify.py",
        "if self._seen != self.directory.members:",
        "if False:",
        ("tests/tracker/buckets/test_verify.py",),
        "that verify finds a directory which promises other messages than sound segments have",
    ),
    Mutant(
        "shared-index-takes-all-that-one-reads",
        "geminga/tracker/index/view.py",
        "(len(self.index.readers) > 1 or self.reader.passed.count)",
        "self.reader.passed.count",
        ("tests/tracker/index/test_composition.py",),
        "that what one subscription reads is not due once more to another that has had it",
    ),
    Mutant(
        "shared-index-takes-what-was-passed",
        "geminga/tracker/index/view.py",
        "(len(self.index.readers) > 1 or self.reader.passed.count)",
        "len(self.index.readers) > 1",
        ("tests/tracker/index/test_composition.py",),
        "that what is read again counts, though it was passed before",
    ),
)
