"""Bugs of the broker that tests once let pass."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RUNS = "tests/broker/topic/test_runs.py"

DEDUP = "geminga/broker/topic/dedup.py"
DEDUP_CURSOR = "geminga/broker/topic/dedup_cursor.py"
DEDUP_ENTRIES = "geminga/broker/topic/dedup_entries.py"
DELAYED = "geminga/broker/delays/subscription_delays.py"
DELAYING = "geminga/broker/dispatch/delaying.py"
DISPATCHER = "geminga/broker/dispatch/dispatcher.py"
AT_ONCE = "tests/broker/subscription/test_published_at_once.py"
HASH_RANGES = "geminga/broker/dispatch/hash_ranges.py"
SNAPSHOTS = "tests/broker/topic/test_dedup_snapshots.py"
DELAYED_READS = "tests/broker/delays/test_delayed_reads.py"
LEFT_BEHIND = "tests/broker/delays/test_index_left_behind.py"
GIVEN_OUT = "tests/broker/delays/test_given_out.py"
LEDGER_RANGES = "tests/broker/delays/test_ledger_ranges.py"
FIXED_DELAY = "tests/broker/delays/test_fixed_delay.py"
PUBLISH_MEMORY = "geminga/broker/flow/publish_memory.py"
READER = "geminga/broker/connection/reader.py"
MEMORY_TESTS = "tests/broker/flow/test_publish_memory.py"
FAIR_TURNS = "tests/broker/connection/test_fair_turns.py"

SEND_MEMORY = "tests/broker/flow/test_send_memory.py"

LOOP_EDGES = "tests/server/test_loop_edges.py"
COALESCING = "geminga/broker/flow/coalescing.py"
COALESCING_TESTS = "tests/broker/flow/test_coalescing.py"

MUTANTS = (
    Mutant(
        "publishers-that-come-back-at-once-are-made-to-wait",
        COALESCING,
        "        are_rare = len(self._publishers) == self._alone\n",
        "        are_rare = True\n",
        (COALESCING_TESTS,),
        "publishers that wait for each receipt, each of which would come 2 ms later",
    ),
    Mutant(
        "a-publisher-of-two-messages-is-made-to-wait",
        "geminga/broker/topic/publishing.py",
        "sent(producer, len(stored), is_alone=is_alone)",
        "sent(producer, len(stored), is_alone=is_alone and len(stored) == 1)",
        ("tests/broker/connection/test_waiting_clients.py",),
        "a publisher that sends ten messages when it has ten receipts, which took three times as long",
    ),
    Mutant(
        "a-stream-ends-its-own-pauses",
        COALESCING,
        "not self._publishers <= self._streams",
        "bool(self._publishers)",
        (COALESCING_TESTS,),
        "a stream that the broker catches up with, which was read 40 messages at a time",
    ),
    Mutant(
        "pauses-in-which-nothing-comes-go-on",
        COALESCING,
        "            if self._vain_pauses >= VAIN_PAUSES_MAX:",
        "            if False:",
        (COALESCING_TESTS,),
        "a publisher with 128 messages on its way at most, which had half the rate",
    ),
    Mutant(
        "a-window-of-any-length-is-judged",
        COALESCING,
        "        is_recent = now_s < self._ends_s + WINDOW_S\n",
        "        is_recent = True\n",
        (COALESCING_TESTS,),
        "16 messages in a minute, for which a pause gains nothing",
    ),
    Mutant(
        "receipts-are-held-up-by-pauses",
        COALESCING,
        "if self._pauses and not is_writing() else",
        "if self._pauses else",
        (COALESCING_TESTS,),
        "that receipts leave as soon as the disk has the entries",
    ),
    Mutant(
        "outbox-drops-what-the-socket-did-not-take",
        "geminga/broker/flow/outbox.py",
        "            self._parts = [memoryview(data)[sent:]]\n",
        "            parts.clear()\n",
        (f"{LOOP_EDGES}::test_a_part_that_the_socket_took_is_not_sent_again_and_the_rest_follows",),
        "a slow consumer's stream would lack bytes in the middle",
    ),
    Mutant(
        "outbox-sends-past-what-waits-for-memory",
        "geminga/broker/flow/outbox.py",
        "        if self._memory.has_waiting():",
        "        if False:",
        (f"{LOOP_EDGES}::test_outboxes_that_wait_for_memory_are_told_by_a_task_when_something_has_left",),
        "tasks would be woken where the loop goes to sleep without looking for them",
    ),
    Mutant(
        "nothing-is-read-along",
        DELAYING,
        "return tracker.peek(count) if tracker is not None and count else []",
        "return []",
        (f"{DELAYED_READS}::test_messages_due_one_by_one_from_disk_are_read_many_at_once",),
        "each message that is due alone, of a backlog that is not in memory, would take a trip to the disk",
    ),
    Mutant(
        "read-along-though-evicted",
        DELAYING,
        "was_used = 2 * self._found >= self._count",
        "was_used = True",
        (f"{DELAYED_READS}::test_as_much_is_read_along_as_was_of_use",),
        "a full read cache would have each due message load a hundred others, and evict them again",
    ),
    Mutant(
        "parsed-and-forgotten",
        "geminga/broker/topic/publishing.py",
        "self._ledger.append(stored, run, parsed)",
        "self._ledger.append(stored, run)",
        ("tests/broker/topic/test_parsed_once.py",),
        "metadata that publishing has parsed would be parsed again by each dispatcher at the tail",
    ),
    Mutant(
        "runs-pass-the-end-of-a-ledger",
        "geminga/broker/topic/publishing.py",
        "len(sizes) <= self._ledger.run_entries_max()",
        "True",
        (f"{RUNS}::test_a_ledger_ends_with_its_last_entry_although_a_run_goes_on",),
        "ledgers would be longer than managedLedgerMaxEntriesPerLedger",
    ),
    Mutant(
        "runs-with-one-entry-too-large",
        "geminga/broker/topic/publishing.py",
        "            and producer.accepts_size(largest_bytes)\n",
        "",
        (f"{RUNS}::test_an_entry_that_is_refused_leaves_the_others_of_its_run",),
        "messages above maxMessageSize would be stored",
    ),
    Mutant(
        "runs-past-deduplication",
        "geminga/broker/topic/publishing.py",
        "            self.dedup.ids is None\n            and not self.closed\n",
        "            not self.closed\n",
        (f"{RUNS}::test_deduplication_judges_each_entry_of_what_came_together",),
        "duplicates would be stored",
    ),
    Mutant(
        "one-error-for-a-run",
        "geminga/broker/topic/publishing.py",
        "            for sequence_id in run.sequence_ids:\n",
        "            for sequence_id in run.sequence_ids[:1]:\n",
        (f"{RUNS}::test_every_entry_of_a_run_that_fails_gets_an_error",),
        "publishers would wait for answers that never come",
    ),
    Mutant(
        "publishers-that-wait-unnoticed",
        "geminga/broker/topic/publishing.py",
        "        if is_alone and len(stored) == 1:",
        "        if not is_alone and len(stored) == 1:",
        ("tests/broker/topic/test_receipts_waited_for.py",),
        "every publisher with one message in flight would wait a millisecond more",
    ),
    Mutant(
        "small-frames-queue-behind-large-ones",
        PUBLISH_MEMORY,
        "        return self.pending_bytes - self._large_pending_bytes() < self.small_share_bytes",
        "        return False",
        (f"{MEMORY_TESTS}::test_large_frames_never_take_the_share_of_small_ones",),
        "a few half messages stopped all publishers for minutes",
    ),
    Mutant(
        "silent-frames-keep-their-turns",
        READER,
        "                memory.leave_turn(frame, received_bytes)  # nothing to receive in it",
        "                pass",
        (f"{FAIR_TURNS}::test_a_silent_half_frame_takes_no_turn_from_others",),
        "each half message cost every other large one a second",
    ),
    Mutant(
        "parts-of-frames-without-bound",
        PUBLISH_MEMORY,
        "        lost.disconnect()\n",
        "",
        (f"{FAIR_TURNS}::test_parts_of_frames_that_stopped_are_bounded_and_their_connections_are_closed",),
        "megabytes of each message that stopped, beyond what the memory was to be",
    ),
    Mutant(
        "turns-end-with-chunks-only",
        READER,
        "            if turn.is_over(frames):",
        "            if False:",
        (f"{FAIR_TURNS}::test_the_more_connections_flood_the_shorter_are_their_turns",),
        "a client with cheap commands kept the others waiting for seconds",
    ),
    Mutant(
        "turns-begin-anew-while-memory-is-full",
        READER,
        "if session.outbox.is_behind():",
        "if not session.outbox.is_writable():",
        (
            f"{FAIR_TURNS}::test_a_flood_leaves_the_others_their_turns_while_peers_that_do_not_read_hold_all_memory",
        ),
        "one flooder had the loop for itself for minutes, beside consumers that read slowly",
    ),
    Mutant(
        "chunks-by-the-number-of-commands-only",
        READER,
        " or took_s > CHUNK_S_MAX:",
        ":",
        (f"{FAIR_TURNS}::test_chunks_are_large_where_commands_are_and_take_little_time",),
        "five acknowledgements of five thousand messages each took a tenth of a second of the loop",
    ),
    Mutant(
        "lists-of-topics-side-by-side",
        "geminga/broker/connection/handle_topic_lists.py",
        "        async with lists.listing:\n",
        "        if True:\n",
        (f"{FAIR_TURNS}::test_lists_of_many_topics_are_gathered_in_slices_one_list_at_a_time",),
        "clients that ask for the topics of a namespace again and again, and everybody else between them",
    ),
    Mutant(
        "schemas-for-peers-that-do-not-read",
        "geminga/broker/connection/handle_schemas.py",
        "        await session.outbox.wait_taken()\n        try:",
        "        try:",
        (f"{FAIR_TURNS}::test_large_schemas_are_answered_as_their_peer_takes_them",),
        "15 KB of requests took 250 MB of memory on each connection",
    ),
    Mutant(
        "outboxes-without-a-bound",
        "geminga/broker/flow/outbox.py",
        "        if self._memory.take(size_bytes):\n            self._is_held = True\n",
        "        self._memory.take(size_bytes)\n",
        (f"{SEND_MEMORY}::test_beyond_the_part_each_outbox_gets_one_small_read_and_no_more",),
        "4 MiB and a read for each consumer that does not read: 1.1 GB for 200 of them",
    ),
    Mutant(
        "outboxes-full-for-ever",
        "geminga/broker/flow/outbox.py",
        "if watch.left_bytes - left_bytes < STALL_BYTES and self._memory.is_wanted():",
        "if False:",
        (f"{SEND_MEMORY}::test_a_peer_that_takes_nothing_is_disconnected_when_others_wait_for_its_memory",),
        "peers that do not read held all of the memory, and nobody else was given anything",
    ),
    Mutant(
        "dedup-snapshot-by-entries-once",
        DEDUP_CURSOR,
        "        finally:\n            self._snapshot_under_way = False",
        "        finally:\n            self._snapshot_under_way = True",
        (f"{SNAPSHOTS}::test_each_so_many_entries_there_is_another_snapshot",),
        "a second snapshot by number of entries: what is read again after a crash grew without bound",
    ),
    Mutant(
        "dedup-snapshot-interval-0-is-always",
        DEDUP_CURSOR,
        "is_old = 0 < interval_s * 1000 <=",
        "is_old = 0 <= interval_s * 1000 <=",
        (f"{SNAPSHOTS}::test_with_an_interval_of_0_no_snapshot_is_written_for_its_age",),
        "brokerDeduplicationSnapshotIntervalSeconds=0: never for its age",
    ),
    Mutant(
        "dedup-snapshot-without-bound",
        DEDUP,
        "            if room_bytes < 0:\n                break\n",
        "",
        (
            f"{SNAPSHOTS}::test_a_snapshot_of_long_names_keeps_to_its_bytes_and_to_the_latest",
            f"{SNAPSHOTS}::test_long_names_of_many_producers_do_not_keep_a_snapshot_from_being_written",
        ),
        "many long producer names make a snapshot that no metadata record has room for",
    ),
    Mutant(
        "dedup-snapshot-counts-no-names",
        DEDUP,
        "room_bytes -= len(name.encode()) + _VALUE_BYTES",
        "room_bytes -= _VALUE_BYTES",
        (f"{SNAPSHOTS}::test_long_names_of_many_producers_do_not_keep_a_snapshot_from_being_written",),
        "the same, with the bound counted by values alone",
    ),
    Mutant(
        "dedup-snapshot-counts-characters",
        DEDUP,
        "room_bytes -= len(name.encode()) + _VALUE_BYTES",
        "room_bytes -= len(name) + _VALUE_BYTES",
        (f"{SNAPSHOTS}::test_a_snapshot_of_long_names_keeps_to_its_bytes_and_to_the_latest",),
        "names whose letters take several bytes",
    ),
    Mutant(
        "dedup-last-chunk-is-one-too-far",
        DEDUP_ENTRIES,
        "metadata.chunk_id == metadata.num_chunks - 1",
        "metadata.chunk_id == metadata.num_chunks",
        (f"{SNAPSHOTS}::test_only_the_last_chunk_counts_as_the_message",),
        "which chunk makes its message known; outside of end-to-end tests",
    ),
    Mutant(
        "dedup-any-chunk-is-the-last",
        DEDUP_ENTRIES,
        "return not metadata.is_chunk or metadata.chunk_id == metadata.num_chunks - 1",
        "return True",
        (f"{SNAPSHOTS}::test_only_the_last_chunk_counts_as_the_message",),
        "the chunks behind the first one taken for duplicates; outside of end-to-end tests",
    ),
    Mutant(
        "dedup-any-chunk-in-the-log-is-the-last",
        DEDUP_ENTRIES,
        'if metadata.HasField("chunk_id") and metadata.chunk_id != metadata.num_chunks_from_msg - 1:',
        "if False:",
        (f"{SNAPSHOTS}::test_chunks_of_a_message_that_is_not_complete_are_stored_again_after_a_start",),
        "a chunked message that was cut off by a restart taken for stored",
    ),
    Mutant(
        "cleared-index-keeps-its-buckets",
        DELAYED,
        "        if self.own is not None:\n            await self.own.clear()\n",
        "",
        (f"{LEFT_BEHIND}::test_no_bucket_is_left_when_the_cursor_leaps",),
        "clear-backlog and seek of a subscription whose index is in buckets",
    ),
    Mutant(
        "what-consumers-have-is-asked-of-the-first-dispatcher",
        "geminga/broker/delays/given_out.py",
        "        self._books = books",
        "        self._books = books if self._books is NO_BOOKS else self._books",
        (f"{GIVEN_OUT}::test_the_dispatcher_that_serves_now_is_asked",),
        "that an index asks the present dispatcher what is with consumers, not one of an earlier type",
    ),
    Mutant(
        "read-up-to-of-an-outdated-answer",
        "geminga/broker/delays/ledger_ranges.py",
        "        if self._is_asked:\n",
        "        if True:\n",
        (f"{LEDGER_RANGES}::test_what_is_lost_while_a_part_is_read_has_it_read_from_the_start",),
        "that entries which were lost during a read are read again from the first on",
    ),
    Mutant(
        "undelayed-lifts-no-pause",
        DELAYED,
        "            self.tracker.saw_undelayed(position)",
        "            pass",
        (f"{FIXED_DELAY}::test_reading_does_not_pause_once_an_undelayed_message_came_by",),
        "that an undelayed message lifts the fixed-delay pause of a real subscription",
    ),
    Mutant(
        "undelayed-alone-lifts-no-pause",
        DELAYING,
        "        if batch.entries and not batch.timed:\n",
        "        if False:\n",
        (f"{FIXED_DELAY}::test_reading_does_not_pause_once_an_undelayed_message_came_by",),
        "the same, read without delayed messages beside it",
    ),
    Mutant(
        "undelayed-among-delayed-lifts-no-pause",
        DELAYING,
        "        if len(batch.timed) < len(batch.entries):\n            delayed.saw",
        "        if False:\n            delayed.saw",
        (f"{FIXED_DELAY}::test_reading_does_not_pause_once_an_undelayed_message_came_by",),
        "the same, read together with delayed messages",
    ),
    Mutant(
        "lost-part-read-beyond-the-read-position",
        DELAYED,
        "end = min(end, stop.entry_id) if ledger_id == stop.ledger_id else 0",
        "end = max(end, stop.entry_id) if ledger_id == stop.ledger_id else 0",
        (f"{LEFT_BEHIND}::test_what_was_not_read_yet_is_not_read_again_with_a_lost_part",),
        "that reading again after a lost bucket stops at the read position: entries came twice",
    ),
    Mutant(
        "range-split-takes-an-early-range",
        HASH_RANGES,
        "if end - low > widest[1] - widest[0]:",
        "if end - low > widest[1] + widest[0]:",
        ("tests/broker/dispatch/test_hash_ranges.py::test_slots_have_the_owners_that_they_have_in_pulsar",),
        "which range is split when the widest is not the first (no consistent hashing, consumers left)",
    ),
    Mutant(
        "published-at-once-in-spite-of-a-seek",
        "geminga/broker/subscription/subscription.py",
        "self._sleeper.is_asleep and not (self._fenced or self._ended)",
        "self._sleeper.is_asleep",
        (f"{AT_ONCE}::test_a_seek_that_has_begun_lets_nothing_out",),
        "what is published while a seek disconnects consumers",
    ),
    Mutant(
        "published-before-what-a-woken-task-has-to-send",
        "geminga/broker/dispatch/task.py",
        "return not self._is_woken and (",
        "return (",
        (f"{AT_ONCE}::test_what_is_asked_for_again_goes_before_what_is_published_in_the_same_turn",),
        "the order of what is asked for again and what is published in the same turn",
    ),
    Mutant(
        "no-round-for-what-a-plain-call-left",
        DISPATCHER,
        "        self._share_new(entries, batch)\n        return self._is_at_end()\n",
        "        self._share_new(entries, batch)\n        return True\n",
        (f"{AT_ONCE}::test_all_of_it_goes_though_a_read_ends_at_its_bytes",),
        "that a published group whose bytes are more than one read goes out whole",
    ),
    Mutant(
        "dispatch-rate-by-the-smallest-batches",
        DISPATCHER,
        "self._throttle.room(wanted, max(c.average_messages for c in receivers))",
        "self._throttle.room(wanted, min(c.average_messages for c in receivers))",
        (
            "tests/broker/flow/test_rates.py"
            "::test_a_limit_counts_the_messages_of_batches_though_a_consumer_has_had_none",
        ),
        "a dispatch rate exceeded several times over when a consumer joins others that get batches",
    ),
    Mutant(
        "a-read-overtakes-what-was-given-back",
        "geminga/broker/dispatch/replay.py",
        "        if self.keeps_order and redelivery.additions != additions:",
        "        if False:",
        (
            "tests/broker/dispatch/test_key_shared.py"
            "::test_what_is_given_back_during_a_repeated_read_goes_first",
        ),
        "the order of a key when an entry is given back during a read of later ones",
    ),
    Mutant(
        "a-read-for-consumers-that-are-gone",
        "geminga/broker/dispatch/reader.py",
        "        return read if seen == self.turned_away else None",
        "        return read",
        (
            "tests/broker/dispatch/test_delaying.py"
            "::test_consumers_that_take_the_place_of_others_during_a_read_get_each_message_once",
            "tests/broker/dispatch/test_shared.py",
        ),
        "that a read which began before a change of consumers is not used",
    ),
    Mutant(
        "a-takeover-put-off-by-each-consumer",
        "geminga/broker/dispatch/single.py",
        "        elif not self.is_waiting:",
        "        else:",
        ("tests/broker/dispatch/test_choosers.py::test_a_takeover_is_not_put_off_by_who_comes_next",),
        "that consumers which come one after the other do not put a failover off",
    ),
    Mutant(
        "selected-but-never-shared-is-forgotten",
        "geminga/broker/dispatch/key_shared.py",
        "may_select = self._may_select or self._selected",
        "may_select = self._may_select",
        (
            "tests/broker/dispatch/test_choosers.py"
            "::test_what_was_selected_and_never_came_is_looked_for_again",
        ),
        "that entries of a read that failed are tried again",
    ),
    Mutant(
        "no-pace-of-due-messages",
        DELAYING,
        "return 0 <= now_ms - self._drained_ms < DUE_PAUSE_MS",
        "return False",
        ("tests/broker/delays/test_exact_times.py::test_the_pace",),
        "a turn of the dispatcher for each message of a stream that falls due",
    ),
    Mutant(
        "precision-not-read-at-a-start",
        "geminga/broker/delays/topic_delays.py",
        "if (precision_ms := precision_ms_of(delays)) is not None:",
        "if (precision_ms := precision_ms_of(delays)) is None:",
        (
            "tests/broker/delays/test_exact_times.py"
            "::test_a_precision_holds_for_its_subscription_and_survives_a_start",
        ),
        "a subscription's precision after a restart",
    ),
    Mutant(
        "no-start-over-for-the-first-consumer",
        DISPATCHER,
        "        if len(self.consumers) == 1:\n            self.reset()\n",
        "",
        (
            "tests/broker/dispatch/test_single.py"
            "::test_unacknowledged_entries_come_again_to_the_next_consumer",
        ),
        "that what consumers left unacknowledged is read again for the first that comes after them",
    ),
    Mutant(
        "receipts-of-a-run-stay-behind-when-the-producer-changes",
        "geminga/broker/topic/publishing.py",
        "                sequence_ids, highest_sequence_ids = [], []\n",
        "",
        (
            "tests/broker/topic/test_receipt_runs.py"
            "::test_producers_that_take_turns_get_the_receipts_of_their_own_entries",
        ),
        "receipts of one producer's entries that another producer's client gets",
    ),
    Mutant(
        "messages-of-transactions-stored",
        "geminga/broker/topic/producer.py",
        "if send.txnid is not None:",
        "if False:",
        ("tests/e2e/faults/test_e2e_transactions.py",),
        "that a message which carries a transaction id is not stored as a plain one",
    ),
    Mutant(
        "half-a-transaction-id-overlooked",
        "geminga/wire/parse.py",
        'if message.HasField("txnid_least_bits") or message.HasField("txnid_most_bits"):',
        'if message.HasField("txnid_least_bits") and message.HasField("txnid_most_bits"):',
        ("tests/e2e/faults/test_e2e_transactions.py",),
        "that half a transaction id is one as well",
    ),
    Mutant(
        "refusals-overtake-receipts",
        "geminga/broker/topic/producer.py",
        "if self.pending and isinstance(error, NotAllowed):",
        "if False:",
        ("tests/e2e/faults/test_e2e_transactions.py",),
        "that SEND_ERRORs leave behind the receipts of earlier messages",
    ),
    Mutant(
        "refusals-leave-one-receipt-late",
        "geminga/broker/topic/producer.py",
        "while frames and frames[0][0] <= self._answers:",
        "while frames and frames[0][0] < self._answers:",
        ("tests/broker/topic/test_refusals.py",),
        "after which receipt a refusal leaves",
    ),
    Mutant(
        "patterns-without-a-memory-limit",
        "geminga/broker/topic_lists/pattern.py",
        "    options.max_mem = PROGRAM_BYTES_MAX\n",
        "",
        ("tests/broker/topic_lists/test_pattern.py",),
        "that a client's pattern takes bounded memory",
    ),
)
