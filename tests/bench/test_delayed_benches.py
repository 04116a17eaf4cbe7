"""The benches of the delayed index measure what they say: on small numbers, where the answer is known."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.delayed import seed_table

BENCH = Path(__file__).resolve().parents[2] / "bench" / "delayed"


def test_the_theory_is_the_article_s() -> None:
    for case in seed_table.CASES[:4]:
        assert seed_table.theory_mib(case, 10_000_000) == pytest.approx(case.article_theory_mib, rel=0.01)
    assert seed_table.theory_mib(seed_table.Case("random", 8, 10), 10_000_000) is None


def test_the_heap_is_a_heap_and_grows_by_segments() -> None:
    heap, draw = seed_table.TripleHeap(), random.Random(1)
    heap.SEGMENT = 3 * 100 + 1  # triples stand across segments
    for entry_id in range(1000):
        heap.add(draw.randrange(500), 7, entry_id)
    triples = [heap._at(place) for place in range(1000)]
    assert sorted(triple[2] for triple in triples) == list(range(1000))
    assert all(triples[(place - 1) // 2] <= triples[place] for place in range(1, 1000))
    assert heap.reported_bytes() == 10 * 301 * 8


@pytest.mark.parametrize("delays", ["fixed", "random"])
def test_all_structures_get_the_same_messages(delays: str) -> None:
    case = seed_table.Case(delays, 8, 10)
    structures = {name: fill(case, 100_000)[0] for name, fill in seed_table.FILLS.items()}
    assert structures["heap"].count == len(structures["dict/roaring"]) == len(structures["ours"]) == 100_000
    earliest_ms = structures["heap"]._at(0)[0]
    assert min(structures["dict/roaring"].times) == earliest_ms & -1024
    assert structures["ours"].next_due_ms() == earliest_ms & -1024


def test_a_start_finds_all_that_was_sealed_before_the_kill(tmp_path: Path) -> None:
    for role in ("fill", "restart"):
        command = [sys.executable, str(BENCH / "hundred_million.py"), "--messages=100000", "--delays=random"]
        ended = subprocess.run(
            [*command, f"--role={role}", f"--directory={tmp_path}"], stdout=subprocess.PIPE, text=True
        )
        assert ended.returncode == -signal.SIGKILL, ended
        figures = json.loads(ended.stdout)
        assert figures["failures"] == 0
        if role == "fill":
            assert (figures["seals"], figures["buckets"]) == (2, 2)
            assert 2 < figures["bucket_bytes"] / 100_000 < 6
    assert 0 < figures["first_due_s"] <= figures["taken_s"]
    # One of 24 hours is due.
    assert figures["taken"] == pytest.approx(100_000 / 24, rel=0.1)
