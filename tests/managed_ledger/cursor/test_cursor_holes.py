"""A million acknowledged entries, none next to another: cheap, small on disk, and back after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pyroaring import BitMap

from geminga.limits import MIB
from geminga.managed_ledger.cursor.cursor_state_format import CursorState, decode, encode

BENCH = Path(__file__).parents[3] / "bench" / "storage" / "cursor_holes.py"


def test_a_million_holes_come_back_after_a_kill(tmp_path: Path) -> None:
    figures_path = tmp_path / "figures.json"
    command = [sys.executable, str(BENCH), "--json", str(figures_path), "--work-dir", str(tmp_path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    figures = json.loads(figures_path.read_text())
    assert figures["restored"] == 1_000_000
    assert figures["not_acknowledged"] == figures["expected_backlog"] == 1_000_000
    assert figures["left_out"] == 0
    assert figures["state_bytes"] <= 2_000_000
    # The last tenth, with a million holes, costs what the first one does.
    assert figures["last_ack_us"] <= 3 * figures["first_ack_us"]


def test_a_million_holes_far_apart_are_still_within_two_mib() -> None:
    acknowledged = {ledger_id: BitMap(range(7, 50_000, 20)) for ledger_id in range(400)}
    assert sum(map(len, acknowledged.values())) == 1_000_000
    data, left_out = encode(CursorState((0, -1), acknowledged, {}), 2 * MIB)
    assert left_out == 0
    assert decode(data).acknowledged == acknowledged
