"""A short run of `removed_files`: a cleaning job that removes every `*.log`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.files.removed_files import CASES, run_case

pytestmark = pytest.mark.skipif("GEMINGA_TEST_URL" in os.environ, reason="looks into Geminga's files")


def test_what_has_a_receipt_is_served_by_the_next_start(tmp_path: Path) -> None:
    [case] = [case for case in CASES if case.name == "*.log everywhere, default settings"]
    outcome = run_case(case, tmp_path, receipts=600)
    assert outcome.failure(case) == "", outcome.said
    assert outcome.receipts >= 600
    assert "removed, moved, replaced or cut short while the broker ran" in outcome.said
