"""What a producer or a broken file may contain: read, or refused in words that name the entry."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from fastcrc.crc32 import iscsi as crc_32c

from geminga.errors import GemingaError, ProtocolError
from geminga.limits import MIB
from geminga.pipeline.client.frames import CorruptEntry, FrameBuffer, Taken
from geminga.pipeline.columns import batches, payloads
from geminga.pipeline.columns.batches import ROWS_AT_ONCE, split
from geminga.pipeline.columns.columns import MORE_COLUMNS, ColumnMaker, column_names
from geminga.pipeline.columns.entries import Entries, read_entries
from geminga.pipeline.columns.payloads import BadPayload, ChunkedMessages, inflate, plain_payloads, portions
from geminga.pipeline.errors import Access
from geminga.pipeline.topics.rows import _in_plain, _Opener
from geminga.pipeline.topics.unreadable import UnreadableEntry, entries_of, messages_of
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.varint import varint

SCHEMA = pa.schema(list(({"value": pa.binary()} | column_names(list(MORE_COLUMNS))).items()))
NEVER_MS = 2**63 - 1
PLACE = "entry 1:2"


def packed(codec: str, payload: bytes) -> bytes:
    return bytes(pa.Codec(codec).compress(payload, asbytes=True))


COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    pb.LZ4: lambda payload: packed("lz4_raw", payload),
    pb.ZLIB: zlib.compress,
    pb.ZSTD: lambda payload: packed("zstd", payload),
    pb.SNAPPY: lambda payload: packed("snappy", payload),
}


def single(payload: bytes, **fields: object) -> bytes:
    metadata = pb.SingleMessageMetadata(payload_size=len(payload), **fields).SerializeToString()  # type: ignore[arg-type]
    return struct.pack(">I", len(metadata)) + metadata + payload


def metadata(**fields: object) -> bytes:
    known = {"producer_name": "p", "sequence_id": 7, "publish_time": 1_700_000_000_000} | fields
    return pb.MessageMetadata(**known).SerializeToString()  # type: ignore[arg-type]


def message(
    payload: bytes, head: bytes, *, entry_id: int = 0, stamp: bytes = b"", command: bytes | None = None
) -> bytes:
    rest = struct.pack(">I", len(head)) + head + payload
    body = stamp + b"\x0e\x01" + struct.pack(">I", crc_32c(rest)) + rest
    if command is None:
        place = pb.MessageIdData(ledgerId=3, entryId=entry_id)
        delivery = pb.CommandMessage(consumer_id=1, message_id=place)
        command = pb.BaseCommand(type=pb.BaseCommand.Type.MESSAGE, message=delivery).SerializeToString()
    return struct.pack(">II", 4 + len(command) + len(body), len(command)) + command + body


def taken(*frames: bytes) -> Taken:
    data = b"".join(frames)
    buffer = FrameBuffer(len(data) + 100)
    buffer.room()[: len(data)] = data
    buffer.received(len(data))
    return buffer.take()


def rows(*frames: bytes) -> list[dict[str, object]]:
    entries = read_entries(*taken(*frames))
    found: list[dict[str, object]] = []
    for messages in split(entries, plain_payloads(entries, ChunkedMessages())):
        batch = ColumnMaker("t", SCHEMA).batch(messages)
        batch.validate(full=True)
        for name in [name for name in SCHEMA.names if name.endswith("Time")]:
            ms = batch.column(name).cast(pa.int64())
            batch = batch.set_column(batch.schema.names.index(name), name, ms)
        found += batch.to_pylist()
    return found


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("size", [0, 1, 3, 11, 12, 13, 70, 1000])
def test_a_payload_has_the_length_it_states_or_is_refused(compression: int, size: int) -> None:
    plain = bytes(number * number % 251 for number in range(size))
    data = COMPRESS[compression](plain)
    assert inflate(compression, data, size, PLACE) == plain
    for wrong in {size + 1, size + 1000, 2 * size + 7, max(size - 1, 0), 0} - {size}:
        with pytest.raises(BadPayload, match=PLACE):
            inflate(compression, data, wrong, PLACE)
    if size:
        with pytest.raises(BadPayload, match=PLACE):
            inflate(compression, b"", size, PLACE)


def test_much_that_was_packed_well_is_inflated_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "INFLATED_AT_ONCE_BYTES", 250)
    sizes = [100, 100, 100, 0, 400, 20, 20]
    frames = [
        message(COMPRESS[pb.ZSTD](bytes(size)), metadata(compression=pb.ZSTD, uncompressed_size=size))
        for size in sizes
    ]
    found: list[Entries] = list(portions(read_entries(*taken(*frames))))
    assert [part.uncompressed_bytes.tolist() for part in found] == [[100, 100], [100, 0], [400], [20, 20]]
    values = [
        len(row["value"])
        for part in found
        for messages in split(part, plain_payloads(part, ChunkedMessages()))
        for row in ColumnMaker("t", SCHEMA).batch(messages).to_pylist()
    ]
    assert values == sizes


@pytest.mark.parametrize("sizes", [(0,), (0, 1)])
def test_a_small_entry_of_many_messages_comes_in_portions(sizes: tuple[int, ...]) -> None:
    """Legal, and a thousand times as large once it is split; so is the search for messages of many sizes."""
    count = 4 * ROWS_AT_ONCE
    batch = b"".join(single(bytes(size)) for size in sizes) * (count // len(sizes))
    head = metadata(num_messages_in_batch=count, compression=pb.ZSTD, uncompressed_size=len(batch))
    frame = message(COMPRESS[pb.ZSTD](batch), head)
    assert len(frame) < 1500
    entries = read_entries(*taken(frame))
    at = 0
    tracemalloc.start()
    try:
        for messages in messages_of("t", entries, ChunkedMessages()):
            assert messages.batch_index.tolist() == list(range(at, at + ROWS_AT_ONCE))
            assert messages.payload_bytes.tolist() == list(sizes) * (ROWS_AT_ONCE // len(sizes))
            at += len(messages)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert at == count
    assert peak_bytes < 42 * MIB


def test_entries_that_no_key_opens_become_nulls_in_portions() -> None:
    """Each says in a few bytes how many messages it has, and in how many bytes."""
    count = 2 * ROWS_AT_ONCE
    key = pb.EncryptionKeys(key="k", value=b"v")
    head = metadata(
        num_messages_in_batch=count, compression=pb.ZSTD, uncompressed_size=40 * MIB, encryption_keys=[key]
    )
    entries = read_entries(*taken(*[message(b"x", head, entry_id=n) for n in range(12)]))
    opened = _Opener(Access("pulsar://x", reads_undecrypted=True), "t", may_decrypt=True)
    found = 0
    tracemalloc.start()
    try:
        for messages in _in_plain("t", entries, ChunkedMessages(), opened):
            assert messages.null_value.all()
            found += len(messages)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == 12 * count
    assert peak_bytes < 44 * MIB


@pytest.mark.parametrize("at_once", [1, 2, 3, 7])
def test_portions_have_together_what_all_at_once_has(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    few = single(b"a") + single(b"bb", partition_key="k") + single(b"", compacted_out=True) + single(b"c")
    frames = [
        message(few, metadata(num_messages_in_batch=4)),
        message(b"", metadata(num_messages_in_batch=0), entry_id=1),
        message(b"alone", metadata(event_time=5), entry_id=2),
        message(few * 5, metadata(num_messages_in_batch=20), entry_id=3),
        message(b"x", metadata(marker_type=1), entry_id=4),
        message(b"alone", metadata(partition_key="p"), entry_id=5),
        message(b"".join(single(bytes(n % 5)) for n in range(90)), metadata(num_messages_in_batch=90)),
        message(b"", metadata(num_messages_in_batch=0), entry_id=7),
    ]
    expected = rows(*frames)
    monkeypatch.setattr(batches, "ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(batches, "_LOOK_BYTES", 40)
    assert rows(*frames) == expected
    assert len(expected) == 3 + 1 + 15 + 1 + 90


@pytest.mark.parametrize("stated", [2**64 - 2**40, 2**62])
def test_a_size_that_is_a_lie_lets_no_others_be_inflated_together(
    monkeypatch: pytest.MonkeyPatch, stated: int
) -> None:
    monkeypatch.setattr(payloads, "INFLATED_AT_ONCE_BYTES", 250)
    head = metadata(compression=pb.ZSTD)
    heads = [head + b"\x48" + varint(size) for size in (200, 200, stated, stated, stated, stated, 200)]
    found = list(portions(read_entries(*taken(*(message(b"", each) for each in heads)))))
    assert max(np.count_nonzero(part.uncompressed_bytes == 200) for part in found) == 1


def test_times_that_no_column_can_say_are_as_far_as_can_be() -> None:
    last = NEVER_MS // 1000 * 1000
    (row,) = rows(
        message(b"x", metadata(deliver_at_time=NEVER_MS, event_time=NEVER_MS, publish_time=NEVER_MS))
    )
    assert (row["__deliverAtTime"], row["__eventTime"], row["__publishTime"]) == (last, last, last)
    (row,) = rows(message(single(b"x", event_time=2**62), metadata(num_messages_in_batch=1)))
    assert row["__eventTime"] == last


def test_keys_that_are_not_the_base64_they_claim_stay_as_they_are() -> None:
    batch = b"".join(
        single(b"", partition_key=key, partition_key_b64_encoded=True)
        for key in ("aGk=", "!", "abcde", "a\nb=")
    )
    assert [row["__key"] for row in rows(message(batch, metadata(num_messages_in_batch=4)))] == [
        b"hi",
        b"!",
        b"abcde",
        b"a\nb=",
    ]


def test_sequence_ids_are_those_that_messages_say() -> None:
    batch = single(b"a", sequence_id=10) + single(b"b", sequence_id=20) + single(b"c")
    found = rows(message(batch, metadata(num_messages_in_batch=3)), message(b"d", metadata()))
    assert [row["__sequenceId"] for row in found] == [10, 20, 9, 7]


def test_a_batch_of_none_has_none() -> None:
    """Java's consumer has none either, whatever its payload is."""
    found = rows(
        message(b"", metadata(num_messages_in_batch=0)),
        message(b"\0\0\0\x02\x18\x01x", metadata(num_messages_in_batch=0), entry_id=3),
        message(single(b"a", compacted_out=True), metadata(num_messages_in_batch=1)),
        message(single(b"b"), metadata(num_messages_in_batch=1), entry_id=2),
    )
    assert [(row["value"], row["__entryId"]) for row in found] == [(b"b", 2)]


GOOD = message(b"fine", metadata())
NOT_METADATA = message(b"x", metadata() + b"\x0f", entry_id=8)
NO_PUBLISH_TIME = message(b"x", b"\x0a\x01p\x10\x07", entry_id=8)
SHORT_BATCH = message(single(b"a") * 2, metadata(num_messages_in_batch=3), entry_id=8)
FEWER_THAN_NONE = [message(b"x", metadata(num_messages_in_batch=n), entry_id=8) for n in (-1, -2, -(2**31))]
NO_PROPERTY_KEY = message(b"x", metadata() + b"\x22\x03\x12\x01v", entry_id=8)


@pytest.mark.parametrize("bad", [NOT_METADATA, NO_PUBLISH_TIME, SHORT_BATCH, *FEWER_THAN_NONE])
def test_an_entry_that_breaks_the_rules_is_named(bad: bytes) -> None:
    topic = "persistent://a/b/c"
    with pytest.raises(UnreadableEntry, match=r"persistent://a/b/c: entry 3:8 .*startingOffsets"):
        list(messages_of(topic, entries_of(topic, taken(GOOD, bad, GOOD)), ChunkedMessages()))


@pytest.mark.parametrize("bad", [NOT_METADATA, NO_PUBLISH_TIME, *FEWER_THAN_NONE])
def test_an_entry_behind_the_end_of_a_range_does_not_matter(bad: bytes) -> None:
    """The error of the entry says to read what is before it."""
    found = entries_of("persistent://a/b/c", taken(GOOD, GOOD, bad, GOOD), (3, 8))
    assert found.entry_id.tolist() == [0, 0]
    with pytest.raises(UnreadableEntry, match="entry 3:8 "):
        entries_of("persistent://a/b/c", taken(GOOD, bad, GOOD), (3, 9))


def test_metadata_that_goes_on_behind_its_message_names_the_entry() -> None:
    head = metadata()
    bad = bytearray(message(b"", head, entry_id=8))
    at = len(bad) - len(head) - 4
    bad[at : at + 4] = struct.pack(">I", 2**31 - 1)
    bad[at - 4 : at] = struct.pack(">I", crc_32c(bytes(bad[at:])))
    with pytest.raises(CorruptEntry, match="entry 3:8: it ends inside its metadata"):
        taken(bytes(bad))


def test_a_property_without_a_key_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a property without a key"):
        rows(GOOD, NO_PROPERTY_KEY)


def test_what_cannot_be_inflated_is_named_with_its_topic() -> None:
    bad = message(b"nonsense", metadata(compression=pb.ZSTD, uncompressed_size=9), entry_id=8)
    with pytest.raises(BadPayload, match=r"persistent://a/b/c: entry 3:8"):
        list(messages_of("persistent://a/b/c", read_entries(*taken(GOOD, bad)), ChunkedMessages()))


def test_bytes_that_are_no_commands_are_refused() -> None:
    for command in (b"\x08\x09\x4a\x02\x12\x05", b"\xff" * 9, b"\x08\x09\x4a\x03\x12\x05\x08"):
        bad = message(b"x", metadata(), command=command)
        with pytest.raises(ProtocolError):
            taken(bad)
        with pytest.raises((ProtocolError, CorruptEntry)):
            taken(bad[:-1] + b"y")


def hostile(source: random.Random) -> bytes:
    """A frame of which a few bytes are others than they should be; its checksum is right, mostly."""

    def changed(data: bytes) -> bytes:
        found = bytearray(data)
        for _ in range(source.choice((0, 0, 1, 3))):
            at = source.randrange(len(found) + 1)
            found[at : at + source.choice((0, 1, 4))] = source.choice(
                (b"", b"\xff", b"\x80\x80", b"\x12\x7f")
            )
        return bytes(found)

    count = source.choice((None, 0, 1, 3, 20))
    batch = b"".join(
        single(
            source.randbytes(source.choice((0, 2, 90))),
            partition_key=source.choice(("k", "aGk=", "é")),
            event_time=source.choice((0, 1, 2**63 - 1, 2**64 - 1)),
            null_value=source.random() < 0.1,
            partition_key_b64_encoded=source.random() < 0.3,
        )
        for _ in range(count or 1)
    )
    fields: dict[str, object] = {"publish_time": source.choice((0, 1, 2**63 - 1)), "sequence_id": 2**64 - 1}
    if count is not None:
        fields["num_messages_in_batch"] = count
    payload = changed(batch)
    compression = source.choice((pb.NONE, pb.NONE, *COMPRESS))
    if compression != pb.NONE:
        fields |= {"compression": compression, "uncompressed_size": len(payload) + source.choice((0, 0, 1))}
        payload = changed(COMPRESS[compression](payload))
    if source.random() < 0.2:
        fields |= {"uuid": "u", "num_chunks_from_msg": source.randrange(3), "chunk_id": source.randrange(3)}
    frame = message(payload, changed(metadata(**fields)), entry_id=source.randrange(4))
    return changed(frame) if source.random() < 0.1 else frame


@pytest.mark.parametrize("seed", range(4))
def test_no_bytes_lead_to_any_other_error(seed: int) -> None:
    source = random.Random(seed)
    read = 0
    for _ in range(250):
        try:
            read += len(rows(*(hostile(source) for _ in range(source.randint(1, 3)))))
        except GemingaError:
            continue
    assert read > 20
