"""Two hundred flipped bits in real data directories, of every kind of file, and some on the simulated disk.

`python -m tests.chaos.bit_flips` does more of them and prints what became of each kind.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import trio

from geminga.bookie.entry_logs import reader as entry_logs
from geminga.bookie.journal import headers as journal_headers
from tests.chaos.bit_flips import KINDS, Golden, WrongAnswer, flip, flip_range, make_golden
from tests.chaos.sim_flips import flip_on_sim_disk

FLIPS = 140
SIM_FLIPS = 200
DIRECTORIES_MAX = 5
THREADS = 14
METADATA = [kind for kind in KINDS if kind.startswith("metadata")]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> list[Golden]:
    return trio.run(make_golden, tmp_path_factory.mktemp("golden"))


def test_one_flipped_bit_is_never_served(golden: list[Golden]) -> None:
    # RocksDB sleeps for a second when it closes a database with a background error: side by side.
    chunks = [range(start, FLIPS, THREADS) for start in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(flip_range, [golden] * THREADS, chunks))
    assert [error for _, wrong in parts for error in wrong] == []
    counts = sum((part for part, _ in parts), Counter())
    assert {kind for kind, _ in counts} == set(KINDS)
    told = Counter({kind: count for (kind, outcome), count in counts.items() if outcome != "harmless"})
    assert told["entry log body"] > 0, "most are healed from a journal"
    assert told.total() > FLIPS // 4
    assert {kind for kind, outcome in counts if outcome == "refused to open"} <= set(METADATA)


def test_nothing_is_told_of_whole_directories(golden: list[Golden], monkeypatch: pytest.MonkeyPatch) -> None:
    """The flip itself left out."""
    monkeypatch.setattr("tests.chaos.bit_flips.hit", lambda path, offset, bit: None)
    assert {flip(golden, seed)[1] for seed in range(len(KINDS))} == {"harmless"}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list descriptors")
def test_no_file_is_left_open(golden: list[Golden]) -> None:
    """Whatever is damaged, and whoever notices when."""
    flip(golden, 0)
    before = open_files()
    for seed in range(2 * len(KINDS)):
        kind, outcome = flip(golden, seed)
        # What an earlier test left to the garbage collector, such as a client's sockets, may go meanwhile.
        assert not open_files() - before, (seed, kind, outcome)


def open_files() -> Counter[str]:
    """Descriptors by what they lead to; those that this very listing needs left out."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[os.readlink(f"/proc/self/fd/{name}")] += 1
    return found


def test_a_flip_that_is_believed_is_noticed(golden: list[Golden], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_logs, "damaged_record", lambda segment: None)
    with pytest.raises(WrongAnswer):
        assert [flip(golden, seed, "entry log body") for seed in range(20)]


def test_a_damaged_journal_header_taken_for_an_unused_one_is_noticed(
    golden: list[Golden], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which entry is in which journal depends on when syncs end: now and then no journal of a directory has
    what another file does not, and the bug does no harm there. Another directory shows it.
    """

    def only_whole_ones(file: Any, journal_id: int, *, alignment: int) -> journal_headers.FoundHeader:
        found = journal_headers.find_header(file, journal_id, alignment=alignment)
        whole = found.state is journal_headers.HeaderState.WHOLE
        return found if whole else journal_headers.FoundHeader(None, journal_headers.HeaderState.UNUSED)

    def flip_headers(directories: list[Golden]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("geminga.bookie.journal.inventory.find_header", only_whole_ones)
            for seed in range(40):
                flip(directories, seed, "journal header")

    others = (trio.run(make_golden, tmp_path / str(number)) for number in range(DIRECTORIES_MAX))
    with pytest.raises(WrongAnswer, match="without a word|fell|lost|gone"):
        deque(map(flip_headers, chain([golden], others)), maxlen=0)


def test_on_the_simulated_disk() -> None:
    outcomes = Counter(flip_on_sim_disk(seed) for seed in range(SIM_FLIPS))
    assert len(outcomes) > 3
    assert outcomes["harmless"] < SIM_FLIPS * 3 // 4


def test_the_directories_have_what_is_needed(golden: list[Golden], tmp_path: Path) -> None:
    assert [len(directory.messages) for directory in golden] == [27, 50]
    assert all(directory.acknowledged for directory in golden)
