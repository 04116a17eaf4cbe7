"""Mutants of `geminga/server/`, of the admin port's connections, and of opening files."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ADMISSION = "geminga/server/admission.py"
ADMITTED = "tests/server/test_admission.py::"
CONNECTION = "geminga/admin/http/connection.py"
DISK = "geminga/storage/disk.py"
OWN_HOST = "geminga/admin/http/own_host.py"
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
        DISK,
        "_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)",
        "_SHORTAGES = (errno.EMFILE, errno.ENFILE)",
        ("tests/storage/test_disk.py::test_an_open_without_descriptors_waits_until_there_are_some",),
        "that ENOMEM at an open is no failed disk either",
    ),
)
