"""A full disk refuses entries for a while; the topic lives on."""

from __future__ import annotations

from typing import Any

import pytest

from geminga.errors import ReadOnly, ServerError


async def test_a_topic_takes_entries_again_when_there_is_space(rooms: Any) -> None:
    async with rooms() as r:
        ledger = await r.open()
        cursor = await ledger.open_cursor("sub", initial="earliest")
        ledger.append(b"before", None)
        while ledger.last_confirmed.entry_id < 0:
            await r.bookie.flush()
        r.bookie._space.is_full(r.bookie.directories[0].path, "for the test")
        with pytest.raises(ReadOnly) as refused:
            ledger.append(b"refused", None)
        assert refused.value.server_error is ServerError.PERSISTENCE
        cursor.acknowledge([ledger.last_confirmed])
        await cursor.persist()
        await r.bookie._space.check()
        ledger.append(b"after", None)
        while ledger.last_confirmed.entry_id < 1:
            await r.bookie.flush()
        entries = await ledger.read(ledger.first_position(), 10, 1000)
        assert [entry.body for entry in entries] == [b"before", b"after"]
