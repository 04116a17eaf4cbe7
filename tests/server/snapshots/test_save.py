"""Saving a snapshot, with a copy that only notes when it is made."""

from __future__ import annotations

import os
from pathlib import Path

from geminga.clock import RealClock
from geminga.metadata.records import InstanceRecord
from geminga.metadata.store import MetadataStore
from geminga.server.snapshots.handover import Handover
from geminga.server.snapshots.snapshots import OpenState, Snapshots
from geminga.server.snapshots.swap import PARTS
from simulation.disk.sim_key_value import SimKeyValue


async def test_acknowledgements_are_written_before_the_copy(tmp_path: Path) -> None:
    """Cursors are written four times a second by themselves, so that a slow test never misses this."""
    calls: list[str] = []

    class Backup:
        async def check(self, directory: str) -> None:
            pass

        async def __call__(self, directory: str) -> None:
            calls.append("copied")
            for part in PARTS:
                os.makedirs(os.path.join(directory, part))

    async def persist_cursors() -> None:
        calls.append("cursors")

    state = OpenState(
        data_dir=str(tmp_path / "data"),
        instance=InstanceRecord(1, "id", "standalone", "real", 0),
        clock=RealClock(),
        metadata=MetadataStore(SimKeyValue()),
        backup=Backup(),
        persist_cursors=persist_cursors,
    )
    handover = Handover(state.data_dir, lambda _: None)
    await Snapshots(state, handover, allows_swaps=False).save(str(tmp_path / "saved"))
    assert calls == ["cursors", "copied"]
