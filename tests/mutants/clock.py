"""Bugs of the virtual clock and of its jumps."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CLOCK = "geminga/clock.py"
JUMPS = "geminga/broker/jumps/jumps.py"
NEXT = "geminga/broker/jumps/next_events.py"
METADATA = "geminga/wire/message_metadata.py"
STATE = "geminga/metadata/virtual_clock_state.py"
CLOCK_TESTS = ("tests/test_clock.py",)
E2E = "tests/e2e/delays/test_e2e_clock.py"
RESTARTS = "tests/e2e/delays/test_e2e_clock_restarts.py"
STATE_TESTS = "tests/metadata/test_clock_state.py"
WIRE_TESTS = ("tests/wire/test_message_metadata.py",)

MUTANTS = (
    Mutant(
        "clock-goes-back-with-the-machines",
        CLOCK,
        "self._reached_ms = max(self._reached_ms, wall_ms + self._offset_ms)",
        "self._reached_ms = self._wall_ms() + self._offset_ms",
        CLOCK_TESTS,
        "that message time never goes back",
    ),
    Mutant(
        "clock-ticks-within-a-move",
        CLOCK,
        "        if not self._is_held:\n            self._reached_ms",
        "        if True:\n            self._reached_ms",
        CLOCK_TESTS,
        "that what happens at a stop happens at one moment",
    ),
    Mutant(
        "clock-rings-a-moment-late",
        CLOCK,
        "alarms[0][0] <= now_ms):",
        "alarms[0][0] < now_ms):",
        CLOCK_TESTS,
        "that a task is woken at its time",
    ),
    Mutant(
        "clock-keeps-cancelled-alarms",
        CLOCK,
        "alarms[:] = [entry for entry in alarms if entry[2].call is not None]",
        "pass",
        CLOCK_TESTS,
        "that alarms take bounded memory",
    ),
    Mutant(
        "quiet-does-not-wait-for-the-second-in-line",
        CLOCK,
        "generations < GENERATIONS_MAX:",
        "generations < 1:",
        CLOCK_TESTS,
        "that a jump waits for those that the woken ones wake",
    ),
    Mutant(
        "due-by-the-clients-clock",
        METADATA,
        "min(stamped_ms + deliver_at_ms - client.publish_time_ms, _INT64_MAX)",
        "min(deliver_at_ms, _INT64_MAX)",
        WIRE_TESTS,
        "that a delay counts from the stamp",
    ),
    Mutant(
        "expiry-by-the-clients-clock",
        METADATA,
        "client, body=body, publish_time_ms=stamped_ms, deliver_at_ms=deliver_at_ms",
        "client, body=body, deliver_at_ms=deliver_at_ms",
        WIRE_TESTS,
        "that TTL counts from the stamp",
    ),
    Mutant(
        "jump-is-not-saved",
        JUMPS,
        "                    await self._saves.begin(to_ms)\n",
        "                    pass\n",
        (f"{E2E}::test_a_kill_within_a_move_never_sets_the_clock_back",),
        "that a jump is durable before it begins",
    ),
    Mutant(
        "end-of-a-jump-is-not-saved",
        JUMPS,
        "clock.let_go(await self._saves.end())",
        "pass",
        (f"{E2E}::test_a_caller_that_goes_away_ends_its_move",),
        "that the time which a jump takes is not counted after a restart",
    ),
    Mutant(
        "jump-in-one-step",
        JUMPS,
        "stop_ms = self.to_ms if next_ms is None else min(max(next_ms, now_ms + 1), self.to_ms)",
        "stop_ms = self.to_ms",
        (f"{E2E}::test_a_reminder_that_sends_the_next_one",),
        "that a jump stops at each due time",
    ),
    Mutant(
        "checks-after-what-is-due",
        JUMPS,
        "if rounds.are_due(stop_ms - 1):",
        "if False:",
        (f"{E2E}::test_what_expires_before_it_is_due_is_let_go",),
        "that what expires before it is due is not delivered",
    ),
    Mutant(
        "jump-ends-with-the-first-round",
        JUMPS,
        "if has_changed:",
        "if False:",
        (f"{E2E}::test_what_follows_from_what_expires_follows_within_the_move",),
        "that ledgers go whose messages a jump has let expire",
    ),
    Mutant(
        "jump-without-acknowledgements",
        JUMPS,
        'if move.wait == "acknowledged":',
        "if False:",
        (f"{E2E}::test_a_reminder_that_sends_the_next_one",),
        "that a stop waits for the application",
    ),
    Mutant(
        "jump-does-not-wait-for-an-index",
        JUMPS,
        "while any(s.delayed.unknown is not None for s in subscriptions_of(self._loaded)):",
        "while False:",
        ("tests/broker/test_jumps.py",),
        "that a jump knows what is due after a start",
    ),
    Mutant(
        "jump-does-not-tell-what-is-unacknowledged",
        JUMPS,
        "if patience.cancelled_caught:",
        "if False:",
        (f"{E2E}::test_what_is_not_acknowledged_in_time_is_told",),
        "that a test fails whose application does not keep up",
    ),
    Mutant(
        "jump-does-not-tell-of-a-queue-of-size-0",
        JUMPS,
        "return subscription.backlog() > len(delayed) + sum(len(consumer.pending) for consumer in consumers)",
        "return False",
        (f"{E2E}::test_due_messages_for_a_queue_of_size_0_are_told",),
        "that due messages which were never read are told",
    ),
    Mutant(
        "each-stop-of-a-move-is-a-step",
        CLOCK,
        "now_ms - from_ms if next_ms is not None and next_ms < now_ms else 0",
        "now_ms - from_ms",
        CLOCK_TESTS,
        "that a late message is told as late where a move stops at each due time",
    ),
    Mutant(
        "step-of-a-move-goes-on-after-it",
        CLOCK,
        "        self._step_ms = 0\n        self._offset_ms = offset_ms",
        "        self._offset_ms = offset_ms",
        CLOCK_TESTS,
        "that what comes after a move is told as late",
    ),
    Mutant(
        "events-by-the-machines-clock",
        "geminga/events/event_log.py",
        "time_ms=self._clock.now_ms(),",
        "time_ms=self._wall.now_ms(),",
        (f"{E2E}::test_events_have_the_time_of_the_clock",),
        "that events are stamped by the broker's clock",
    ),
    Mutant(
        "next-event-without-the-ttl",
        NEXT,
        "since_ms + ttl_s * 1000 + 1, rounds.expiry.due_ms) + 1",
        "since_ms + ttl_s * 1000 + 1, rounds.expiry.due_ms)",
        (f"{E2E}::test_the_next_event_is_the_end_of_a_ttl",),
        "that the next event has happened when the move is over",
    ),
    Mutant(
        "next-event-takes-the-month-for-old",
        NEXT,
        "if topic.policies.ttl_from_due_time:",
        "if False:",
        (f"{E2E}::test_the_next_event_is_the_end_of_a_ttl",),
        "that a TTL from the due time ends later",
    ),
    Mutant(
        "next-event-without-the-check",
        NEXT,
        "max(unused_ms, rounds.unused_subscriptions.due_ms) + 1",
        "unused_ms",
        (f"{E2E}::test_the_next_event_is_the_end_of_what_is_unused",),
        "that a check runs before the next event is over",
    ),
    Mutant(
        "target-of-a-jump-counts-from-its-beginning",
        STATE,
        "if not record.moving_to_ms:",
        "if True:",
        (f"{RESTARTS}::test_after_a_kill_in_a_move_the_clock_is_at_its_target_once", STATE_TESTS),
        "that a start after a kill in a jump begins at its target",
    ),
    Mutant(
        "target-of-a-jump-at-each-start",
        STATE,
        "    await save_clock(store, clock)\n    return clock",
        "    return clock",
        (f"{RESTARTS}::test_after_a_kill_in_a_move_the_clock_is_at_its_target_once", STATE_TESTS),
        "that the clock does not go back to the target of a jump at the second start",
    ),
    Mutant(
        "clock-of-yesterday-after-a-restart",
        STATE,
        "return make(record.offset_ms, record.reached_ms)",
        "return make(0, record.reached_ms)",
        (f"{E2E}::test_a_year_in_three_moves_with_restarts_between", STATE_TESTS),
        "that the offset survives a restart",
    ),
)
