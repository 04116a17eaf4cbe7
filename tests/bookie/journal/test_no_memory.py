"""A group that could not be made, for want of memory or by a bug: nothing behind it is confirmed."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from geminga.bookie.running.bookie import Bookie
from simulation.disk.sim_disk import SimDisk
from simulation.disk.sim_key_value import SimKeyValue


async def test_what_was_queued_behind_it_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    bookie = await Bookie.open(SimDisk(), SimKeyValue(), "/bookie", threaded=False)
    confirmed: list[int] = []
    writer = bookie.create_ledger(1, on_durable=confirmed.append, on_failed=lambda error: None)
    (journal,) = bookie.journals._journals
    write = journal.files.write

    def fail_once(*arguments: Any) -> Any:
        monkeypatch.setattr(journal.files, "write", write)
        writer.append(b"behind it")
        raise MemoryError

    monkeypatch.setattr(journal.files, "write", fail_once)
    writer.append(b"in it")
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(bookie.run)
    assert caught.group_contains(MemoryError)
    assert confirmed == []
