"""Mutants of `geminga/server/`, of the admin port's connections, and of want of descriptors."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ADMISSION = "geminga/server/admission.py"
ADMITTED = "tests/server/test_admission.py::"
CHANGE_NOTE = "geminga/metadata/change_note.py"
CONNECTION = "geminga/admin/http/connection.py"
DESCRIPTOR_WAIT = "geminga/storage/descriptor_wait.py"
KEY_VALUE = "geminga/storage/key_value.py"
OWN_HOST = "geminga/admin/http/own_host.py"
ROCKSDB = "geminga/storage/rocksdb.py"
ROCKSDB_ERRORS = "geminga/storage/rocksdb_errors.py"
WITHOUT_DESCRIPTORS = "tests/storage/test_key_value_descriptors.py::"
PAGES = ("tests/admin/http/test_own_host.py::test_who_is_refused",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "the-latest-idle-connection-goes",
        ADMISSION,
        "        longest = next(iter(self._idle_since_s), None)",
        "        longest = next(reversed(self._idle_since_s), None)",
        (ADMITTED + "test_the_longest_idle_goes_for_a_newcomer",),
        "that the longest idle connection makes room, not the one that came last",
    ),
    Mutant(
        "metadata-of-a-copy-counts-as-newer",
        CHANGE_NOTE,
        "return 0 if is_behind else None",
        "return 0",
        ("tests/metadata/test_change_note.py::test_how_many_changes_metadata_lacks",),
        "that metadata of a copy that ran on is refused, however many changes it has",
    ),
    Mutant(
        "newcomers-are-not-told-of-idle-ones",
        ADMISSION,
        "        self._idle_since_s[visit] = trio.current_time()\n        self._changed.unpark_all()",
        "        self._idle_since_s[visit] = trio.current_time()",
        (ADMITTED + "test_whoever_is_busy_stays_and_newcomers_wait",),
        "a newcomer who waits until a busy connection becomes idle",
    ),
    Mutant(
        "an-answer-that-is-not-read-keeps-its-place",
        CONNECTION,
        "                self._visit.idle()\n",
        "",
        ("tests/admin/http/test_http.py::test_all_but_answering_is_idle",),
        "that those who do not read their answers cannot lock out others",
    ),
    Mutant(
        "origin-of-another-port-is-own",
        OWN_HOST,
        "(name, port or default) == (_host_name(host), _port(host) or default)",
        "name == _host_name(host)",
        PAGES,
        "changes from a page of another port of the same host",
    ),
    Mutant(
        "lack-of-kernel-memory-at-an-open-ends-all",
        DESCRIPTOR_WAIT,
        "SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)",
        "SHORTAGES = (errno.EMFILE, errno.ENFILE)",
        ("tests/storage/test_disk.py::test_an_open_without_descriptors_waits_until_there_are_some",),
        "that ENOMEM at an open is no failed disk either",
    ),
    Mutant(
        "a-write-is-confirmed-that-was-not-applied-again",
        KEY_VALUE,
        "            attempts = attempts or Attempts(self._descriptors, self.path, doing)\n            try:\n"
        "                self._open_again(reason, attempts)\n",
        "            attempts = attempts or Attempts(self._descriptors, self.path, doing)\n            try:\n"
        "                return self._open_again(reason, attempts)\n",
        (WITHOUT_DESCRIPTORS + "test_a_write_that_needs_a_new_log_waits_and_all_before_it_stays",),
        "a batch that failed for want of descriptors and was not applied after the database was opened anew",
    ),
    Mutant(
        "a-scan-goes-on-with-later-rows",
        ROCKSDB,
        "scan.last is not None and scan.sequence != sequence",
        "scan.last is not None and scan.sequence > sequence",
        (WITHOUT_DESCRIPTORS + "test_a_scan_that_cannot_go_on_as_of_its_start_says_so",),
        "that a scan is as of one moment, also after the database was opened anew",
    ),
    Mutant(
        "failed-writes-for-want-of-memory-are-tried-again",
        ROCKSDB_ERRORS,
        "_OPENS.search(text) and text.endswith(_SHORT_OF)",
        "text.endswith(_SHORT_OF)",
        (WITHOUT_DESCRIPTORS + "test_only_an_open_without_descriptors_or_memory_is_no_failure",),
        "that a write or sync which fails with ENOMEM is final",
    ),
)
