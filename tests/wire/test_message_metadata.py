"""What the broker reads in a stored entry: against protobuf, for whatever metadata a client may write."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geminga.errors import ProtocolError
from geminga.wire import client_commands, message_metadata
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import signed
from geminga.wire.message_metadata import (
    FAR_AHEAD_MS,
    NEARLY_BROKERS_MS,
    Peek,
    broker_timestamp_ms,
    peek,
    stamp,
    stamp_bytes,
    strip,
    virtual_stamp,
)
from geminga.wire.stored_entry import may_be_delayed
from tests.budget import budget

EXAMPLES = budget(day=300, night=20_000)
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

NOW_MS = 1_785_500_000_123
STAMP = stamp(NOW_MS)


def entry_of(metadata: bytes, payload: bytes = b"payload", *, checksum: bool = True) -> bytes:
    head = b"\x0e\x01\x00\x00\x00\x00" if checksum else b""
    return head + len(metadata).to_bytes(4, "big") + metadata + payload


def usual(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        **{"producer_name": "p-1", "sequence_id": 300, "publish_time": NOW_MS, **fields}
    )


def peek_at(**fields: Any) -> Peek:
    return peek(STAMP + entry_of(usual(**fields).SerializeToString()))


def expected(body: bytes, metadata: pb.MessageMetadata) -> dict[str, Any]:
    """The oracle: each field by name from protobuf's parse."""

    def maybe(name: str) -> Any:
        return getattr(metadata, name) if metadata.HasField(name) else None  # type: ignore[arg-type]

    def raw(text: Any) -> Any:
        return text.encode() if isinstance(text, str) else text

    return {
        "body": body,
        "publish_time_ms": signed(metadata.publish_time),
        "partition_key_utf8": raw(maybe("partition_key")),
        "ordering_key": maybe("ordering_key"),
        "deliver_at_ms": metadata.deliver_at_time,
        "num_messages_in_batch": metadata.num_messages_in_batch,
        "is_batch": metadata.HasField("num_messages_in_batch"),
        "event_time_ms": signed(metadata.event_time),
        "highest_sequence_id": signed(metadata.highest_sequence_id),
        "compression": metadata.compression,
        "uncompressed_bytes": metadata.uncompressed_size,
        "marker_type": maybe("marker_type"),
        "txnid_most_bits": maybe("txnid_most_bits"),
        "txnid_least_bits": maybe("txnid_least_bits"),
        "chunk_id": metadata.chunk_id if metadata.HasField("chunk_id") else -1,
        "num_chunks": metadata.num_chunks_from_msg,
        "partition_key_b64": metadata.partition_key_b64_encoded,
        "null_value": metadata.null_value,
    }


def fields_of(found: Peek) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__struct_fields__}


# -- values ------------------------------------------------------------------------------------------------


def test_a_plain_message() -> None:
    body = STAMP + entry_of(usual().SerializeToString())
    found = peek(body)
    assert fields_of(found) == expected(body, usual())
    assert (found.producer_name, found.producer_name_utf8, found.sequence_id) == ("p-1", b"p-1", 300)
    assert found.total_bytes == len(body)
    assert found.metadata == usual()
    assert not any((found.is_chunk, found.is_batch))
    assert found.marker_type is None
    assert found.partition_key is None


@pytest.mark.parametrize("name_bytes", [0, 1, 127, 128, 300])
@pytest.mark.parametrize("sequence_id", [0, 127, 128, 2**14, 2**21, 2**28, 2**35, 2**62, 2**63, 2**64 - 1])
@pytest.mark.parametrize("publish_time", [0, 2**14, 2**34, 2**35, NOW_MS, NOW_MS + 2**14, 2**42, 2**63])
def test_required_fields_of_every_length(name_bytes: int, sequence_id: int, publish_time: int) -> None:
    metadata = usual(producer_name="n" * name_bytes, sequence_id=sequence_id, publish_time=publish_time)
    body = STAMP + entry_of(metadata.SerializeToString())
    found = peek(body)
    assert fields_of(found) == expected(body, metadata)
    assert (found.producer_name_utf8, found.sequence_id) == (b"n" * name_bytes, signed(sequence_id))


def test_delayed() -> None:
    assert peek_at(deliver_at_time=NOW_MS + 5000).deliver_at_ms == NOW_MS + 5000
    assert peek_at(deliver_at_time=-1).deliver_at_ms == -1
    assert peek_at(deliver_at_time=0).deliver_at_ms == 0


def test_a_batch_of_one_is_a_batch() -> None:
    found = peek_at(num_messages_in_batch=1)
    assert (found.num_messages_in_batch, found.is_batch) == (1, True)


def test_a_key() -> None:
    found = peek_at(partition_key="clé", properties=[pb.KeyValue(key="a", value="b" * 200)])
    assert found.partition_key == "clé".encode()


def test_a_key_in_base64() -> None:
    assert peek_at(partition_key="AAE=", partition_key_b64_encoded=True).partition_key == b"\x00\x01"
    assert peek_at(partition_key="?", partition_key_b64_encoded=True).partition_key is None


def test_chunks_markers_and_transactions() -> None:
    assert peek_at(chunk_id=0, num_chunks_from_msg=3).is_chunk
    assert peek_at(marker_type=0).marker_type == 0
    assert peek_at(txnid_most_bits=2**64 - 1, txnid_least_bits=7).txnid_most_bits == 2**64 - 1


def test_without_checksum_and_without_stamp() -> None:
    metadata = usual(deliver_at_time=5).SerializeToString()
    for mark in (b"", STAMP, stamp(NOW_MS, 9)):
        for checksum in (True, False):
            assert peek(mark + entry_of(metadata, checksum=checksum)).deliver_at_ms == 5
            assert peek(mark + entry_of(metadata, b"", checksum=checksum)).publish_time_ms == NOW_MS


def test_a_peek_does_not_show_the_payload() -> None:
    text = repr(peek(STAMP + entry_of(usual(num_messages_in_batch=3).SerializeToString(), b"secret")))
    assert "secret" not in text
    assert "'num_messages_in_batch': 3" in text


def test_text_that_is_not_utf8_stays_as_it_came() -> None:
    metadata = b"\x0a\x02\xff\xfe\x10\x01\x18\x01\x32\x01\xff"
    # a number of two bytes where one would do sends it the long way
    for one in (metadata, metadata + b"\xf8\x3f\x00"):
        found = peek(entry_of(one))
        assert (found.producer_name_utf8, found.partition_key_utf8) == (b"\xff\xfe", b"\xff")
        assert found.producer_name == "\ufffd\ufffd"


def test_times_are_remembered_within_a_bound() -> None:
    for n in range(3000):
        time_ms = NOW_MS + (n << 14)
        assert (
            peek_at(publish_time=time_ms, event_time=time_ms, deliver_at_time=time_ms).publish_time_ms
            == time_ms
        )
    assert len(message_metadata._times) <= 1024


def test_equal_ends_of_metadata_are_remembered_within_a_bound() -> None:
    for n in range(1000):
        for _ in range(2):
            found = peek_at(num_messages_in_batch=n, uncompressed_size=n + 1, compression=pb.LZ4)
            assert (found.num_messages_in_batch, found.is_batch) == (n, True)
            assert (found.uncompressed_bytes, found.compression) == (n + 1, pb.LZ4)
        assert peek_at(num_messages_in_batch=n, partition_key=str(n)).partition_key_utf8 == b"%d" % n
    assert len(message_metadata._rests) <= 256
    assert peek_at().num_messages_in_batch == 1


# -- against protobuf --------------------------------------------------------------------------------------

u64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.just(NOW_MS), st.just(NOW_MS + 9_999))
i32 = st.one_of(st.integers(0, 300), st.integers(-(2**31), 2**31 - 1))
text = st.text(max_size=8)
key_values = st.lists(st.builds(pb.KeyValue, key=text, value=st.text(max_size=80)), max_size=3)
FIELDS = {
    "properties": key_values,
    "replicated_from": text,
    "partition_key": text,
    "replicate_to": st.lists(text, max_size=2),
    "compression": st.integers(0, 4),
    "uncompressed_size": st.integers(0, 2**32 - 1),
    "num_messages_in_batch": i32,
    "event_time": u64,
    "encryption_keys": st.lists(
        st.builds(pb.EncryptionKeys, key=text, value=st.binary(max_size=3)), max_size=2
    ),
    "encryption_algo": text,
    "encryption_param": st.binary(max_size=5),
    "schema_version": st.binary(max_size=8),
    "partition_key_b64_encoded": st.booleans(),
    "ordering_key": st.binary(max_size=8),
    "deliver_at_time": st.one_of(st.just(NOW_MS), st.integers(-(2**63), 2**63 - 1)),
    "marker_type": i32,
    "txnid_least_bits": u64,
    "txnid_most_bits": u64,
    "highest_sequence_id": u64,
    "null_value": st.booleans(),
    "uuid": text,
    "num_chunks_from_msg": i32,
    "total_chunk_msg_size": i32,
    "chunk_id": i32,
    "null_partition_key": st.booleans(),
}


def test_every_field_is_generated() -> None:
    assert set(FIELDS) | {"producer_name", "sequence_id", "publish_time"} == {
        field.name for field in pb.MessageMetadata.DESCRIPTOR.fields
    }


any_metadata = st.builds(pb.MessageMetadata, producer_name=text, sequence_id=u64, publish_time=u64).flatmap(
    lambda base: st.fixed_dictionaries({}, optional=FIELDS).map(
        lambda more: pb.MessageMetadata(
            producer_name=base.producer_name,
            sequence_id=base.sequence_id,
            publish_time=base.publish_time,
            **more,
        )
    )
)
extras = st.sampled_from(
    [
        b"",
        b"",
        b"\xf8\x3f\x05",  # unknown fields, then a group
        b"\xfa\x3f\x02hi",
        b"\xfb\x3f\x08\x01\xfc\x3f",
        b"\x18\x85\x00",  # publish time again, with a byte too many
        b"\x58\x03",  # the batch again
        b"\x58\x82\x80\x00",
        b"\x98\x01\xfb\xbe\xdf\xc0\xfb\x33",
        b"\x98\x81\x00\x05",  # a tag with a byte too many
        b"\x40\x09",  # a compression that is not known
        b"\x88\x01\x02",  # a flag that is neither 0 nor 1
        b"\xc8\x01\x80\x01",
        b"\x52\x00",  # number 10 was never used
        b"\x5a\x00",  # the batch, as text
        b"\x59\x00\x00\x00\x00\x00\x00\x00\x00",
    ]
)


@fuzz
@given(any_metadata, extras, extras, st.sampled_from([STAMP, b"", stamp(NOW_MS, 4)]), st.booleans())
def test_metadata_is_read_as_protobuf_reads_it(
    metadata: pb.MessageMetadata, before: bytes, after: bytes, mark: bytes, checksum: bool
) -> None:
    encoded = before + metadata.SerializeToString() + after
    body = mark + entry_of(encoded, b"\x98\x01\x05 a payload that looks like a field", checksum=checksum)
    assert fields_of(peek(body)) == expected(body, pb.MessageMetadata.FromString(encoded))


@fuzz
@given(any_metadata, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_metadata_is_read_as_protobuf_reads_it_or_refused(
    metadata: pb.MessageMetadata, flips: list[tuple[int, int]]
) -> None:
    # what is skipped is not looked into, so it may be damaged unnoticed: leave it out
    for name in ("properties", "replicate_to", "encryption_keys"):
        metadata.ClearField(name)  # type: ignore[arg-type]
    encoded = bytearray(metadata.SerializeToString())
    for at, byte in flips:
        encoded[at % len(encoded)] = byte
    body = STAMP + entry_of(bytes(encoded))
    try:
        parsed = pb.MessageMetadata.FromString(bytes(encoded))
        complete = all(parsed.HasField(n) for n in ("producer_name", "sequence_id", "publish_time"))  # type: ignore[arg-type]
    except DecodeError:
        complete = False
    if complete:
        assert fields_of(peek(body)) == expected(body, parsed)
        return
    try:
        found = peek(body)
    except ProtocolError:
        return
    # the damage made something that is skipped, and is inside it
    assert any(tag in encoded for tag in b"\x22\x3a\x6a\x72\x7a\x82\xd2")
    assert found.body is body


@fuzz
@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda b: STAMP + b)))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for read in (peek, strip, broker_timestamp_ms, stamp_bytes):
        try:
            read(body)
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x0e\x01",
        STAMP,
        STAMP + b"\x0e\x01\x00\x00\x00\x00",
        STAMP + b"\x0e\x01\x00\x00\x00\x00\x00\x00\x00\x01",
        STAMP + entry_of(b""),
        entry_of(b"\x0a\x01p\x10\x01"),
        entry_of(b"\x0a\x01p\x18\x01"),
        entry_of(b"\x10\x01\x18\x01"),
        entry_of(b"\x0a\x7fp\x10\x01\x18\x01", b""),
        entry_of(usual().SerializeToString(), b"")[:-1],
        STAMP + entry_of(usual().SerializeToString(), b"")[:-1],
        STAMP + entry_of(usual().SerializeToString())[:6] + b"\xff\xff\xff\xff" + usual().SerializeToString(),
        entry_of(b"\x0a\x01p\x10\x01\x18\x01\x07"),
        b"\x0e\x02\xff\xff\xff\xff" + entry_of(usual().SerializeToString()),
    ],
)
def test_what_is_not_an_entry_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        peek(body)


@pytest.mark.parametrize(
    "tail",
    [b"\x32\x05ke", b"\xd2\x01\x05uu", b"\x58\x80", b"\x98\x01", b"\x98\x01\xfb\xbe\xdf", b"\x58", b"\x98"],
)
@pytest.mark.parametrize("payload", [b"", b"\x01\x01\x01\x01\x01\x01\x01"])
def test_a_field_that_runs_past_the_metadata_is_refused(tail: bytes, payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        peek(STAMP + entry_of(usual().SerializeToString() + tail, payload))


@pytest.mark.parametrize("tail", [b"\xd2\x01\x05uuid5", b"\x32\x05key-5", b"\x22\x00"])
def test_metadata_that_runs_past_the_entry_is_refused(tail: bytes) -> None:
    body = STAMP + entry_of(usual().SerializeToString() + tail, b"")
    assert peek(body).publish_time_ms == NOW_MS
    for cut in range(1, len(tail) + 1):
        with pytest.raises(ProtocolError):
            peek(body[:-cut])


def test_a_short_time_is_not_taken_for_the_beginning_of_a_familiar_one() -> None:
    assert peek_at().publish_time_ms == NOW_MS
    upper = usual().SerializeToString()[-4:]
    metadata = b"\x0a\x01p\x10\x01\x18\x25\x60" + upper
    body = STAMP + entry_of(metadata)
    assert fields_of(peek(body)) == expected(body, pb.MessageMetadata.FromString(metadata))
    assert peek(body).publish_time_ms == 0x25


def test_damage_in_what_is_skipped_is_not_the_brokers_business() -> None:
    metadata = usual().SerializeToString() + b"\x22\x02\xff\xff" + b"\x98\x01\x05"
    assert peek(STAMP + entry_of(metadata)).deliver_at_ms == 5


# -- the stamp ---------------------------------------------------------------------------------------------


@given(st.integers(0, 2**63), st.one_of(st.none(), st.integers(0, 2**63)))
def test_stamps(time_ms: int, index: int | None) -> None:
    mark = stamp(time_ms, index)
    inner = pb.BrokerEntryMetadata(broker_timestamp=time_ms, index=index).SerializeToString()
    assert mark == b"\x0e\x02" + len(inner).to_bytes(4, "big") + inner
    sent = client_commands.entry(usual(), b"payload")
    assert stamp_bytes(mark + sent) == len(mark)
    assert strip(mark + sent) == sent
    assert broker_timestamp_ms(mark + sent) == time_ms
    assert peek(mark + sent).publish_time_ms == NOW_MS


def test_an_entry_without_a_stamp() -> None:
    sent = client_commands.entry(usual(), b"payload")
    assert stamp_bytes(sent) == 0
    assert strip(sent) is sent
    assert broker_timestamp_ms(sent) is None
    assert broker_timestamp_ms(b"\x0e\x02\x00\x00\x00\x02\x10\x05" + sent) is None


@pytest.mark.parametrize(
    "mark", [b"\x0e\x02\x00\x00\x00\x09\x08", b"\x0e\x02", b"\x0e\x02\x00\x00\x00\x07\x08"]
)
def test_a_stamp_that_is_cut_short(mark: bytes) -> None:
    with pytest.raises(ProtocolError):
        broker_timestamp_ms(mark)


def test_a_stamp_that_is_not_one() -> None:
    with pytest.raises(ProtocolError):
        broker_timestamp_ms(b"\x0e\x02\x00\x00\x00\x01\x07")


# -- the stamp of a virtual clock --------------------------------------------------------------------------

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
SHOWN_MS = NOW_MS + 30 * DAY_MS
VIRTUAL = virtual_stamp(SHOWN_MS)


@fuzz
@given(
    st.integers(0, 2**63 - 1),
    st.one_of(st.none(), st.integers(0, 2**63 - 1)),
    st.binary(max_size=20),
    st.booleans(),
)
def test_times_count_from_a_virtual_stamp(
    publish_time: int, deliver_at: int | None, key: bytes, checksum: bool
) -> None:
    fields: dict[str, Any] = {"publish_time": publish_time, "partition_key": key.hex()}
    if deliver_at is not None:
        fields["deliver_at_time"] = deliver_at
    sent = entry_of(usual(**fields).SerializeToString(), checksum=checksum)
    body = VIRTUAL + sent
    found, by_client = peek(body), peek(STAMP + sent)
    assert found.body == body
    assert found.publish_time_ms == SHOWN_MS
    if not deliver_at:
        assert found.deliver_at_ms == 0
    elif SHOWN_MS - publish_time >= FAR_AHEAD_MS and deliver_at >= SHOWN_MS - NEARLY_BROKERS_MS:
        assert found.deliver_at_ms == deliver_at, "a time of the broker's clock"
    else:
        due_ms = SHOWN_MS + deliver_at - publish_time
        assert found.deliver_at_ms == max(1, min(due_ms, 2**63 - 1))
    assert found.partition_key == by_client.partition_key
    assert found.num_messages_in_batch == by_client.num_messages_in_batch
    assert broker_timestamp_ms(body) == SHOWN_MS
    assert strip(body) == sent
    assert found.metadata == by_client.metadata
    assert may_be_delayed(body) or deliver_at is None


@pytest.mark.parametrize(
    ("ahead_days", "asked_ms", "due_after_ms"),
    [
        (7308, NOW_MS + 5, 5),
        (7308, NOW_MS + 18 * YEAR_MS, 18 * YEAR_MS),
        (7308, NOW_MS + 7308 * DAY_MS + 5, 5),
        (7308, NOW_MS + 7308 * DAY_MS - YEAR_MS, -YEAR_MS),
        (30, NOW_MS + 30 * DAY_MS + 5, 30 * DAY_MS + 5),
        (0, NOW_MS + 20 * YEAR_MS, 20 * YEAR_MS),
    ],
)
def test_a_time_of_a_clock_far_ahead_is_that_time(ahead_days: int, asked_ms: int, due_after_ms: int) -> None:
    """What the client's clock says counts by the delay; so it does where the clocks are near each other."""
    shown_ms = NOW_MS + ahead_days * DAY_MS
    sent = entry_of(usual(deliver_at_time=asked_ms).SerializeToString())
    assert peek(virtual_stamp(shown_ms) + sent).deliver_at_ms == shown_ms + due_after_ms


def test_only_a_virtual_clocks_stamp_counts() -> None:
    """A stamp with an index, as long as a virtual one, is what it was."""
    sent = entry_of(usual(deliver_at_time=NOW_MS + 5).SerializeToString())
    indexed = stamp(NOW_MS, 0x80)
    assert len(indexed) == len(VIRTUAL)
    assert peek(indexed + sent).deliver_at_ms == NOW_MS + 5
    assert peek(sent).deliver_at_ms == NOW_MS + 5
    # The mark may occur in what a client wrote.
    tricky = entry_of(usual(deliver_at_time=NOW_MS + 5, partition_key="\x01").SerializeToString())
    assert peek(STAMP + tricky + VIRTUAL).deliver_at_ms == NOW_MS + 5


@pytest.mark.parametrize("shown_ms", [2**35 - 1, 2**42, -1])
def test_a_virtual_stamp_has_room_for_six_bytes(shown_ms: int) -> None:
    with pytest.raises(ValueError, match="1971 to 2109"):
        virtual_stamp(shown_ms)


def test_clients_read_a_virtual_stamp() -> None:
    """Pulsar's own fields are those of any stamp; the other one is skipped."""
    found = pb.BrokerEntryMetadata()
    found.ParseFromString(VIRTUAL[6:])
    assert (found.broker_timestamp, found.HasField("index")) == (SHOWN_MS, False)
