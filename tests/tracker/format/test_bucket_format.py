"""Buckets as bytes: what is written is read back to the millisecond, small, and any damage is seen."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import numpy as np
import pytest
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from geminga.errors import CorruptData
from geminga.tracker.format import bucket_format, override_format, packed_columns
from geminga.tracker.format.bucket_bundle_format import decode_bundle, encode_bundle
from geminga.tracker.format.bucket_format import (
    OVERRIDES,
    PIECE,
    PIECE_BYTES_MAX,
    SEGMENT,
    SEGMENT_INDEXES_MAX,
    EncodedBucket,
    cut_segments,
    decode_directory,
    decode_segment,
    directory_pieces,
    encode_bucket,
    encode_segment,
    framed,
    members_of,
    unframed,
)
from geminga.tracker.format.override_format import decode_overrides, encode_overrides
from geminga.tracker.format.rows import Rows, code_of, concatenate, from_columns
from tests.test_format_pages import examples

NOW_MS = 1_700_000_000_000


def rows_of(*triples: tuple[int, int, int]) -> Rows:
    """(time, ledger, entry) each."""
    return from_columns(
        [time_ms for time_ms, _, _ in triples], [code_of(ledger, entry) for _, ledger, entry in triples]
    ).sorted()


def bucket_of(rows: Rows, span_ms: int = 300_000, indexes_max: int = 5000) -> EncodedBucket:
    ledgers = rows.codes >> 32
    return encode_bucket(int(ledgers.min()), int(ledgers.max()), rows, span_ms, indexes_max)


def same(one: Rows, other: Rows) -> bool:
    return bool(np.array_equal(one.times_ms, other.times_ms) and np.array_equal(one.codes, other.codes))


def all_rows(encoded: EncodedBucket) -> Rows:
    directory = decode_directory(encoded.directory)
    assert len(encoded.segments) == directory.segments
    return concatenate([directory.decode_segment(n, entry) for n, entry in enumerate(encoded.segments)])


# -- round trips ---------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 50), st.integers(0, 2**62 - 1)),
            st.one_of(st.integers(1, 3), st.integers(0, 2**31 - 1)),
            st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1)),
        ),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from([1, 7, 300_000, 2**62]),
    st.sampled_from([1, 2, 5, -1]),
)
def test_any_bucket_comes_back_exactly(
    triples: list[tuple[int, int, int]], span_ms: int, indexes_max: int
) -> None:
    rows = rows_of(*set(triples))
    encoded = bucket_of(rows, span_ms, indexes_max)
    assert same(all_rows(encoded), rows)
    directory = decode_directory(encoded.directory)
    assert directory.members == members_of(rows.codes)
    assert directory.rows == rows.length
    assert directory.sizes_bytes.tolist() == [len(entry) for entry in encoded.segments]


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=50))
def test_numbers_come_back(numbers: list[int]) -> None:
    column = np.array(numbers, np.int64)
    assert packed_columns.from_varints(packed_columns.to_varints(column), len(column)).tolist() == numbers
    small = column & 0xFFFFFF
    assert packed_columns.from_widths(packed_columns.to_widths(small, 24), len(small), 24).tolist() == (
        small.tolist()
    )


def test_a_position_may_have_two_times() -> None:
    """A message whose time was changed has two rows; the index knows which of them counts."""
    rows = rows_of((5, 1, 0), (9, 1, 0), (7, 1, 1))
    encoded = bucket_of(rows)
    assert same(all_rows(encoded), rows)
    assert decode_directory(encoded.directory).members == {1: BitMap([0, 1])}


def test_a_large_directory_comes_in_pieces() -> None:
    # Every 200th entry of many ledgers: no runs, and about a byte for each.
    rng = np.random.default_rng(1)
    codes = np.concatenate(
        [(np.int64(n) << 32) + np.unique(rng.integers(0, 10**7, 30_000)) for n in range(40)]
    )
    rows = Rows(np.full(len(codes), NOW_MS, np.int64), codes)
    encoded = bucket_of(rows, indexes_max=-1)
    assert len(encoded.directory) > 1
    assert max(map(len, encoded.directory)) < PIECE_BYTES_MAX + 100
    assert [directory_pieces(encoded.directory[-1])] == [len(encoded.directory)]
    assert decode_directory(encoded.directory).members == members_of(codes)
    assert all(decode_segment(entry).length <= SEGMENT_INDEXES_MAX for entry in encoded.segments)
    with pytest.raises(CorruptData):
        directory_pieces(encoded.directory[0])
    with pytest.raises(CorruptData):
        decode_directory(encoded.directory[::-1])
    with pytest.raises(CorruptData):
        decode_directory(encoded.directory[:-1])


# -- cutting -------------------------------------------------------------------------------------------


def test_segments_are_cut_by_number() -> None:
    """Pulsar's testMaxIndexesPerSegment: 20 indexes, at most 5 in a segment, are 4 segments."""
    rows = rows_of(*((NOW_MS + i, 1, i) for i in range(20)))
    assert len(bucket_of(rows, 300_000, 5).segments) == 4
    assert len(bucket_of(rows, 300_000, -1).segments) == 1


def test_segments_are_cut_by_time() -> None:
    """A segment spans its first time + step - 1, no more."""
    times = np.array([0, 99, 100, 199, 200, 350], np.int64)
    assert list(cut_segments(times, 100, 9)) == [(0, 2), (2, 4), (4, 5), (5, 6)]
    assert list(cut_segments(times, 101, 9)) == [(0, 3), (3, 5), (5, 6)]
    directory = decode_directory(bucket_of(rows_of(*((t, 1, t) for t in times.tolist())), 100, 9).directory)
    assert directory.min_ms.tolist() == [0, 100, 200, 350]
    assert directory.max_ms.tolist() == [99, 199, 200, 350]


def test_segments_of_few_rows_span_more_time() -> None:
    """A fifth of those that there may be, or 1,000; with a bit less for each time if half as many do."""
    times = np.arange(0, 60_000, 10)
    assert list(cut_segments(times[:20], 50, 50)) == [(0, 7), (7, 14), (14, 20)], "64 of 90 ms"
    assert list(cut_segments(times[:20] * 7 // 10, 50, 50)) == [(0, 10), (10, 20)], "63 ms are six bits"
    assert [end - start for start, end in cut_segments(times, 300, 5000)] == [820] * 7 + [260]
    assert [end - start for start, end in cut_segments(times, 300, -1)] == [820] * 7 + [260]
    assert [end - start for start, end in cut_segments(times, 15_000, -1)] == [1500] * 4


def test_random_delays_over_a_day_take_little_more_than_they_say() -> None:
    """Which of 86,400,000 ms a message has is 3.3 bytes; five minutes of them are 174 messages."""
    count = 50_000
    rng = np.random.default_rng(1)
    times = np.sort(rng.integers(86_400_000, size=count)) + NOW_MS
    encoded = bucket_of(Rows(times, (7 << 32) + rng.permutation(count)))
    assert len(encoded.segments) < 100
    stored_bytes = sum(map(len, encoded.segments)) + sum(map(len, encoded.directory))
    assert 3.3 < stored_bytes / count < 3.65


def test_segments_come_in_order_of_time_ledger_entry() -> None:
    """Pulsar's DelayedIndexQueueTest: time, then ledger, then entry."""
    rows = rows_of((10, 2, 1), (10, 1, 9), (10, 2, 0), (5, 3, 0), (20, 1, 0))
    found = all_rows(bucket_of(rows, indexes_max=2))
    assert list(zip(found.times_ms.tolist(), found.codes.tolist(), strict=True)) == [
        (5, code_of(3, 0)),
        (10, code_of(1, 9)),
        (10, code_of(2, 0)),
        (10, code_of(2, 1)),
        (20, code_of(1, 0)),
    ]


# -- size ----------------------------------------------------------------------------------------------


def workload(kind: str) -> Rows:
    """A ledger of 50,000 entries at 8 in a millisecond, as the requirements have it."""
    rng = np.random.default_rng(7)
    entries = np.arange(50_000, dtype=np.int64)
    sent_ms = NOW_MS + entries // 8
    delays = {
        "fixed": np.full(50_000, 3_600_000, np.int64),
        "random": rng.integers(0, 1_250_000, 50_000),
        "mix2": np.where(entries % 2, 60_000, 3_600_000),
        "jitter": 60_000 + rng.integers(0, 5000, 50_000),
        "alt": np.full(50_000, 60_000, np.int64),
    }[kind]
    chosen = entries % 2 == 0 if kind == "alt" else entries >= 0
    return Rows((sent_ms + delays)[chosen], ((np.int64(9) << 32) + entries)[chosen]).sorted()


@pytest.mark.parametrize(
    ("kind", "bytes_max"), [("fixed", 0.1), ("random", 3.0), ("mix2", 0.1), ("alt", 0.1), ("jitter", 2.0)]
)
def test_bytes_for_each_message(kind: str, bytes_max: float) -> None:
    rows = workload(kind)
    encoded = bucket_of(rows)
    assert same(all_rows(encoded), rows)
    per_message = (sum(map(len, encoded.segments)) + sum(map(len, encoded.directory))) / rows.length
    print(f"{kind}: {per_message:.4f} bytes a message in {len(encoded.segments)} segments")
    assert per_message <= bytes_max


def test_bytes_for_each_message_of_many_ledgers() -> None:
    """As after a merge of 50: a segment has one of 500 entries, and spans seconds instead of minutes."""
    rng = np.random.default_rng(5)
    entries = np.flatnonzero(rng.random(2_500_000) < 0.002).astype(np.int64)
    codes = (np.int64(9) + entries // 50_000 << 32) + entries % 50_000
    rows = Rows(NOW_MS + rng.integers(0, 2500, len(codes)), codes).sorted()
    encoded = encode_segment(rows)
    assert same(decode_segment(encoded), rows)
    assert len(encoded) / rows.length <= 3.0 - 0.05


# -- damage --------------------------------------------------------------------------------------------


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_every_flipped_bit_is_seen() -> None:
    rows = rows_of(*((NOW_MS + random.Random(i).randrange(9000), 3, 2 * i) for i in range(40)))
    encoded = bucket_of(rows, indexes_max=20)
    for number, entry in enumerate(encoded.segments):
        for bit in range(8 * len(entry)):
            with pytest.raises(CorruptData):
                decode_directory(encoded.directory).decode_segment(number, flipped(entry, bit))
            with pytest.raises(CorruptData):
                decode_segment(flipped(entry, bit))
    (piece,) = encoded.directory
    for bit in range(8 * len(piece)):
        with pytest.raises(CorruptData):
            decode_directory([flipped(piece, bit)])
        with pytest.raises(CorruptData):
            directory_pieces(flipped(piece, bit))
    changed = encode_overrides({code_of(1, 2): NOW_MS, code_of(1, 3): -1})
    for bit in range(8 * len(changed)):
        with pytest.raises(CorruptData):
            decode_overrides(flipped(changed, bit))


def test_every_cut_is_seen() -> None:
    encoded = bucket_of(rows_of((NOW_MS, 1, 0), (NOW_MS + 5, 1, 7)))
    for entry, decode in (
        (encoded.segments[0], decode_segment),
        (encoded.directory[0], lambda cut: decode_directory([cut])),
    ):
        for length in range(len(entry)):
            with pytest.raises(CorruptData):
                decode(entry[:length])
        with pytest.raises(CorruptData):
            decode(entry + b"\0")


def test_entries_are_not_taken_for_one_another() -> None:
    one = bucket_of(rows_of((1, 1, 1), (900_000, 1, 2)), indexes_max=5)
    other = bucket_of(rows_of((1, 2, 1), (2, 2, 2)))
    directory = decode_directory(one.directory)
    with pytest.raises(CorruptData):
        directory.decode_segment(0, one.segments[1])
    with pytest.raises(CorruptData):
        directory.decode_segment(0, other.segments[0])
    with pytest.raises(CorruptData):
        directory.decode_segment(0, one.directory[0])
    with pytest.raises(CorruptData):
        decode_directory([one.segments[0]])


# -- versions --------------------------------------------------------------------------------------------


def of_next_version(entry: bytes, kind: int) -> bytes:
    """The same in a version 2, in which each body is written backwards."""
    body = unframed(entry, kind)[1][::-1]
    return bytes((2, kind)) + struct.pack("<I", crc32c(bytes((2, kind)) + body)) + body


@pytest.fixture
def reads_version_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first change of the format would add it."""
    first = bucket_format.LAYOUTS[1]
    second = first._replace(
        segment_head=lambda body: first.segment_head(body[::-1]),
        segment=lambda body: first.segment(body[::-1]),
        piece=lambda body: first.piece(body[::-1]),
    )
    monkeypatch.setitem(bucket_format.LAYOUTS, 2, second)
    overrides = override_format.LAYOUTS
    monkeypatch.setitem(overrides, 2, lambda body: overrides[1](body[::-1]))


def test_what_is_written_and_all_before_it_can_be_read() -> None:
    versions = list(range(1, bucket_format.VERSION + 1))
    assert list(bucket_format.LAYOUTS) == list(override_format.LAYOUTS) == versions


@pytest.mark.usefixtures("reads_version_2")
def test_buckets_of_two_versions_are_read_side_by_side() -> None:
    rows = rows_of(*((NOW_MS + 7 * n, 1 + n // 50, n % 50) for n in range(100)))
    old = bucket_of(rows, indexes_max=40)
    new = [of_next_version(entry, SEGMENT) for entry in old.segments]
    end = [of_next_version(entry, PIECE) for entry in old.directory]
    assert directory_pieces(end[-1]) == directory_pieces(old.directory[-1]) == len(end)
    for entries, pieces in ((old.segments, old.directory), (new, end)):
        directory = decode_directory(pieces)
        found = []
        for number, entry in enumerate(entries):
            directory.check_segment(number, entry)
            found.append(directory.decode_segment(number, entry))
        assert concatenate(found).codes.tolist() == rows.codes.tolist()
        assert concatenate(found).times_ms.tolist() == rows.times_ms.tolist()
        assert directory.members == decode_directory(old.directory).members
    changed = encode_overrides({code_of(1, 2): NOW_MS})
    assert decode_overrides(of_next_version(changed, OVERRIDES)) == decode_overrides(changed)


@pytest.mark.usefixtures("reads_version_2")
def test_a_directory_of_pieces_of_two_versions_is_refused() -> None:
    (whole,) = bucket_of(rows_of((NOW_MS, 1, 0), (NOW_MS + 5, 1, 7))).directory
    body = unframed(whole, PIECE)[1][4:]
    first, second = (
        framed(PIECE, struct.pack("<HH", number, 2) + half)
        for number, half in enumerate((body[:9], body[9:]))
    )
    assert decode_directory([first, second]) == decode_directory([whole])
    with pytest.raises(CorruptData, match=r"pieces of versions \[1, 2\]"):
        decode_directory([first, of_next_version(second, PIECE)])


def test_an_unknown_version_is_named() -> None:
    bucket = bucket_of(rows_of((NOW_MS, 1, 0)))
    directory = decode_directory(bucket.directory)
    segment, piece = of_next_version(bucket.segments[0], SEGMENT), of_next_version(bucket.directory[0], PIECE)
    changed = of_next_version(encode_overrides({}), OVERRIDES)
    reads: list[Callable[[], object]] = [
        lambda: decode_segment(segment),
        lambda: directory.check_segment(0, segment),
        lambda: decode_directory([piece]),
        lambda: directory_pieces(piece),
        lambda: decode_overrides(changed),
    ]
    for read in reads:
        with pytest.raises(CorruptData, match="version 2; this release reads 1$"):
            read()
    # A flipped bit of the version is damage, and no other version.
    with pytest.raises(CorruptData, match="does not match its checksum"):
        decode_segment(b"\x02" + bucket.segments[0][1:])


@given(st.binary(max_size=200), st.sampled_from([1, 2, 3]))
def test_bytes_with_a_good_checksum_that_mean_nothing(body: bytes, kind: int) -> None:
    """Only CorruptData, whatever a bug or a stranger has written with the right checksum."""
    entry = framed(kind, body)
    for decode in (decode_segment, decode_overrides, directory_pieces, lambda e: decode_directory([e])):
        try:
            decode(entry)
        except CorruptData:
            continue


def rewritten(entries: list[bytes], rewrite: Callable[[bytes], bytes]) -> list[bytes]:
    """Pieces of a directory with other bytes and the right checksum."""
    return [framed(PIECE, rewrite(unframed(entry, PIECE)[1])) for entry in entries]


def test_a_directory_says_which_of_its_pieces_each_is() -> None:
    """The same bytes under another number, or as one of more pieces, are refused."""
    whole = bucket_of(rows_of((NOW_MS, 1, 0), (NOW_MS + 5, 1, 7))).directory
    directory = decode_directory(whole)
    for number, pieces in ((1, 1), (1, 2), (0, 2)):
        with pytest.raises(CorruptData, match="another piece where 0 of 1 should be"):
            decode_directory(
                rewritten(whole, lambda body, n=(number, pieces): struct.pack("<HH", *n) + body[4:])
            )
    body = unframed(whole[0], PIECE)[1][4:]

    def in_two(first: int, second: int) -> list[bytes]:
        halves = (first, body[:30]), (second, body[30:])
        return [framed(PIECE, struct.pack("<HH", number, 2) + half) for number, half in halves]

    assert decode_directory(in_two(0, 1)).members == directory.members
    for order in ((1, 0), (0, 0), (1, 1)):
        with pytest.raises(CorruptData, match="another piece where"):
            decode_directory(in_two(*order))


def test_bytes_behind_the_members_of_a_directory_are_refused() -> None:
    whole = bucket_of(rows_of((NOW_MS, 1, 0), (NOW_MS + 5, 2, 7))).directory
    for more in (b"\0", bytes(12), b"members of a later version"):
        with pytest.raises(CorruptData, match=f"{len(more)} bytes after the members"):
            decode_directory(rewritten(whole, lambda body, more=more: body + more))


def test_a_directory_without_members_is_refused() -> None:
    """Also where its length is right."""
    piece, directory = struct.Struct("<HH"), struct.Struct("<IIIII")
    (whole,) = bucket_of(rows_of((NOW_MS, 1, 0), (NOW_MS + 5, 1, 7))).directory
    body = unframed(whole, PIECE)[1]
    start, end, segments, _, table_bytes = directory.unpack_from(body, piece.size)
    table = body[piece.size + directory.size :][:table_bytes]
    without = piece.pack(0, 1) + directory.pack(start, end, segments, 0, table_bytes) + table
    with pytest.raises(CorruptData, match="0 bytes after the members"):
        decode_directory([framed(PIECE, without)])


@given(st.integers(0, 10**6), st.data())
def test_damage_behind_the_checksum_is_harmless(seed: int, data: st.DataObject) -> None:
    """As if the checksum had failed to see it: CorruptData or some rows, nothing else and not too many."""
    rng = random.Random(seed)
    rows = rows_of(
        *{(NOW_MS + rng.randrange(99), 1, rng.randrange(400)) for _ in range(rng.randrange(1, 90))}
    )
    body = unframed(encode_segment(rows), SEGMENT)[1]
    bit = data.draw(st.integers(0, 8 * len(body) - 1))
    try:
        found = decode_segment(framed(SEGMENT, flipped(body, bit)))
    except CorruptData:
        return
    assert found.length <= SEGMENT_INDEXES_MAX


# -- the page ------------------------------------------------------------------------------------------


def test_the_bucket_page() -> None:
    segment, directory, overrides, bundle = examples("bucket.md")
    encoded = bucket_of(rows_of((NOW_MS, 7, 0), (NOW_MS + 250, 7, 1), (NOW_MS + 100, 7, 2), (NOW_MS, 8, 5)))
    assert encoded == EncodedBucket([segment], [directory])
    assert overrides == encode_overrides({code_of(7, 1): NOW_MS + 60_000})
    assert bundle == encode_bundle([[b"segment", b"directory"], [b"\x01"]])
    assert decode_bundle(bundle) == [[b"segment", b"directory"], [b"\x01"]]
