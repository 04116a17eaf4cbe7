"""Rows of the table of `tests/e2e/files/log_damage.py` that stand for the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.files.log_damage import MESSAGES, damaged_log, fill, outcome

pytestmark = pytest.mark.skipif("GEMINGA_TEST_URL" in os.environ, reason="looks into Geminga's files")


def test_a_log_that_is_cut_in_half_is_served_in_full_from_the_journals(tmp_path: Path) -> None:
    places = fill(tmp_path / "data", keep_journals=True)
    damaged_log(tmp_path / "data", "cut in half")
    served, named, healed, _ = outcome(tmp_path / "data", places)
    assert (served, named) == (MESSAGES, 0)
    assert healed > MESSAGES // 8, "the log holds half of them, and what a flush took along with them"


def test_a_flipped_bit_that_no_journal_heals_is_named_by_topic(tmp_path: Path) -> None:
    places = fill(tmp_path / "data", keep_journals=False)
    damaged_log(tmp_path / "data", "bit flipped in the middle")
    served, named, healed, log = outcome(tmp_path / "data", places)
    assert (served, named, healed) == (MESSAGES - 1, 1, 0)
    assert "(persistent://public/default/orders) cannot be read" in log
    assert "`geminga topics skip` takes a subscription past the entries" in log
