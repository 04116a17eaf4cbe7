"""Power cuts and faults with two journals and three ledger directories: a slice of the crash campaign, and
bugs that only several directories can have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.recovery import journal_replay
from geminga.bookie.recovery.directory_replay import DirectoryReplay
from geminga.bookie.running.ledger_directory import LedgerDirectory
from simulation.bookie.cases import WAYS, run_case, scripted_cases, split_layout
from simulation.bookie.scripts import SCRIPTS
from simulation.campaign.campaign import CaseFailed, random_cases

LAYOUT = "2x3"
RANDOM_CASES = 120
PLANTED_CASES = 1500


def scripted(step: int) -> Iterator[str]:
    cases = scripted_cases([f"{script}/{LAYOUT}" for script in SCRIPTS], WAYS)
    # A step that shares no factor with the number of ways meets all of them.
    return islice(cases, 0, None, step)


def test_a_layout_is_part_of_a_case_s_name() -> None:
    assert split_layout("bursts/2x3") == ("bursts", (2, 3))
    assert split_layout("random") == ("random", (1, 1))


def test_no_promise_is_broken_at_a_slice_of_all_operations() -> None:
    names = list(scripted(step=89))
    assert len(names) > 65
    for name in names:
        run_case(name)


def test_no_promise_is_broken_in_random_lives() -> None:
    crashes = 0
    for name in random_cases(RANDOM_CASES, 0, f"/{LAYOUT}"):
        crashes += run_case(name).crashes
    assert crashes > 2 * RANDOM_CASES


# ---- planted bugs

Patch = pytest.MonkeyPatch


def journals_let_go_by_the_latest_mark(patch: Patch) -> None:
    patch.setattr("geminga.bookie.running.directory_set.needed_from", lambda marks: max(marks))


def journals_read_from_the_latest_mark(patch: Patch) -> None:
    patch.setattr("geminga.bookie.recovery.recovery.needed_from", lambda marks: max(marks))


def journals_replayed_to_another_directory(patch: Patch) -> None:
    patch.setattr(journal_replay, "directory_index", lambda ledger_id, count: (ledger_id + 1) % count)


def only_the_first_directory_replayed(patch: Patch) -> None:
    real = DirectoryReplay.finish
    finished: list[DirectoryReplay] = []

    def finish(self: DirectoryReplay, marks: tuple[JournalPosition, ...]) -> None:
        if finished and finished[0]._disk is self._disk and self.path != "data/entry-logs":
            self._cache = type(self._cache)()
        finished[:] = [self]
        real(self, marks)

    patch.setattr(DirectoryReplay, "finish", finish)


def state_at_another_journals_place(patch: Patch) -> None:
    """A deletion is forgotten by the mark of the other journal, which may be far ahead."""
    real = LedgerIndex.purge

    def purge(self: LedgerIndex) -> list[int]:
        own, self.marks = self.marks, (max(self.marks),) * len(self.marks)
        try:
            return real(self)
        finally:
            self.marks = own

    patch.setattr(LedgerIndex, "purge", purge)


def only_one_directory_flushed_at_close(patch: Patch) -> None:
    patch.setattr(
        LedgerDirectory, "has_unflushed", lambda self: self.path == "data" and self.caches.active.entries > 0
    )
    patch.setattr(journal_replay.JournalReplay, "replay", lambda self, start, directories: None)


@pytest.mark.parametrize(
    ("plant", "start"),
    [
        (journals_let_go_by_the_latest_mark, 380),
        (journals_read_from_the_latest_mark, 0),
        (journals_replayed_to_another_directory, 0),
        (only_the_first_directory_replayed, 0),
        (state_at_another_journals_place, 175),
        (only_one_directory_flushed_at_close, 0),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_is_caught(monkeypatch: Patch, plant: Callable[[Patch], None], start: int) -> None:
    """All cases, beginning shortly before the first that showed the bug when this was written."""
    names = [*random_cases(PLANTED_CASES, 1, f"/{LAYOUT}")]
    names = names[start:] + names[:start]
    plant(monkeypatch)

    def run_all() -> None:
        for name in names:
            run_case(name)

    with pytest.raises(CaseFailed):
        run_all()
