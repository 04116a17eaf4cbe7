"""What a rule holds up goes on when the rule ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from geminga.chaos.disk.faulty_disk import FaultyDisk
from geminga.chaos.disk.faulty_metadata import FaultyMetadata
from geminga.chaos.rules.faults import Faults
from geminga.chaos.rules.rule import parse_rule
from geminga.clock import RealClock, TrioClock
from geminga.metadata.node import MUST_NOT_EXIST
from simulation.disk.sim_key_value import SimKeyValue

MINUTE_MS = 60_000
WAITS_S = 10.0


@pytest.mark.parametrize("name", ["000001.journal", "000001.log"])
def test_a_slow_file_goes_on_when_its_rule_is_cleared(tmp_path: Path, name: str) -> None:
    faults = Faults(RealClock())
    for place in ("journal", "entry-log"):
        faults.set(parse_rule({"place": place, "kind": "slow", "operation": "sync", "latencyMs": MINUTE_MS}))
    file = FaultyDisk(faults).create(str(tmp_path / name))
    waiter = threading.Thread(target=file.sync, daemon=True)
    waiter.start()
    while sum(state.hits for state in faults.rules()) == 0:
        threading.Event().wait(0.001)
    faults.clear_all()
    waiter.join(WAITS_S)
    assert not waiter.is_alive()


async def test_a_delayed_write_of_metadata_goes_on_when_its_rule_is_cleared(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    faults = Faults(TrioClock())
    store = FaultyMetadata(SimKeyValue(), faults=faults)
    await nursery.start(store.run)
    rule = faults.set(parse_rule({"place": "metadata", "kind": "delayed", "latencyMs": MINUTE_MS})).rule.id
    began_s = trio.current_time()
    await store.put("/a", b"1", MUST_NOT_EXIST)
    assert trio.current_time() - began_s == pytest.approx(60)
    async with trio.open_nursery() as writes:
        writes.start_soon(store.put, "/b", b"2", MUST_NOT_EXIST)
        await wait_all_tasks_blocked()
        faults.clear(rule)
        began_s = trio.current_time()
    assert trio.current_time() - began_s == pytest.approx(0.1)
