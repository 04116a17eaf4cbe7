"""The bytes on disk: exactly those of the examples in docs/formats, and nothing else decodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.bookie.entry_logs import entry_log_format as log_format
from geminga.bookie.entry_logs.entry_log_format import Footer, FooterBytes, FooterLedger
from geminga.bookie.index import index_format
from geminga.bookie.index.index_format import Kept, LogPosition, Row, State, Usage
from geminga.bookie.journal import journal_format
from geminga.bookie.journal.journal_format import FileHeader, Run
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_name import (
    META_ENTRY_ID,
    NAME_BYTES_MAX,
    LedgerName,
    decode_name,
    encode_name,
)
from geminga.bookie.records.owner import Owner
from geminga.bookie.records.records import Segment, compact, crc32c, damaged_record, ends_of, pack_records

DOCS = Path(__file__).parents[3] / "docs" / "formats"
OWNER = Owner("ab12", 2)
HEADER = FileHeader(3, 0x1122334455667788, 4096, 2, 33554432, owner=OWNER)
TWO = [b"hello", b"world!"]
ROW = Row(41, 5, 64, [29, 59])
PATH = "/managed-ledgers/public/default/persistent/t"
NAME = LedgerName("data", PATH)
LEDGERS = {7: FooterLedger(Usage(2, 59), NAME)}


def examples(page: str) -> list[bytes]:
    """The hexadecimal blocks of a page, in order."""
    blocks = re.findall(r"(?:^    (?:[0-9a-f]{2} ?)+\n)+", (DOCS / page).read_text() + "\n", re.MULTILINE)
    return [bytes.fromhex(block) for block in blocks]


def records(bodies: list[bytes], ledger_id: int = 7, first: int = 41) -> tuple[bytes, list[int]]:
    parts: list[bytes] = []
    pack_records(ledger_id, first, bodies, parts)
    return b"".join(parts), list(ends_of(bodies))


def test_the_checksum_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_the_journal_page() -> None:
    group, _ = journal_format.encode_group(HEADER, 4096, 4096, [(7, 41, TWO), (9, 0, [b"x"])], [(9, NAME)])
    assert examples("journal.md") == [journal_format.encode_file_header(HEADER)[:96], group]


def test_the_entry_log_page() -> None:
    name, _ = records([encode_name(NAME)], first=META_ENTRY_ID)
    data, _ = records(TWO)
    row = ROW._replace(offset=64 + len(name))
    footer = log_format.encode_footer(row.offset + len(data), LEDGERS, [(7, row)])
    assert examples("entry-log.md") == [log_format.encode_header(5, OWNER), name + data, footer]


def test_a_footer_of_version_1_says_a_topic_and_no_purpose() -> None:
    data = bytes.fromhex(
        "00000001 0000000000000007 00000002 000000000000003b 0003 612f74 00000000".replace(" ", "")
    )
    trailer = b"GEMELFT\0" + (5).to_bytes(8, "big") + len(data).to_bytes(8, "big")
    trailer += crc32c(data).to_bytes(4, "big")
    found = log_format.decode_trailer(trailer + crc32c(trailer).to_bytes(4, "big"))
    assert found == (5, len(data), crc32c(data), 1)
    ledgers = {7: FooterLedger(Usage(2, 59), LedgerName("", "a/t"))}
    assert log_format.decode_footer(FooterBytes(1, data)) == Footer(ledgers, [])
    header = bytearray(log_format.encode_header(5))
    header[8:12] = (1).to_bytes(4, "big")
    header[20:24] = crc32c(bytes(header[:20])).to_bytes(4, "big")
    assert log_format.decode_header(bytes(header)) == (5, None)


def test_what_is_kept_is_read_back() -> None:
    for kept in (Kept(), Kept(6), Kept(7, ((3, 0), (5, 163))), Kept(7, ((3, 0),), ((0, 2), (1, 9)))):
        assert index_format.decode_kept(index_format.encode_kept(kept)) == kept


def test_the_index_page() -> None:
    assert examples("index.md") == [
        index_format.encode_log_position(LogPosition(5, 163)),
        index_format.encode_kept(Kept(6, ((3, 0),))),
        index_format.encode_owner(OWNER),
        index_format.entry_key(7, 41),
        index_format.encode_row(ROW),
        index_format.encode_row(Row(41, 5, 64, range(29, 29001, 29))),
        index_format.encode_state(State(index_format.DELETED, JournalPosition(3, 8192))),
    ]


# ---- records and segments

BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=12)


@given(BODIES, st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.data())
def test_a_segment_gives_back_what_was_packed(
    bodies: list[bytes], ledger_id: int, first: int, data: st.DataObject
) -> None:
    packed, ends = records(bodies, ledger_id, first)
    segment = Segment(ledger_id, first, b"before" + packed + b"after", 6, compact(ends))
    last = first + len(bodies) - 1
    assert segment.last == last
    assert bytes(segment.records()) == packed
    assert damaged_record(segment) is None
    begin = data.draw(st.integers(first, last))
    end = data.draw(st.integers(begin, last))
    wanted = bodies[begin - first : end - first + 1]
    assert segment.bodies(begin, end) == wanted
    assert segment.body_bytes(begin, end) == sum(map(len, wanted))
    part = segment.part(begin, end)
    assert (part.first, part.last) == (begin, end)
    assert part.bodies(begin, end) == wanted
    assert list(part.ends) == records(wanted, ledger_id, begin)[1]


@given(BODIES, st.data())
def test_every_flipped_bit_of_a_record_is_noticed_where_it_is(
    bodies: list[bytes], data: st.DataObject
) -> None:
    packed, ends = records(bodies)
    at = data.draw(st.integers(0, len(packed) - 1))
    damaged = bytearray(packed)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    index = next(i for i, end in enumerate(ends) if at < end)
    assert damaged_record(Segment(7, 41, bytes(damaged), 0, ends)) == index


def test_a_record_in_the_wrong_place_is_noticed() -> None:
    packed, ends = records(TWO)
    assert damaged_record(Segment(8, 41, packed, 0, ends)) == 0
    assert damaged_record(Segment(7, 40, packed, 0, ends)) == 0
    assert damaged_record(Segment(7, 41, packed[:-1], 0, ends)) == 1
    assert damaged_record(Segment(7, 41, packed, 1, ends)) == 0


@given(st.lists(st.integers(24, 30), min_size=1, max_size=50))
def test_compact_ends_are_the_same_numbers(lengths: list[int]) -> None:
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    assert list(compact(ends)) == ends
    assert isinstance(compact(ends), range) == (len(set(lengths)) == 1)


# ---- journal

BATCHES = st.lists(st.tuples(st.integers(0, 2**60), st.integers(0, 2**60), BODIES), min_size=1, max_size=5)


@given(BATCHES, st.integers(0, 2**40))
def test_a_group_round_trips(batches: list[tuple[int, int, list[bytes]]], offset: int) -> None:
    data, segments = journal_format.encode_group(HEADER, offset, offset, batches)
    assert [(s.ledger_id, s.first, s.bodies(s.first, s.last)) for s in segments] == batches
    header = journal_format.decode_group_header(data, HEADER.journal_id, offset)
    assert header is not None
    assert header.end == offset + len(data)
    assert journal_format.decode_runs(data, HEADER, header) == [Run(a, b, len(c)) for a, b, c in batches]
    assert journal_format.decode_group_header(data, HEADER.journal_id, offset + 1) is None
    assert journal_format.decode_group_header(data, HEADER.journal_id + 1, offset) is None
    assert journal_format.decode_runs(data, HEADER._replace(salt=1), header) is None
    assert journal_format.decode_runs(data[: header.head_bytes - 1], HEADER, header) is None


@pytest.mark.parametrize(("version", "copies"), [(1, 1), (2, 2), (3, 2)])
def test_a_file_header_round_trips_and_refuses_all_else(version: int, copies: int) -> None:
    header = HEADER._replace(version=version)
    data = journal_format.encode_file_header(header)
    assert data == data[:512] * copies
    assert journal_format.decode_file_header(data) == header
    for at in range(92):
        assert journal_format.decode_file_header(flipped(data, at)) is None
    assert journal_format.decode_file_header(data[:50]) is None
    assert journal_format.decode_file_header(bytes(512)) is None
    assert journal_format.decode_file_header(data[:52] + bytes(460)) == header._replace(owner=None)
    future = journal_format.encode_file_header(HEADER._replace(version=4))
    assert journal_format.decode_file_header(future) is None


@pytest.mark.parametrize(
    ("version", "alignment", "offset"),
    [(1, 512, 512), (1, 4096, 4096), (2, 512, 1024), (2, 1024, 1024), (2, 1536, 1536), (2, 4096, 4096)],
)
def test_the_first_group_is_behind_the_headers(version: int, alignment: int, offset: int) -> None:
    assert HEADER._replace(version=version, alignment=alignment).first_group == offset


# ---- names

TEXTS = st.text(max_size=40)


@given(TEXTS, TEXTS)
def test_a_name_round_trips(purpose: str, topic: str) -> None:
    assert decode_name(encode_name(LedgerName(purpose, topic))) == LedgerName(purpose, topic)


@given(st.binary())
def test_no_bytes_make_decoding_a_name_fail(data: bytes) -> None:
    name = decode_name(data)
    assert name is None or encode_name(name) == data


def test_a_name_that_cannot_be_written_is_left_out_of_its_group() -> None:
    longest = LedgerName("data", "t" * (NAME_BYTES_MAX - 5))
    assert len(encode_name(longest)) == NAME_BYTES_MAX
    refused = [
        longest._replace(topic=longest.topic + "t"),
        LedgerName("p" * 256, ""),
        LedgerName("", "\udc80"),
    ]
    assert [encode_name(name) for name in refused] == [b""] * 3
    batches = [(id_, 0, [b"x"]) for id_ in range(4)]
    names = list(enumerate([longest, *refused]))
    data, segments = journal_format.encode_group(HEADER, 4096, 4096, batches, names)
    assert [(s.ledger_id, s.bodies(0, 0)) for s in segments] == [(id_, [b"x"]) for id_ in range(4)]
    header = journal_format.decode_group_header(data, HEADER.journal_id, 4096)
    assert header is not None
    assert header.end == 4096 + len(data)
    runs = journal_format.decode_runs(data, HEADER, header)
    assert runs == [*(Run(id_, 0, 1) for id_ in range(4)), Run(0, META_ENTRY_ID, 1)]


# ---- entry log


def test_log_header_and_trailer_refuse_all_else() -> None:
    assert log_format.decode_header(log_format.encode_header(5)) == (5, None)
    too_long = Owner("i" * 33, 1)
    assert log_format.encode_header(5, too_long) == log_format.encode_header(5, Owner("", 1))
    assert log_format.decode_header(log_format.encode_header(5, Owner("i" * 32, 1))) == (5, ("i" * 32, 1))
    header = log_format.encode_header(5, OWNER)
    assert len(header) == 64
    assert log_format.decode_header(header) == (5, OWNER)
    for at in range(64):
        assert log_format.decode_header(flipped(header, at)) is None
    tail = log_format.encode_footer(123, LEDGERS, [(7, ROW)])
    decoded = log_format.decode_trailer(b"records" + tail)
    assert decoded is not None
    assert decoded == (123, len(tail) - 32, crc32c(tail[:-32]), 2)
    footer = log_format.decode_footer(FooterBytes(2, tail[:-32]))
    assert footer.ledgers == LEDGERS
    assert [(ledger, row._replace(ends=list(row.ends))) for ledger, row in footer.rows] == [(7, ROW)]
    for at in range(len(tail) - 32, len(tail)):
        assert log_format.decode_trailer(flipped(tail, at)) is None


@given(
    st.dictionaries(
        st.integers(0, 2**63),
        st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.text()),
        max_size=5,
    )
)
def test_a_footer_round_trips(ledgers: dict[int, tuple[int, int, str]]) -> None:
    listed = {id_: FooterLedger(Usage(a, b), LedgerName("data", c)) for id_, (a, b, c) in ledgers.items()}
    data = log_format.encode_footer(0, listed, [])
    assert log_format.decode_footer(FooterBytes(2, data[:-32])) == Footer(listed, [])


# ---- index


@given(
    st.integers(0, 2**60),
    st.integers(1, 2**60),
    st.integers(0, 2**60),
    st.lists(st.integers(24, 2**20), min_size=1),
)
def test_a_row_round_trips(first: int, log_id: int, offset: int, lengths: list[int]) -> None:
    ends = compact([sum(lengths[: i + 1]) for i in range(len(lengths))])
    row = index_format.decode_row(first, index_format.encode_row(Row(first, log_id, offset, ends)))
    assert row._replace(ends=list(row.ends)) == Row(first, log_id, offset, list(ends))
    assert row.last == first + len(lengths) - 1


def test_lost_rows_states_marks_and_usage_round_trip() -> None:
    lost = Row(9, 0, 0, range(3), "journal 5 was eaten by a goat\N{GOAT}")
    assert index_format.decode_row(9, index_format.encode_row(lost)) == lost
    state = State(index_format.FENCED, JournalPosition(4, 512))
    assert index_format.decode_state(index_format.encode_state(state)) == state
    assert index_format.decode_mark(index_format.encode_mark(JournalPosition(1, 2))) == (1, 2)
    assert index_format.decode_usage(index_format.encode_usage(Usage(3, 4))) == Usage(3, 4)


def test_keys_sort_by_number_and_do_not_mix() -> None:
    keys = [
        index_format.entry_key(ledger, entry)
        for ledger in (0, 1, 255, 256, 2**63)
        for entry in (0, 255, 2**40)
    ]
    assert keys == sorted(keys)
    kinds = {
        key[:1]
        for key in (*keys, index_format.usage_key(1, 2), index_format.state_key(1), index_format.MARK_KEY)
    }
    assert kinds == {b"e", b"g", b"l", b"m"}
    assert index_format.split_key(index_format.usage_key(3, 4)) == (3, 4)
    assert index_format.ledger_of_state_key(index_format.state_key(9)) == 9


def flipped(data: bytes, at: int) -> bytes:
    damaged = bytearray(data)
    damaged[at] ^= 1
    return bytes(damaged)
