"""A bad entry is an error for the ranges that hold it, and for no others."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from geminga.pipeline.client import entry_stream
from geminga.pipeline.client.frames import CorruptEntry
from geminga.pipeline.client.kept_connections import KeptConnections
from geminga.pipeline.columns.columns import ColumnMaker
from geminga.pipeline.columns.message_id import MessageId
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.rows import read_range
from tests.pipeline.topics.marked_broker import MarkedBroker

NAME = "persistent://public/default/t"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[MarkedBroker]:
    monkeypatch.setattr(entry_stream, "KEPT", KeptConnections(connections_max=0))
    found = MarkedBroker({7: 10})
    yield found
    found.close()


def read(broker: MarkedBroker, start: int, end: int) -> Iterator[str]:
    wanted = Range(NAME, MessageId(7, start, 0), MessageId(7, end, 0))
    maker = ColumnMaker(NAME, pa.schema([("value", pa.binary())]))
    for batch in read_range(broker.access, wanted, maker, poll_timeout_s=10):
        yield from (value.decode() for value in batch.column(0).to_pylist())


def names(start: int, end: int) -> list[str]:
    return [f"7:{entry}" for entry in range(start, end)]


def test_a_corrupt_entry_leaves_what_is_before_and_behind_it(broker: MarkedBroker) -> None:
    broker.corrupt = {(7, 5)}
    assert list(read(broker, 0, 5)) == names(0, 5)
    assert list(read(broker, 6, 10)) == names(6, 10)
    found = read(broker, 0, 10)
    assert [next(found) for _ in range(5)] == names(0, 5)
    with pytest.raises(CorruptEntry, match="entry 7:5: its checksum"):
        next(found)
