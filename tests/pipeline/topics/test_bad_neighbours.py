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
from geminga.pipeline.topics.unreadable import UnreadableEntry
from geminga.wire import pulsar_pb2 as pb
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


def chunk(uuid: str | None, chunk_id: int, **fields: int) -> pb.MessageMetadata:
    known = {"producer_name": "p", "sequence_id": 1, "publish_time": 1, "num_chunks_from_msg": 2}
    return pb.MessageMetadata(
        chunk_id=chunk_id, **({} if uuid is None else {"uuid": uuid}), **known, **fields
    )  # type: ignore[arg-type]


def test_a_corrupt_entry_leaves_what_is_before_and_behind_it(broker: MarkedBroker) -> None:
    broker.corrupt = {(7, 5)}
    assert list(read(broker, 0, 5)) == names(0, 5)
    assert list(read(broker, 6, 10)) == names(6, 10)
    found = read(broker, 0, 10)
    assert [next(found) for _ in range(5)] == names(0, 5)
    with pytest.raises(CorruptEntry, match="entry 7:5: its checksum"):
        next(found)


def test_a_chunk_without_a_uuid_is_named(broker: MarkedBroker) -> None:
    broker.metadata = {(7, 5): chunk(None, 1)}
    with pytest.raises(UnreadableEntry, match="entry 7:5 .* a chunk without the uuid"):
        list(read(broker, 0, 10))


def test_chunks_of_others_do_not_matter_to_the_search_for_an_earlier_chunk(broker: MarkedBroker) -> None:
    packed = {"compression": pb.ZSTD, "uncompressed_size": 9}
    broker.metadata = {
        (7, 1): chunk("ours", 0),
        (7, 2): chunk("theirs", 0, **packed),
        (7, 3): chunk("theirs", 1, **packed),
        (7, 4): chunk(None, 1),
        (7, 7): chunk("ours", 1),
    }
    assert list(read(broker, 6, 10)) == ["7:6", "7:17:7", "7:8", "7:9"]
