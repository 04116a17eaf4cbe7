"""Mutants of `geminga/chaos/`: rules and the doors that ask them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DECIDING = "geminga/chaos/rules/deciding.py"
FAULTS = "geminga/chaos/rules/faults.py"
RULE = "geminga/chaos/rules/rule.py"
FRAMES = "geminga/chaos/wire/frames.py"
RELAY = "geminga/chaos/wire/relay.py"
DISK = "geminga/chaos/disk/faulty_disk.py"
METADATA = "geminga/chaos/disk/faulty_metadata.py"
ADMIN = "geminga/admin/http/faulty.py"
CAN_HIT = "geminga/chaos/rules/can_hit.py"
RULES = "tests/chaos/rules/test_rules.py::"
WIRE = "tests/e2e/chaos/test_e2e_wire_faults.py::"
FRAMES_MOVED = "tests/chaos/wire/test_relay.py::"
REQUESTS = "tests/e2e/chaos/test_e2e_admin_faults.py::"
KINDS = "tests/e2e/chaos/test_e2e_every_kind.py::"
DISKS = "tests/e2e/chaos/test_e2e_disk_faults.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "rules-of-syncs-miss-the-call-that-writes-too",
        DISK,
        "        if self._door.armed or self._points.door.armed:\n",
        "        if self._points.door.armed:\n",
        (KINDS + "test_rules_of_writes_and_of_syncs_hit_the_call_that_does_both",),
        "a rule of the journal that never hits",
    ),
    Mutant(
        "the-simulated-disk-forgets-a-write-with-its-sync",
        "simulation/disk/sim_inode.py",
        "last.is_durable = True",
        "last.is_durable = False",
        (
            "tests/chaos/test_sim_disk.py::"
            "test_a_write_with_its_sync_stays_and_each_other_range_goes_by_itself",
        ),
        "a simulation that calls a sound journal broken",
    ),
    Mutant(
        "the-simulated-disk-syncs-the-whole-file-with-a-write",
        "simulation/disk/sim_inode.py",
        "if len(self.pending) == 1:",
        "if self.pending:",
        (
            "tests/chaos/test_sim_disk.py::"
            "test_a_write_with_its_sync_stays_and_each_other_range_goes_by_itself",
        ),
        "a bookie that counts on other writes of the file",
    ),
    Mutant(
        "a-rule-hits-once-more-than-its-count",
        DECIDING,
        "self.hits >= self.rule.count",
        "self.hits > self.rule.count",
        (RULES + "test_after_and_count_hit_a_range",),
        "the end of a rule by its count",
    ),
    Mutant(
        "after-lets-one-more-pass",
        DECIDING,
        "if self.calls <= rule.after:",
        "if self.calls <= rule.after + 1:",
        (RULES + "test_after_and_count_hit_a_range",),
        "the first operation behind `after`",
    ),
    Mutant(
        "a-rule-outlives-its-duration",
        DECIDING,
        'return "duration" if now_s >= self.ends_s',
        'return "duration" if now_s > self.ends_s + 1',
        (RULES + "test_a_rule_ends_at_its_duration_and_its_door_costs_nothing_again",),
        "the end of a rule by its duration",
    ),
    Mutant(
        "the-seed-of-a-rule-is-ignored",
        DECIDING,
        "random.Random(rule.seed)",
        "random.Random()",
        (RULES + "test_a_seed_hits_the_same_operations",),
        "that a seed replays the same hits",
    ),
    Mutant(
        "a-client-is-selected-by-the-beginning-of-its-address",
        DECIDING,
        'facts.client.rpartition(":")[0] == rule.client',
        "facts.client.startswith(rule.client)",
        (RULES + "test_selectors",),
        "another client whose address begins alike",
    ),
    Mutant(
        "a-cleared-rule-stays-armed",
        FAULTS,
        "            self.doors[armed.rule.place].disarm(armed)\n",
        "",
        (RULES + "test_a_cleared_rule_hits_no_more_and_is_gone",),
        "that a cleared rule has no effect",
    ),
    Mutant(
        "a-field-that-a-kind-does-not-take-is-accepted",
        RULE,
        "if is_given and field.name not in allowed:",
        "if False and field.name not in allowed:",
        (RULES + "test_a_wrong_rule_is_refused_by_its_field",),
        "a field without effect",
    ),
    Mutant(
        "the-beginning-of-a-frame-is-lost",
        FRAMES,
        "        data = self._held + data\n",
        "",
        (RULES + "test_frames_are_cut_wherever_reads_end",),
        "a frame whose head comes in two reads",
    ),
    Mutant(
        "delays-of-frames-add-up",
        RELAY,
        "leaving = self._leaving.popleft()",
        "leaving = self._leaving.popleft()._replace(read_s=trio.current_time())",
        (WIRE + "test_frames_under_a_latency_are_not_delayed_one_after_the_other",),
        "many frames under one latency",
    ),
    Mutant(
        "a-full-disk-has-free-space",
        DISK,
        "                return 0\n",
        "                pass\n",
        (DISKS + "test_a_full_disk_makes_the_broker_read_only_until_there_is_space",),
        "that enospc makes the broker read-only",
    ),
    Mutant(
        "a-torn-write-is-whole",
        DISK,
        "data[: len(data) // 2]",
        "data",
        (DISKS + "test_half_of_a_group_is_cut_off_by_the_next_start",),
        "that a torn write lacks its second half",
    ),
    Mutant(
        "a-refused-write-of-metadata-is-written",
        METADATA,
        'if "refused" in kinds:',
        'if "refused" in path:',
        (DISKS + "test_the_metadata_refuses_delays_and_conflicts",),
        "that a refused write of the metadata fails",
    ),
    Mutant(
        "hits-of-cleared-rules-not-added-up",
        "geminga/chaos/rules/faults.py",
        "self.hits_by_kind[key] = self.hits_by_kind.get(key, 0) + armed.hits",
        "self.hits_by_kind[key] = armed.hits",
        ("tests/chaos/rules/test_rules.py",),
        "that the hits of a kind never go back",
    ),
    Mutant(
        "faults-outlive-their-test",
        "geminga/testing/tenant.py",
        "        for rule in self._rules:\n",
        "        for rule in ():\n",
        ("tests/testing/test_kit.py::test_the_example_project_passes_in_any_order",),
        "that the test kit clears the faults of a test at its end, whatever the order",
    ),
    Mutant(
        "the-jitter-of-a-latency-is-ignored",
        DECIDING,
        "        if not rule.jitter_ms:\n",
        "        if rule.jitter_ms >= 0:\n",
        (FRAMES_MOVED + "test_each_delay_is_drawn_within_the_jitter_and_the_order_stays",),
        "delays that are drawn",
    ),
    Mutant(
        "a-direction-is-not-selected",
        DECIDING,
        'and rule.direction in ("", facts.direction)',
        'and rule.direction in ("", "in", "out")',
        (FRAMES_MOVED + "test_a_black_hole_takes_the_frames_of_one_direction_until_it_is_cleared",),
        "a black hole of the other direction",
    ),
    Mutant(
        "a-black-hole-takes-the-rest-of-an-unknown-frame",
        RELAY,
        ' - {"black-hole"}',
        "",
        (FRAMES_MOVED + "test_bytes_in_the_middle_of_an_unknown_frame_fall_into_no_black_hole",),
        "the framing behind a frame that is half taken",
    ),
    Mutant(
        "a-request-with-an-error-is-carried-out",
        RELAY,
        'elif kind == "error":\n                data = b""',
        'elif kind == "error":\n                pass',
        (WIRE + "test_a_request_gets_the_error_that_a_rule_names_and_is_not_carried_out",),
        "that a refused request reaches the broker",
    ),
    Mutant(
        "an-answer-with-an-error-breaks-into-a-frame",
        RELAY,
        "while self._is_between and self._inserted:",
        "while self._inserted:",
        (FRAMES_MOVED + "test_a_refused_request_is_answered_behind_the_frame_that_is_being_sent",),
        "an answer in the middle of the broker's frame",
    ),
    Mutant(
        "waiting-answers-keep-the-end-of-a-frame-from-being-read",
        RELAY,
        "            while self._held_bytes >= HELD_BYTES_MAX:\n",
        "            while self._held_bytes + self._inserted_bytes >= HELD_BYTES_MAX:\n",
        (FRAMES_MOVED + "test_answers_that_wait_for_the_end_of_a_frame_do_not_keep_it_from_ending",),
        "a connection that stops for ever behind many answers of its own",
    ),
    Mutant(
        "slices-of-a-frame-change-places",
        RELAY,
        "await self._send_slice(rest[:size_bytes], leaving.hit)\n            rest = rest[size_bytes:]",
        "await self._send_slice(rest[-size_bytes:], leaving.hit)\n            rest = rest[:-size_bytes]",
        (FRAMES_MOVED + "test_a_frame_is_passed_on_in_slices_and_the_next_one_whole",),
        "the order of a frame's slices",
    ),
    Mutant(
        "slices-outlive-their-rule",
        RELAY,
        "if one.rule.kind == kind and not self._door.is_over(one)",
        "if one.rule.kind == kind",
        (FRAMES_MOVED + "test_a_frame_in_slices_goes_on_whole_when_its_rule_is_cleared",),
        "a frame that a cleared rule goes on cutting",
    ),
    Mutant(
        "a-request-over-http-with-an-error-is-carried-out",
        ADMIN,
        "            if refusal is not None:\n                return refusal\n",
        "            if refusal is not None:\n                await self._application(request)\n"
        "                return refusal\n",
        (REQUESTS + "test_a_request_with_an_error_is_not_carried_out",),
        "that a refused request is carried out all the same",
    ),
    Mutant(
        "a-fault-of-the-admin-port-hits-the-requests-that-clear-it",
        ADMIN,
        "if self._door.armed and request.segments[: len(_ROUTES)] != _ROUTES:",
        "if self._door.armed:",
        (REQUESTS + "test_rules_can_be_cleared_while_all_else_fails",),
        "a rule that cannot be taken back",
    ),
    Mutant(
        "a-torn-sync-is-accepted",
        CAN_HIT,
        '        "enospc": ("write",),\n        "torn": ("write",),',
        '        "enospc": ("write",),\n        "torn": ("write", "sync"),',
        (KINDS + "test_a_rule_of_files_hits_each_operation_that_it_may_name",),
        "a rule that can never hit",
    ),
    Mutant(
        "a-latency-outlives-its-rule",
        RELAY,
        "for armed, delay_s in leaving.delays if not self._door.is_over(armed))",
        "for _, delay_s in leaving.delays)",
        (FRAMES_MOVED + "test_frames_under_a_latency_go_on_in_order_when_its_rule_ends",),
        "frames that an ended rule has held up",
    ),
    Mutant(
        "a-slow-file-outlives-its-rule",
        "geminga/chaos/rules/waiting.py",
        "while not door.is_over(armed) and (left_s",
        "while (left_s",
        ("tests/chaos/rules/test_waiting.py::test_a_slow_file_goes_on_when_its_rule_is_cleared",),
        "that a cleared rule lets a thread of the disk go on",
    ),
    Mutant(
        "a-last-hit-that-is-not-written-down-ends-its-rule",
        FAULTS,
        "        taken = tuple(one for one in hit if self._on_hit(one))\n",
        "        self.armed = tuple(one for one in self.armed if not one.end_reason(now_s))\n"
        "        taken = tuple(one for one in hit if self._on_hit(one))\n",
        (RULES + "test_the_last_hit_of_a_rule_that_cannot_be_written_down_is_not_its_end",),
        "a kill that a full disk has put off",
    ),
    Mutant(
        "a-refused-rule-of-a-clock-is-kept",
        "geminga/server/fault_parts.py",
        "        faults.clear(rule.id)\n",
        "        pass\n",
        ("tests/e2e/chaos/test_e2e_start_faults.py::test_a_virtual_clock_has_no_such_rules",),
        "the starts after a refused one",
    ),
    Mutant(
        "the-fastest-of-two-throttles-counts",
        RELAY,
        "await trio.sleep(sent / min(rates))",
        "await trio.sleep(sent / max(rates))",
        (FRAMES_MOVED + "test_the_slowest_of_two_throttles_counts",),
        "two rules about one rate",
    ),
    Mutant(
        "another-rule-of-the-same-id-goes-on",
        FAULTS,
        "before if before is not None and before.rule == rule else None",
        "before",
        (RULES + "test_a_file_that_says_something_else_of_a_kept_rule_begins_it_again",),
        "a file of rules that was changed between two starts",
    ),
)
