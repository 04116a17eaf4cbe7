"""Bugs of the stream of events."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LOG = "geminga/events/event_log.py"
FILES = "geminga/events/event_files.py"
TESTS = ("tests/events/test_event_log.py",)
E2E = ("tests/e2e/chaos/test_e2e_events.py",)

MUTANTS = (
    Mutant(
        "events-count-from-one-again",
        LOG,
        "self._sequence = self._files.last_sequence()",
        "self._sequence = 0",
        TESTS,
        "that numbers go on over restarts",
    ),
    Mutant(
        "events-grow-without-bound",
        LOG,
        " or self._recent_bytes > EVENTS_BYTES_MAX",
        "",
        TESTS,
        "that memory is bounded by bytes too",
    ),
    Mutant(
        "events-forget-what-was-missed",
        LOG,
        "yield Missed(self._first - 1 - since)",
        "pass",
        TESTS,
        "that a slow reader is told what it missed",
    ),
    Mutant(
        "events-joined-for-ever",
        LOG,
        "if joined.until_s <= now_s or self._is_stopping",
        "if self._is_stopping",
        TESTS,
        "that joined events are told within a second",
    ),
    Mutant(
        "events-join-a-torn-line",
        FILES,
        'lines = b"\\n" + lines',
        "pass",
        TESTS,
        "that a torn line costs itself only",
    ),
    Mutant(
        "events-keep-one-file",
        FILES,
        "if size > self._file_bytes_max:",
        "if False:",
        TESTS,
        "that the files are bounded",
    ),
    Mutant(
        "losses-untold",
        "geminga/tracker/buckets/buckets.py",
        "        self.events.lost(bucket, how, error, waiting)\n",
        "",
        E2E,
        "that a loss is told",
    ),
    Mutant(
        "catching-up-untold",
        "geminga/broker/delays/subscription_delays.py",
        "            if not self._again:\n                self._record",
        "            if False:\n                self._record",
        E2E,
        "that the end of reading again is told",
    ),
    Mutant(
        "gap-of-a-follower-one-too-wide",
        "geminga/events/event_log.py",
        "                since = self._first - 1\n",
        "                since = self._first\n",
        ("tests/events/test_event_log.py",),
        "the first event after a gap",
    ),
)
