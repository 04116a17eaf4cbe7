"""Batches of every shape come apart into the messages that protobuf finds in them, or are refused."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from fastcrc.crc32 import iscsi as crc_32c
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.errors import ProtocolError
from geminga.pipeline.client.frames import CorruptEntry, FrameBuffer
from geminga.pipeline.columns import payloads
from geminga.pipeline.columns.batches import split
from geminga.pipeline.columns.columns import MORE_COLUMNS, ColumnMaker, column_names
from geminga.pipeline.columns.entries import Entries, read_entries
from geminga.pipeline.columns.payloads import BadPayload, ChunkedMessages, ChunksDropped, plain_payloads
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.message_metadata import peek, virtual_stamp

SCHEMA = pa.schema(list(({"value": pa.binary()} | column_names(list(MORE_COLUMNS))).items()))


def single(payload: bytes, **fields: object) -> bytes:
    metadata = pb.SingleMessageMetadata(payload_size=len(payload), **fields).SerializeToString()  # type: ignore[arg-type]
    return struct.pack(">I", len(metadata)) + metadata + payload


def metadata_of(count: int | None, **fields: object) -> pb.MessageMetadata:
    found = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1_700_000_000_000, **fields)  # type: ignore[arg-type]
    if count is not None:
        found.num_messages_in_batch = count
    return found


def message_frame(
    payload: bytes,
    metadata: pb.MessageMetadata,
    *,
    entry_id: int = 0,
    ledger_id: int = 3,
    stamp_ms: int = 0,
    virtual_ms: int = 0,
) -> bytes:
    head = metadata.SerializeToString()
    rest = struct.pack(">I", len(head)) + head + payload
    body = b"\x0e\x01" + struct.pack(">I", crc_32c(rest)) + rest
    if stamp_ms:
        stamp = pb.BrokerEntryMetadata(broker_timestamp=stamp_ms).SerializeToString()
        body = b"\x0e\x02" + struct.pack(">I", len(stamp)) + stamp + body
    if virtual_ms:
        body = virtual_stamp(virtual_ms) + body
    command = pb.BaseCommand(
        type=pb.BaseCommand.Type.MESSAGE,
        message=pb.CommandMessage(
            consumer_id=1,
            message_id=pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id),
            redelivery_count=2,
        ),
    ).SerializeToString()
    return struct.pack(">II", 4 + len(command) + len(body), len(command)) + command + body


def entries_of(*frames: bytes) -> Entries:
    buffer = FrameBuffer(1 << 16)
    for frame in frames:
        while True:
            room = buffer.room()
            size = min(len(room), len(frame))
            room[:size] = frame[:size]
            buffer.received(size)
            frame = frame[size:]
            if not frame:
                break
    return read_entries(*buffer.take())


def decode(*frames: bytes) -> list[dict[str, object]]:
    entries = entries_of(*frames)
    (messages,) = split(entries, plain_payloads(entries, ChunkedMessages()))
    rows: list[dict[str, object]] = ColumnMaker("t", SCHEMA).batch(messages).to_pylist()
    return rows


def test_due_times_are_those_that_a_broker_reads() -> None:
    published_ms, day_ms, year_ms = 1_700_000_000_000, 86_400_000, 365 * 86_400_000
    frames, expected = [], []
    for virtual_ms in (0, published_ms, published_ms + 30 * day_ms, published_ms + 20 * year_ms):
        for after_ms in (-year_ms, 5, 18 * year_ms, 19 * year_ms, 20 * year_ms + 5):
            metadata = metadata_of(None, deliver_at_time=published_ms + after_ms)
            frames.append(message_frame(b"", metadata, virtual_ms=virtual_ms, entry_id=len(frames)))
            head = metadata.SerializeToString()
            stored = struct.pack(">I", len(head)) + head
            expected.append(peek(virtual_stamp(virtual_ms) + stored if virtual_ms else stored).deliver_at_ms)
    assert entries_of(*frames).due_ms.tolist() == expected


Message = tuple[bytes, str | None, dict[str, str], int]
MESSAGES = st.lists(
    st.tuples(
        st.one_of(st.binary(max_size=20), st.sampled_from([b"x" * 100, b"y" * 300])),
        st.one_of(st.none(), st.text(max_size=5)),
        st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        st.integers(0, 1 << 40),
    ),
    min_size=1,
    max_size=40,
)


@given(MESSAGES, st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_any_batch_is_what_was_put_in(messages: list[Message], repeat: int) -> None:
    messages = messages * repeat
    payload = b"".join(
        single(
            value,
            partition_key=key,
            event_time=event_time or None,
            sequence_id=index,
            properties=[pb.KeyValue(key=k, value=v) for k, v in properties.items()],
        )
        for index, (value, key, properties, event_time) in enumerate(messages)
    )
    rows = decode(message_frame(payload, metadata_of(len(messages)), entry_id=5, stamp_ms=1_700_000_000_123))
    assert [row["value"] for row in rows] == [value for value, *_ in messages]
    assert [row["__key"] for row in rows] == [
        None if key is None else key.encode() for _, key, *_ in messages
    ]
    assert [dict(row["__messageProperties"]) for row in rows] == [p for *_, p, _ in messages]  # type: ignore[call-overload]
    times = [row["__eventTime"].timestamp() * 1000 if row["__eventTime"] else 0 for row in rows]  # type: ignore[attr-defined]
    assert [round(time) for time in times] == [event_time for *_, event_time in messages]
    assert [row["__batchIndex"] for row in rows] == list(range(len(messages)))
    ids = [pb.MessageIdData.FromString(row["__messageId"]) for row in rows]  # type: ignore[arg-type]
    assert [(i.ledgerId, i.entryId, i.batch_index, i.batch_size) for i in ids] == [
        (3, 5, index, len(messages)) for index in range(len(messages))
    ]
    assert rows[0]["__brokerTime"].timestamp() == 1_700_000_000.123  # type: ignore[attr-defined]
    assert rows[0]["__redeliveryCount"] == 2


def pairs_of(*pairs: tuple[str, bytes]) -> list[dict[str, object]]:
    return [{"key": key, "value": value} for key, value in pairs]


def test_headers_keep_order_and_repeats_and_the_map_has_the_last_of_each() -> None:
    """In a batch and alone; a value need not be text, and may be missing; null without any."""
    given = [("b", "1"), ("a", "2"), ("b", "1"), ("b", "3"), ("", "")]
    pairs = [pb.KeyValue(key=key, value=value) for key, value in given]
    raw = b"".join(
        b"\x0a" + bytes([len(pair)]) + pair
        for pair in (b"\x0a\x01k\x12\x02\xff\0", b"\x12\x01v\x0a\x01k", b"\x0a\x01n")
    )
    size = pb.SingleMessageMetadata(payload_size=1).SerializeToString()
    odd = struct.pack(">I", len(raw + size)) + raw + size + b"z"
    rows = decode(
        message_frame(single(b"x", properties=pairs) + single(b"y") + odd, metadata_of(3)),
        message_frame(b"alone", metadata_of(None, properties=pairs[::-1]), entry_id=1),
        message_frame(b"none", metadata_of(None), entry_id=2),
    )
    as_bytes = [(key, value.encode()) for key, value in given]
    assert [row["__headers"] for row in rows] == [
        pairs_of(*as_bytes),
        None,
        [*pairs_of(("k", b"\xff\0"), ("k", b"v")), {"key": "n", "value": None}],
        pairs_of(*as_bytes[::-1]),
        None,
    ]
    assert [row["__messageProperties"] for row in rows] == [
        [("a", "2"), ("b", "3"), ("", "")],
        [],
        [("k", "v"), ("n", None)],
        [("", ""), ("a", "2"), ("b", "1")],
        [],
    ]


def test_of_messages_without_properties_there_are_no_headers() -> None:
    rows = decode(message_frame(b"".join(map(single, [b"a", b"b"])), metadata_of(2)))
    assert [(row["__headers"], row["__messageProperties"]) for row in rows] == [(None, [])] * 2


def test_a_long_batch_with_sequence_ids_is_exact() -> None:
    """Sequence ids grow by a byte at 128 and 16384: runs of equal sizes end there."""
    values = [b"%06d" % index * 10 for index in range(20_000)]
    payload = b"".join(single(value, sequence_id=index) for index, value in enumerate(values))
    rows = decode(message_frame(payload, metadata_of(len(values))))
    assert [row["value"] for row in rows] == values


def test_a_payload_that_looks_like_the_next_message_does_not_mislead() -> None:
    """Equal sizes are believed message after message only: a payload is never taken for a header."""
    inner = single(b"a" * 10)
    values = [inner, b"b" * len(inner)] * 50
    payload = b"".join(map(single, values))
    assert [row["value"] for row in decode(message_frame(payload, metadata_of(100)))] == values


SIZES = (0, 3, 9, 126, 127, 128, 300, 16_383, 16_384, 70_000)


def test_sizes_that_differ_from_message_to_message() -> None:
    source = random.Random(5)
    values = [source.randbytes(source.choice(SIZES)) for _ in range(400)]
    payload = b"".join(single(value, sequence_id=index) for index, value in enumerate(values))
    rows = decode(message_frame(payload, metadata_of(len(values))))
    assert [row["value"] for row in rows] == values
    assert [row["__sequenceId"] for row in rows] == list(range(400))


def test_payloads_that_look_like_messages_among_sizes_that_differ() -> None:
    """What looks like a message may say that it ends anywhere: at a true one, within one, or nowhere."""
    source = random.Random(6)
    looks = [
        single(b"x"),
        single(b"y" * 40)[:-7],
        b"\0\0\0\x02\x18\xff",
        b"\0\0\0\0\x18\x05",
        b"\0\0\0\x03\x18\x05",
    ]
    values = [b"".join(source.choices(looks, k=source.randrange(4))) for _ in range(300)]
    rows = decode(message_frame(b"".join(map(single, values)), metadata_of(300)))
    assert [row["value"] for row in rows] == values


@pytest.mark.parametrize("unusual", [[40], [40, 41, 300], [5, 100, 200, 250, 290, 299]])
def test_unusual_metadata_among_sizes_that_differ(unusual: list[int]) -> None:
    """With a key, properties, or more metadata than a byte says."""
    source = random.Random(7)
    values = [source.randbytes(source.randrange(60)) for _ in range(320)]
    more: list[dict[str, object]] = [
        {"partition_key": "k"},
        {"properties": [pb.KeyValue(key="k", value="v")]},
        {"ordering_key": b"o" * 300},
    ]
    fields = [more[index % 3] if index in unusual else {} for index in range(320)]
    payload = b"".join(single(value, **each) for value, each in zip(values, fields, strict=True))
    rows = decode(message_frame(payload, metadata_of(320)))
    assert [row["value"] for row in rows] == values
    assert [row["__key"] for row in rows] == [b"k" if "partition_key" in each else None for each in fields]


@pytest.mark.parametrize("count", [399, 401])
@pytest.mark.parametrize("cut", [0, 14, 15])
def test_sizes_that_differ_in_a_batch_of_another_count_or_length(count: int, cut: int) -> None:
    """The last message has 14 bytes."""
    values = [b"v" * (index % 17) for index in range(400)]
    payload = b"".join(map(single, values))
    frame = message_frame(payload[: len(payload) - cut], metadata_of(count))
    if count > 400 or cut > 14:
        with pytest.raises(ProtocolError):
            decode(frame)
    else:
        assert [row["value"] for row in decode(frame)] == values[:399]


def test_singles_batches_and_codecs_keep_their_order() -> None:
    import zlib

    compressed = b"".join(map(single, [b"c0", b"c1"]))
    frames = [
        message_frame(b"one", metadata_of(None, partition_key="k", event_time=5), entry_id=0),
        message_frame(
            zlib.compress(compressed),
            metadata_of(2, compression=pb.ZLIB, uncompressed_size=len(compressed)),
            entry_id=1,
        ),
        message_frame(b"", metadata_of(None, null_value=True, deliver_at_time=9), entry_id=2),
        message_frame(b"marker", metadata_of(None, marker_type=1), entry_id=3),
        message_frame(b"".join(map(single, [b"b0"])), metadata_of(1, partition_key="first"), entry_id=4),
    ]
    rows = decode(*frames)
    assert [row["value"] for row in rows] == [b"one", b"c0", b"c1", None, b"b0"]
    assert [row["__key"] for row in rows] == [b"k", None, None, None, None]
    assert [row["__entryId"] for row in rows] == [0, 1, 1, 2, 4]
    assert [row["__batchIndex"] for row in rows] == [-1, 0, 1, -1, 0]
    assert rows[3]["__deliverAtTime"].timestamp() == 0.009  # type: ignore[attr-defined]


def test_base64_keys_and_messages_that_were_compacted_away() -> None:
    payload = single(b"a", partition_key="AP8=", partition_key_b64_encoded=True) + single(
        b"b", compacted_out=True
    )
    rows = decode(message_frame(payload, metadata_of(2)))
    assert [(row["value"], row["__key"]) for row in rows] == [(b"a", b"\x00\xff")]


def test_entries_that_a_broker_sends_again_count_once() -> None:
    def taken(*places: tuple[int, int]) -> list[tuple[int, int]]:
        frames = [
            message_frame(b"x", metadata_of(None), ledger_id=ledger, entry_id=entry)
            for ledger, entry in places
        ]
        buffer, data = FrameBuffer(), b"".join(frames)
        buffer.room()[: len(data)] = data
        buffer.received(len(data))
        entries = read_entries(*buffer.take()).once()
        return list(zip(entries.ledger_id.tolist(), entries.entry_id.tolist(), strict=True))

    assert taken((3, 0), (3, 1), (3, 0), (3, 1), (3, 2)) == [(3, 0), (3, 1), (3, 2)]
    assert taken((3, 7), (5, 0), (3, 7), (5, 1)) == [(3, 7), (5, 0), (5, 1)]
    assert taken((3, 7), (5, 0), (5, 9)) == [(3, 7), (5, 0), (5, 9)]


def test_chunks_are_put_together() -> None:
    chunked = ChunkedMessages()
    whole = bytes(range(256)) * 10
    frames = [
        message_frame(
            whole[at : at + 1000],
            metadata_of(
                None, uuid="u", chunk_id=index, num_chunks_from_msg=3, total_chunk_msg_size=len(whole)
            ),
            entry_id=index * 2,
        )
        for index, at in enumerate(range(0, len(whole), 1000))
    ]
    other = message_frame(b"other", metadata_of(None), entry_id=1)
    buffer = FrameBuffer()
    data = b"".join([frames[0], other, frames[1], frames[1], frames[2]])
    buffer.room()[: len(data)] = data
    buffer.received(len(data))
    entries = read_entries(*buffer.take())
    (messages,) = split(entries, plain_payloads(entries, chunked))
    rows = ColumnMaker("t", SCHEMA).batch(messages).to_pylist()
    assert [(row["value"], row["__entryId"]) for row in rows] == [(b"other", 1), (whole, 4)]


@pytest.mark.parametrize("place", [30, 60, -1])
def test_a_flipped_bit_is_found(place: int) -> None:
    frame = bytearray(message_frame(b"".join(map(single, [b"abc"] * 5)), metadata_of(5), entry_id=77))
    frame[place] ^= 1
    with pytest.raises((CorruptEntry, ProtocolError)):
        decode(bytes(frame))


def test_batches_that_are_not_what_they_say_are_refused() -> None:
    good = single(b"abc") * 3
    for payload, count in ((good, 4), (good[:-1], 3), (b"\xff" * 30, 3), (b"", 1), (good, 2**31 - 1)):
        with pytest.raises(ProtocolError):
            decode(message_frame(payload, metadata_of(count)))
    for compression in (pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY):
        for size in (10, 2**31):
            with pytest.raises(BadPayload):
                decode(
                    message_frame(
                        b"nonsense", metadata_of(1, compression=compression, uncompressed_size=size)
                    )
                )


@pytest.mark.parametrize("head", [b"\0\0\0\0", b"\0\0\0\1\x18", b"\0\0\0\2\x18\x80"])
@pytest.mark.parametrize("place", [0, 1, 50])
def test_a_size_that_is_not_in_the_metadata_is_not_taken_from_the_payload(head: bytes, place: int) -> None:
    """Payloads of 24 bytes look as if they went on where the metadata ends."""
    parts = [single(bytes([index]) * (index % 7)) for index in range(60)]
    parts[place] = head + (b"\x18\x80\0" + bytes(30))[len(head) - 4 :]
    for kept in (parts, parts[place : place + 1]):
        with pytest.raises(ProtocolError):
            decode(message_frame(b"".join(kept), metadata_of(len(kept))))


def test_random_bytes_never_crash() -> None:
    source = random.Random(1)
    good = b"".join(single(source.randbytes(5), partition_key="k") for _ in range(20))
    for _ in range(300):
        broken = bytearray(good)
        for _ in range(source.randint(1, 4)):
            broken[source.randrange(len(broken))] = source.randrange(256)
        try:
            rows = decode(message_frame(bytes(broken), metadata_of(20)))
        except ProtocolError:
            continue
        assert len(rows) <= 20


def test_a_frame_larger_than_the_buffer_fits() -> None:
    value = np.random.default_rng(1).bytes(300_000)
    (row,) = decode(message_frame(value, metadata_of(None)))
    assert row["value"] == value


def test_chunked_messages_that_never_end_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "CHUNKED_BYTES_MAX", 10_000)
    chunked = ChunkedMessages()

    def add_firsts(name: str, count: int, payload: bytes) -> None:
        for number in range(count):
            assert chunked.add(f"{name}{number}".encode(), 0, 2, payload) is None

    with pytest.warns(ChunksDropped, match=r"uuid u0, 1 of 2 chunks read") as told:
        add_firsts("u", 20, bytes(1000))  # 1,576 bytes each, with what they cost
    assert len(told) == 1
    assert [number for number in range(20) if chunked.knows(b"u%d" % number)] == [14, 15, 16, 17, 18, 19]
    assert chunked.dropped == {b"u%d" % number for number in range(14)}
    assert chunked.add(b"u19", 1, 2, b"end") == bytes(1000) + b"end"
    assert chunked.add(b"u0", 1, 2, b"end") is None
    add_firsts("e", 30, b"")  # chunks without a byte take memory too
    assert sum(chunked.knows(b"e%d" % number) for number in range(30)) == 17


def test_one_that_is_too_large_by_itself_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "CHUNKED_BYTES_MAX", 10_000)
    chunked = ChunkedMessages()
    with pytest.warns(ChunksDropped):
        assert [chunked.add(b"u", chunk, 20, bytes(1000)) for chunk in range(20)] == [None] * 20
    assert not chunked.knows(b"u")
    assert chunked.add(b"v", 0, 1, b"whole") == b"whole"
