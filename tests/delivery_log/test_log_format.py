"""The delivery log's bytes: what goes in comes out, and nothing that was changed passes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fastcrc.crc32 import iscsi as crc_32c
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.delivery_log import log_format as log
from geminga.delivery_log.log_format import ABSENT, COLUMNS, DTYPES, FileHead, Kind
from geminga.errors import CorruptData
from tests.test_format_pages import examples

T = 1_700_000_000_000
PAGE_COLUMNS = {
    "kind": [Kind.PUBLISHED, Kind.PUBLISHED, Kind.DISPATCHED, Kind.ACKED],
    "time_ms": [T + 2, T + 3, T + 1000, T + 1040],
    "topic": [0] * 4,
    "subscription": [-1, -1, 0, 0],
    "client": [0, 0, 1, 1],
    "ledger_id": [7] * 4,
    "entry_id": [0, 1, 0, 0],
    "batch_index": [-1, -1, -1, 1],
    "batch_size": [2, 1, 2, 2],
    "redelivery_count": [0] * 4,
    "deliver_at_ms": [T + 1000, 0, T + 1000, 0],
    "publish_time_ms": [T, T + 1, T, 0],
    "sequence_id": [0, 2, -1, -1],
    "early_ms": [0, 0, 999, 0],
    "step_ms": [0, 0, 0, 0],
}
NAMES = {"topics": ["persistent://public/default/t"], "subscriptions": ["s"], "clients": ["p", "c"]}
SEGMENT = log.encode_segment(0, PAGE_COLUMNS, **NAMES)
FILE = log.encode_file_head(FileHead(3, T)) + SEGMENT + log.encode_segment(1, PAGE_COLUMNS, **NAMES)


VERSION_1 = bytes.fromhex(
    """
    47454d444c4f47000100000003000000000000000068e5cf8b01000037334f6100000000000000000000000000000000
    00000000000000000000000000000000
    47444c3109d895c40a0100000400000000000000000000000268e5cf8b010000106ce5cf8b010000010000001d007065
    7273697374656e743a2f2f7075626c69632f64656661756c742f74010000000100730200000001007001006300010200
    0000000000000000010200020268e5cf8b01000000000100e6030e040000000000000000000001010000000000000000
    000001010001000000000000000000000101000007000000000000000001000000000000000000010000010101000000
    00000000000000010001010000000000000001000101000000000000000000000101e86be5cf8b010000010001000101
    0068e5cf8b010000010201000101000000000000000001030000
    """
)
"""A file of the first version: head and one segment, `PAGE_COLUMNS` but for the last two."""
VERSION_2 = bytes.fromhex(
    """
    47454d444c4f47000200000003000000000000000068e5cf8b010000f02b8b3800000000000000000000000000000000
    0000000000000000000000000000000047444c32a9a737401c0100000400000000000000000000000268e5cf8b010000
    106ce5cf8b010000010000001d0070657273697374656e743a2f2f7075626c69632f64656661756c742f740100000001
    007302000000010070010063000102000000000000000000010200020268e5cf8b01000000000100e6030e0400000000
    000000000000010100000000000000000000010100010000000000000000000001010000070000000000000000010000
    000000000000000100000101010000000000000000000001000101000000000000000100010100000000000000000000
    0101e86be5cf8b0100000100010001010068e5cf8b010000010201000101000000000000000001030000000200000000
    0000000000000000e7030000
    """
)
"""The same of the second version, without `step_ms`."""


def lists(segment: log.Segment) -> dict[str, list[int]]:
    return {name: column.tolist() for name, column in segment.columns.items()}


def test_the_delivery_log_page() -> None:
    head, segment = examples("delivery-log.md")
    assert head == log.encode_file_head(FileHead(3, T))
    assert segment == SEGMENT
    decoded = log.decode_segment(segment)
    assert lists(decoded) == PAGE_COLUMNS
    assert (decoded.topics, decoded.subscriptions, decoded.clients) == tuple(NAMES.values())
    assert decoded.head == log.SegmentHead(0, len(segment), 4, 0, T + 2, T + 1040)


def test_earlier_versions_are_read() -> None:
    for version, data, columns in ((1, VERSION_1, 13), (2, VERSION_2, 14)):
        (segment,) = log.segments(data)
        assert lists(segment) == {name: PAGE_COLUMNS[name] for name in COLUMNS[:columns]}, version
        mixed = data + b"damage" + log.encode_segment(1, PAGE_COLUMNS, **NAMES)
        assert [head.number for head in log.scan(mixed).segments] == [0, 1]
    later = bytearray(FILE)
    later[8:12] = (4).to_bytes(4, "little")
    later[28:32] = crc_32c(bytes(later[:28])).to_bytes(4, "little")
    with pytest.raises(CorruptData, match="of version 4; this program reads up to version 3: read it with"):
        list(log.segments(bytes(later)))


def test_a_file_is_read_in_order_and_a_torn_end_left_out() -> None:
    assert [s.head.number for s in log.segments(FILE)] == [0, 1]
    for cut in (1, log.SEGMENT_HEAD_BYTES + 1, len(SEGMENT) - 1):
        assert [s.head.number for s in log.segments(FILE[:-cut])] == [0]
        assert log.scan(FILE[:-cut]).end == log.FILE_HEAD_BYTES + len(SEGMENT)
    assert list(log.segments(FILE[: log.FILE_HEAD_BYTES])) == []


def test_damage_is_named_and_what_is_behind_it_found() -> None:
    damaged = bytearray(FILE)
    damaged[log.FILE_HEAD_BYTES] ^= 1
    found = log.scan(damaged)
    assert [head.number for head in found.segments] == [1]
    assert found.damage == ["offset 64: no segment begins here"]
    with pytest.raises(CorruptData, match="offset 64"):
        list(log.segments(damaged))
    missing = FILE[: log.FILE_HEAD_BYTES] + FILE[log.FILE_HEAD_BYTES + len(SEGMENT) :]
    with pytest.raises(CorruptData, match="segment 1 where 0 should be"):
        list(log.segments(missing))


def test_every_flipped_bit_is_noticed() -> None:
    for bit in range(8 * len(SEGMENT)):
        flipped = bytearray(SEGMENT)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData):
            log.decode_segment(bytes(flipped))
    for bit in range(8 * 32):
        flipped = bytearray(FILE[: log.FILE_HEAD_BYTES])
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData):
            log.decode_file_head(bytes(flipped))


def values_of(name: str) -> st.SearchStrategy[int]:
    bits = np.iinfo(DTYPES[name])
    low = 0 if name == "kind" else max(int(bits.min), -(2**62)) + 2
    high = min(int(bits.max), 2**62 - 1)
    drawn = st.integers(low, high) | st.integers(0, 200)
    return drawn | st.just(ABSENT[name]) if name in ABSENT else drawn


@st.composite
def column_sets(draw: st.DrawFn) -> dict[str, list[int]]:
    events = draw(st.integers(1, 8))
    columns = {
        name: draw(st.lists(values_of(name), min_size=events, max_size=events))
        for name in COLUMNS
        if name not in log.TABLES
    }
    for name in log.TABLES:
        columns[name] = draw(st.lists(st.integers(-1, 2), min_size=events, max_size=events))
    return columns


def test_segments_that_somebody_made_up_are_refused() -> None:
    """Their checksums are right: whoever may write to a topic that is audited can send such."""
    source = random.Random(3)
    refused = 0
    for _ in range(600):
        made = bytearray(SEGMENT)
        for _ in range(source.choice((1, 1, 3))):
            made[source.randrange(log.SEGMENT_HEAD_BYTES, len(made))] = source.choice(
                (0, 5, 0x7F, 0x80, 0xFF)
            )
        made[4:8] = crc_32c(bytes(made[8:])).to_bytes(4, "little")
        try:
            segment = log.decode_segment(bytes(made))
        except CorruptData:
            refused += 1
            continue
        for name, names in (("topic", segment.topics), ("client", segment.clients)):
            assert all(-1 <= at < len(names) for at in segment.columns[name].tolist())
    assert refused > 100


@settings(max_examples=150)
@given(column_sets(), st.lists(st.text(max_size=8), min_size=3, max_size=3))
def test_what_goes_in_comes_out(columns: dict[str, list[int]], names: list[str]) -> None:
    data = log.encode_segment(9, columns, topics=names, subscriptions=names, clients=names)
    segment = log.decode_segment(b"before" + data + b"behind", 6)
    assert lists(segment) == columns
    assert segment.topics == segment.subscriptions == segment.clients == names
    assert {name: column.dtype for name, column in segment.columns.items()} == {
        name: np.dtype(DTYPES[name]) for name in COLUMNS
    }
    some = log.decode_segment(data, columns={"entry_id"})
    assert lists(some) == {"entry_id": columns["entry_id"]}


def test_file_names() -> None:
    assert log.file_name(12) == "deliveries-00000012.log"
    assert log.file_number("deliveries-00000012.log") == 12
    assert log.file_number("deliveries-12.log") is None
    assert log.file_number("journal-00000012.log") is None


def test_a_segment_costs_a_dozen_bytes_for_each_event() -> None:
    events = 50_000
    steps = np.arange(events)
    columns = {
        "kind": np.full(events, Kind.DISPATCHED),
        "time_ms": T + steps // 100,
        "topic": steps % 3,
        "subscription": steps % 2,
        "client": steps % 5,
        "ledger_id": np.full(events, 12),
        "entry_id": steps,
        "batch_index": np.full(events, -1),
        "batch_size": np.full(events, 1),
        "publish_time_ms": T + steps // 100,
    }
    names = ["a", "b", "c", "d", "e"]
    assert len(log.encode_segment(0, columns, topics=names, subscriptions=names, clients=names)) < 10 * events
