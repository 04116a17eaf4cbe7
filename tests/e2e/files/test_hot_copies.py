"""A short run of `hot_copies`: copies of a running broker's files, and cut metadata logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.files.hot_copies import run_copies, run_wal_cuts

pytestmark = pytest.mark.skipif("GEMINGA_TEST_URL" in os.environ, reason="looks into Geminga's files")


def test_hot_copies_serve_what_they_hold(tmp_path: Path) -> None:
    verdict = run_copies(1, tmp_path, seed=1)
    assert verdict.failures == []
    assert verdict.entries > 0


def test_cut_metadata_is_refused_and_restored(tmp_path: Path) -> None:
    verdict = run_wal_cuts(2, tmp_path, receipts=200)
    assert verdict.failures == []
    assert verdict.refused == 2
