"""Bytes into commands: values, the scanners against protobuf, streams cut anywhere, and malformed frames."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastcrc.crc32 import iscsi as crc_32c
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geminga.errors import ProtocolError
from geminga.limits import FRAME_BYTES_MAX, KIB, MIB
from geminga.wire import client_commands, encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Sends, position_of, signed, singly, unsigned
from geminga.wire.decoder import (
    RUN_ENTRIES_MAX,
    Ack,
    BadFrame,
    Decoder,
    Delivery,
    Flow,
    Send,
    UnknownCommand,
    request_id_of,
)
from geminga.wire.parse import ACK_PART_IDS, ack_parts, parse_command
from tests.budget import budget

EXAMPLES = budget(day=200, night=20_000)
"""20000 for a thorough run."""
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

U64 = 2**64 - 1
TYPE = pb.BaseCommand.Type


def frame(command: bytes, rest: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(command) + len(rest), len(command)) + command + rest


def checked(rest: bytes) -> bytes:
    return struct.pack(">HI", 0x0E01, crc_32c(rest)) + rest


def an_entry(payload: bytes = b"hello", sequence_id: int = 0) -> bytes:
    return client_commands.entry(client_commands.metadata("p", sequence_id, 1_785_500_000_000), payload)


def decode(data: bytes) -> list[Any]:
    return list(singly(Decoder().feed(data)))


def outcome(chunks: Iterator[bytes] | list[bytes]) -> tuple[list[Any], str | None]:
    """What a stream of chunks comes to: every command, and the error that ended it if one did."""
    decoder, commands = Decoder(), []
    for chunk in chunks:
        try:
            commands += singly(decoder.feed(chunk))
        except BadFrame as error:
            return [*commands, *singly(error.commands)], str(error)
    return commands, None


def the_long_way(data: bytes) -> Any:
    """The oracle: one whole frame by protobuf alone."""
    total, command_size = struct.unpack_from(">II", data)
    assert total + 4 == len(data)
    return parse_command(data, memoryview(data), 8, 8 + command_size, len(data))


def long_outcome(data: bytes) -> Any:
    try:
        return the_long_way(data)
    except ProtocolError as error:
        return str(error)


def short_outcome(data: bytes) -> Any:
    try:
        (command,) = decode(data)
    except ProtocolError as error:
        return str(error)
    return command


# -- values ------------------------------------------------------------------------------------------------


def test_send() -> None:
    body = an_entry()
    assert decode(client_commands.send(3, 300, body)) == [Send(3, 300, 1, 0, body, True)]


@pytest.mark.parametrize("producer_id", [0, 1, 127, 128, 16_383, 16_384, 2**40, U64])
@pytest.mark.parametrize(
    "sequence_id", [0, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 2**35, 2**62, 2**63, U64]
)
def test_send_with_ids_of_every_length(producer_id: int, sequence_id: int) -> None:
    (send,) = decode(client_commands.send(producer_id, sequence_id, an_entry(), num_messages=100))
    assert (send.producer_id, send.sequence_id, send.num_messages) == (producer_id, sequence_id, 100)


def test_sends_of_one_producer_come_as_one_run() -> None:
    def sends(producer_id: int, *sequence_ids: int) -> bytes:
        return b"".join(client_commands.send(producer_id, each, an_entry()) for each in sequence_ids)

    damaged = bytearray(sends(1, 5))
    damaged[-1] ^= 1
    data = sends(1, 0, 1, 2) + sends(2, 7) + sends(1, 3) + client_commands.flow(1, 9) + sends(1, 4)
    found = Decoder().feed(data + bytes(damaged) + sends(1, *range(6, 6 + 2 * RUN_ENTRIES_MAX)))
    shape = [
        (type(each), each.sequence_ids) if isinstance(each, Sends) else (type(each), None) for each in found
    ]
    assert shape == [
        (Sends, [0, 1, 2]),
        (Sends, [7]),
        (Sends, [3]),
        (Flow, None),
        (Sends, [4]),
        (Send, None),
        (Sends, [*range(6, 6 + RUN_ENTRIES_MAX)]),
        (Sends, [*range(6 + RUN_ENTRIES_MAX, 6 + 2 * RUN_ENTRIES_MAX)]),
    ]


@pytest.mark.parametrize("cut", range(1, 400, 7))
def test_frames_are_counted_wherever_the_stream_is_cut(cut: int) -> None:
    data = b"".join(client_commands.send(1, each, an_entry()) for each in range(4)) + encoder.ping()
    decoder = Decoder()
    counts = []
    for chunk in (data[:cut], data[cut:]):
        commands = list(singly(decoder.feed(chunk)))
        counts.append(decoder.frames)
        assert decoder.frames == len(commands)
    assert sum(counts) == 5


def test_send_with_everything() -> None:
    command = pb.BaseCommand(
        type=TYPE.SEND,
        send=pb.CommandSend(
            producer_id=1,
            sequence_id=2,
            num_messages=3,
            txnid_least_bits=4,
            txnid_most_bits=5,
            highest_sequence_id=6,
            is_chunk=True,
            marker=True,
            message_id=pb.MessageIdData(ledgerId=7, entryId=8),
        ),
    )
    (send,) = decode(frame(command.SerializeToString(), an_entry()))
    assert send == Send(1, 2, 3, 6, an_entry(), True, True, True, (5, 4), command.send.message_id)


def test_send_with_highest_sequence_id_alone() -> None:
    command = pb.BaseCommand(
        type=TYPE.SEND, send=pb.CommandSend(producer_id=1, sequence_id=2, highest_sequence_id=99)
    )
    (send,) = decode(frame(command.SerializeToString(), an_entry()))
    assert (send.num_messages, send.highest_sequence_id) == (1, 99)


def test_a_damaged_message_is_told_by_its_checksum_and_harms_nobody_else() -> None:
    good = client_commands.send(1, 1, an_entry())
    bad = bytearray(good)
    bad[-1] ^= 1
    assert [send.checksum_ok for send in decode(bytes(bad) + good)] == [False, True]


def test_damaged_sizes_inside_a_checksummed_message_are_the_checksums_business() -> None:
    bad = bytearray(client_commands.send(1, 1, an_entry()))
    at = bytes(bad).index(b"\x0e\x01") + 6
    bad[at : at + 4] = b"\xff\xff\xff\xff"
    (send,) = decode(bytes(bad))
    assert not send.checksum_ok


def test_a_message_without_checksum_is_taken_as_it_is() -> None:
    body = an_entry()[6:]
    (send,) = decode(client_commands.send(1, 1, body))
    assert send.checksum_ok
    assert send.headers_and_payload == body


def test_send_does_not_show_its_payload() -> None:
    (send,) = decode(client_commands.send(1, 5, an_entry(b"secret")))
    assert "secret" not in repr(send)
    assert "sequence 5" in repr(send)


def test_ack() -> None:
    assert decode(client_commands.ack(3, [(10, 20)])) == [Ack(3, False, [(10, 20)], None)]
    assert decode(client_commands.ack(3, [(10, 20)], cumulative=True)) == [Ack(3, True, [(10, 20)], None)]
    assert decode(client_commands.ack(3, [(10, 20)], request_id=9)) == [Ack(3, False, [(10, 20)], 9)]


@pytest.mark.parametrize("consumer_id", [0, 127, 128, 2**40])
def test_ack_of_many(consumer_id: int) -> None:
    positions = [
        (ledger, entry) for ledger in (7, 300, 2**40) for entry in (0, 127, 128, 2**14, 2**21, 2**60)
    ]
    for count in range(1, len(positions) + 1):
        (ack,) = decode(client_commands.ack(consumer_id, positions[:count], request_id=2**40))
        assert ack == Ack(consumer_id, False, positions[:count], 2**40)


def test_ack_with_partition_and_batch_index_is_still_one_of_a_whole_entry() -> None:
    ids = [
        pb.MessageIdData(ledgerId=1, entryId=n, partition=partition, batch_index=batch_index)
        for n, (partition, batch_index) in enumerate([(None, 4), (-1, -1), (3, None), (0, 0), (None, None)])
    ]
    command = pb.BaseCommand(type=TYPE.ACK, ack=pb.CommandAck(consumer_id=1, ack_type=0, message_id=ids))
    assert decode(encoder.frame(command)) == [Ack(1, False, [(1, n) for n in range(5)])]


@pytest.mark.parametrize("command", [b"\x08\x0a\x52\x03\x08\x80\x01", b"\x08\x0b\x5a\x03\x08\x80\x01"])
@pytest.mark.parametrize("behind", [b"", b"\x10", encoder.ping()])
def test_a_command_that_ends_behind_an_id_of_two_bytes_is_refused(command: bytes, behind: bytes) -> None:
    with pytest.raises(BadFrame, match="lacks"):
        decode(frame(command) + behind)


def test_ack_of_nowhere_keeps_its_sign() -> None:
    assert decode(client_commands.ack(3, [(-1, -1)])) == [Ack(3, False, [(-1, -1)])]


@pytest.mark.parametrize(
    "fields",
    [
        {"message_id": [pb.MessageIdData(ledgerId=1, entryId=2, ack_set=[1])]},
        {"message_id": [pb.MessageIdData(ledgerId=1, entryId=2)], "validation_error": 1},
        {"message_id": [pb.MessageIdData(ledgerId=1, entryId=2)], "txnid_least_bits": 1},
        {"message_id": [pb.MessageIdData(ledgerId=1, entryId=2)], "txnid_most_bits": 1},
        {
            "message_id": [pb.MessageIdData(ledgerId=1, entryId=2)],
            "properties": [pb.KeyLongValue(key="k", value=1)],
        },
        {"message_id": []},
        {"message_id": [pb.MessageIdData(ledgerId=1, entryId=2)] * 2, "ack_type": 1},
    ],
)
def test_acks_with_more_to_them_arrive_as_protobuf(fields: dict[str, Any]) -> None:
    ack = pb.CommandAck(**{"consumer_id": 1, "ack_type": 0, **fields})
    assert decode(encoder.frame(pb.BaseCommand(type=TYPE.ACK, ack=ack))) == [ack]


@pytest.mark.parametrize("permits", [0, 1, 127, 128, 1000, 2**31, 2**32 - 1])
@pytest.mark.parametrize("consumer_id", [0, 127, 128, U64])
def test_flow(consumer_id: int, permits: int) -> None:
    assert decode(client_commands.flow(consumer_id, permits)) == [Flow(consumer_id, permits)]


def test_other_commands_arrive_as_their_own_message() -> None:
    data = client_commands.subscribe(5, 1, "topic", "sub", sub_type=pb.CommandSubscribe.Key_Shared)
    (subscribe,) = decode(data)
    assert type(subscribe) is pb.CommandSubscribe
    assert (subscribe.topic, subscribe.subType, subscribe.request_id) == ("topic", 3, 5)


def test_ping_alone_is_a_whole_chunk() -> None:
    assert decode(encoder.ping()) == [pb.CommandPing()]
    assert decode(encoder.pong() + encoder.ping()) == [pb.CommandPong(), pb.CommandPing()]


def test_a_command_of_a_later_protocol() -> None:
    (unknown,) = decode(frame(b"\x08\x45\xaa\x04\x02\x08\x01"))
    assert unknown == UnknownCommand(69)


def test_bytes_after_a_command_that_carries_none_are_ignored() -> None:
    command = pb.BaseCommand(type=TYPE.PING, ping=pb.CommandPing()).SerializeToString()
    assert decode(frame(command, b"something")) == [pb.CommandPing()]


def test_message_as_a_client_sees_it() -> None:
    command = pb.BaseCommand(
        type=TYPE.MESSAGE,
        message=pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledgerId=2, entryId=3)),
    )
    stamp = b"\x0e\x02\x00\x00\x00\x02\x08\x05"
    for body in (an_entry(), stamp + an_entry()):
        (delivery,) = decode(frame(command.SerializeToString(), body))
        assert delivery == Delivery(command.message, body, True)


# -- ids ---------------------------------------------------------------------------------------------------


def test_request_ids() -> None:
    (seek,) = decode(client_commands.seek(7, 1, position=(-1, -1)))
    assert request_id_of(seek) == 7
    assert request_id_of(pb.CommandSeek(consumer_id=1)) is None
    assert request_id_of(pb.CommandPing()) is None
    assert request_id_of(Ack(1, False, [(1, 1)], 4)) == 4
    assert request_id_of(Flow(1, 1)) is None
    assert request_id_of(UnknownCommand(99)) is None
    assert position_of(seek.message_id) == (-1, -1)


@given(st.integers(-(2**63), 2**63 - 1))
def test_signs(value: int) -> None:
    assert signed(unsigned(value)) == value
    assert 0 <= unsigned(value) <= U64


# -- the scanners against protobuf -------------------------------------------------------------------------


def varint(value: int, padding: int = 0) -> bytes:
    """As protobuf writes it, plus up to `padding` bytes that say nothing."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(min(padding, 10 - len(out))):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


numbers = st.one_of(
    st.integers(0, 200),
    st.integers(0, 2**21 + 10),
    st.integers(0, U64),
    st.sampled_from([2**31, 2**32, 2**63]),
)
mostly_none = st.sampled_from([0, 0, 0, 0, 0, 1, 3, 9])


@st.composite
def a_field(draw: st.DrawFn, field: FieldDescriptor, depth: int) -> bytes:
    """One occurrence of a field, perhaps with more bytes than its varints need."""
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        body = draw(a_message(field.message_type, depth - 1))
        return varint(field.number << 3 | 2) + varint(len(body), draw(mostly_none)) + body
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        body = draw(st.text(max_size=5)).encode()
        return varint(field.number << 3 | 2) + varint(len(body)) + body
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return varint(field.number << 3 | 1) + draw(st.binary(min_size=8, max_size=8))
    return varint(field.number << 3) + varint(draw(numbers), draw(mostly_none))


UNKNOWN = [b"\xf8\x3f\x05", b"\xfa\x3f\x02hi", b"\xfb\x3f\x08\x01\xfc\x3f", b"\xfd\x3f\x00\x00\x00\x00"]


@st.composite
def a_message(draw: st.DrawFn, descriptor: Any, depth: int = 3) -> bytes:
    """Most often what a client would send; sometimes fields missing, twice, out of order or unknown."""
    fields = list(descriptor.fields)
    chosen = [
        field
        for field in fields
        if (field.is_required and draw(st.integers(0, 19)) > 0)
        or (not field.is_required and depth > 0 and draw(st.integers(0, 3)) == 0)
    ]
    parts = []
    for field in chosen:
        count = draw(st.integers(1, 4)) if field.is_repeated else 1
        parts += [draw(a_field(field, depth)) for _ in range(count)]
    oddity = draw(st.integers(0, 9))
    if oddity == 0:
        parts.append(draw(st.sampled_from(UNKNOWN)))
    elif oddity == 1:
        parts = draw(st.permutations(parts))
    elif oddity == 2 and fields:
        parts.append(draw(a_field(draw(st.sampled_from(fields)), depth)))
    elif oddity == 3:
        return b"".join(parts) + draw(st.binary(max_size=4))
    return b"".join(parts)


@st.composite
def a_command(draw: st.DrawFn, kinds: list[int]) -> bytes:
    kind = draw(st.sampled_from(kinds))
    field = pb.BaseCommand.DESCRIPTOR.fields_by_number[kind]
    body = draw(a_message(field.message_type))
    head = b"\x08" + varint(kind, draw(mostly_none))
    return head + varint(kind << 3 | 2) + varint(len(body), draw(mostly_none)) + body


@st.composite
def a_frame(draw: st.DrawFn, kinds: list[int]) -> bytes:
    command = draw(a_command(kinds))
    rest = draw(
        st.one_of(
            st.just(b""),
            st.just(an_entry()),
            st.just(an_entry()[6:]),
            st.binary(max_size=20).map(checked),
            st.binary(max_size=20),
            st.just(b"\x0e\x02\x00\x00\x00\x01x" + an_entry()),
        )
    )
    return frame(command, rest)


HOT = [TYPE.SEND, TYPE.ACK, TYPE.FLOW]
ALL = [value.number for value in TYPE.DESCRIPTOR.values]


@fuzz
@given(a_frame(HOT))
def test_hot_commands_are_read_as_protobuf_reads_them(data: bytes) -> None:
    assert short_outcome(data) == long_outcome(data)
    # the same with another frame behind it: a scanner that looks too far would see that
    if not isinstance(long_outcome(data), str):
        assert decode(data + encoder.ping()) == [the_long_way(data), pb.CommandPing()]


@fuzz
@given(a_frame(ALL))
def test_every_command_parses_or_is_refused(data: bytes) -> None:
    assert short_outcome(data) == long_outcome(data)


@fuzz
@given(
    st.sampled_from(HOT), st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=3), st.data()
)
def test_hot_commands_with_flipped_bytes(
    kind: int, flips: list[tuple[int, int]], data: st.DataObject
) -> None:
    usual: dict[int, Callable[[], bytes]] = {
        TYPE.SEND: lambda: client_commands.send(
            data.draw(st.integers(0, 300)), data.draw(st.integers(0, 2**22)), an_entry(), num_messages=7
        ),
        TYPE.ACK: lambda: client_commands.ack(
            data.draw(st.integers(0, 300)),
            [(300, n) for n in range(data.draw(st.integers(1, 30)))],
            request_id=3,
        ),
        TYPE.FLOW: lambda: client_commands.flow(data.draw(st.integers(0, 300)), 1000),
    }
    changed = bytearray(usual[kind]())
    for at, byte in flips:
        changed[8 + at % (len(changed) - 8)] = byte
    assert short_outcome(bytes(changed)) == long_outcome(bytes(changed))


# -- streams cut anywhere ----------------------------------------------------------------------------------


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@fuzz
@given(
    st.lists(st.one_of(a_frame(HOT), a_frame(ALL), st.binary(max_size=12)), max_size=6).map(b"".join),
    st.lists(st.integers(0, 2**16), max_size=8),
)
def test_any_bytes_come_to_the_same_however_they_are_cut(data: bytes, places: list[int]) -> None:
    whole = outcome([data])
    assert outcome(data[at : at + 1] for at in range(len(data))) == whole
    assert outcome(cut(data, places)) == whole


def test_a_stream_of_good_frames_comes_whole_whatever_the_chunk_size() -> None:
    frames = [client_commands.send(1, n, an_entry(os.urandom(n * 7 % 400), n)) for n in range(40)]
    frames += [client_commands.ack(1, [(1, n)]) for n in range(40)] + [encoder.ping()] * 3
    data = b"".join(frames)
    expected = [the_long_way(one) for one in frames]
    for size in [*range(1, 40), 64, 100, 1000, len(data)]:
        assert outcome([data[at : at + size] for at in range(0, len(data), size)]) == (expected, None)


def test_good_commands_before_a_bad_frame_are_kept() -> None:
    decoder = Decoder()
    with pytest.raises(BadFrame) as caught:
        decoder.feed(client_commands.flow(1, 5) + b"\xff" * 8)
    assert caught.value.commands == [Flow(1, 5)]
    with pytest.raises(BadFrame) as again:
        decoder.feed(client_commands.flow(1, 5))
    assert again.value.commands == []


# -- malformed frames --------------------------------------------------------------------------------------

DEEP = b""
for _ in range(150):
    DEEP = b"\x08\x01\x10\x01\x3a" + varint(len(DEEP)) + DEEP

BAD_HEADERS = {
    "total 0": struct.pack(">I", 0),
    "total 3": struct.pack(">I", 3),
    "total above the largest frame": struct.pack(">I", FRAME_BYTES_MAX + 1),
    "total 2^31-1": struct.pack(">I", 2**31 - 1),
    "total 2^31": struct.pack(">I", 2**31),
    "total 2^32-1": struct.pack(">I", 2**32 - 1),
    "command longer than the frame": struct.pack(">II", 100, 97),
    "command of 2^32-1 bytes": struct.pack(">II", 100, 2**32 - 1),
}
SEND_COMMAND = b"\x08\x06\x32\x04\x08\x01\x10\x01"
BAD_FRAMES = {
    "empty command": frame(b""),
    "no type": frame(b"\x2a\x00"),
    "type without its message": frame(b"\x08\x06"),
    "type of another message": frame(b"\x08\x05\x32\x04\x08\x01\x10\x01"),
    "required field missing": frame(b"\x08\x06\x32\x02\x08\x01", an_entry()),
    "unknown number in a required enum": frame(b"\x08\x0a\x52\x04\x08\x01\x10\x07"),
    "unknown kind of ack": frame(b"\x08\x0a\x52\x0a\x08\x01\x10\x07\x1a\x04\x08\x01\x10\x01"),
    "varint of 11 bytes": frame(b"\x08\x06\x32\x0e\x08\x01\x10" + b"\x80" * 10 + b"\x01", an_entry()),
    "varint that does not end": frame(b"\x08\x0b\x5a\x04\x08\x01\x10\x80"),
    "sub-message longer than the command": frame(b"\x08\x06\x32\x7f\x08\x01\x10\x01", an_entry()),
    "text longer than the command": frame(b"\x08\x17\xba\x01\x02\x0a\x7f"),
    "text that is not UTF-8": frame(b"\x08\x17\xba\x01\x05\x0a\x01\xff\x10\x01"),
    "text list that is not UTF-8": frame(b"\x08\x21\x8a\x02\x05\x08\x01\x12\x01\xff"),
    "inner text that is not UTF-8": frame(
        pb.BaseCommand(
            type=TYPE.PRODUCER,
            producer=pb.CommandProducer(
                topic="t", producer_id=1, request_id=1, metadata=[pb.KeyValue(key="kkkk", value="v")]
            ),
        )
        .SerializeToString()
        .replace(b"kkkk", b"kk\xffk")
    ),
    "field number 0": frame(b"\x08\x12\x00\x01\x92\x01\x00"),
    "wire type 7": frame(b"\x08\x12\x0f\x92\x01\x00"),
    "end of a group that never began": frame(b"\x08\x12\x92\x01\x00\x0c"),
    "nested too deep": frame(
        b"\x08\x0a\x52" + varint(len(DEEP) + 6 + len(varint(len(DEEP)))) + b"\x08\x01\x10\x00\x1a"
        + varint(len(DEEP) + 1) + DEEP + b"\x28"
    ),
    "message without anything after the command": frame(SEND_COMMAND),
    "message of three bytes": frame(SEND_COMMAND, b"\x00\x00\x00"),
    "message that ends inside its checksum": frame(SEND_COMMAND, b"\x0e\x01\x00\x00"),
    "message with a checksum and no more": frame(SEND_COMMAND, b"\x0e\x01\x00\x00\x00\x00"),
    "a client that stamps its message": frame(SEND_COMMAND, b"\x0e\x02\x00\x00\x00\x02\x08\x01" + an_entry()),
    "a stamp longer than the frame": frame(
        b"\x08\x09\x4a\x08\x08\x01\x12\x04\x08\x01\x10\x01", b"\x0e\x02\x00\x00\x00\x7f\x08\x01"
    ),
}  # fmt: skip


@pytest.mark.parametrize("data", BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_a_bad_header_is_refused_before_anything_is_kept(data: bytes) -> None:
    decoder = Decoder()
    with pytest.raises(ProtocolError, match="bytes"):
        decoder.feed(data)
    assert decoder.partial_bytes == 0
    commands, error = outcome(data[at : at + 1] for at in range(len(data)))
    assert (commands, error) == outcome([data])
    # a whole chunk of it is refused alike, and earlier frames do not hide it
    commands, error = outcome([encoder.ping() + data + bytes(64)])
    assert commands == [pb.CommandPing()]
    assert error is not None


CUT_METADATA = {
    "metadata longer than the frame": frame(SEND_COMMAND, checked(b"\x00\x00\x00\x05abcd")),
    "metadata of 2^32-1 bytes": frame(SEND_COMMAND, checked(b"\xff\xff\xff\xffabcd")),
    "metadata longer than the frame, no checksum": frame(SEND_COMMAND, b"\x00\x00\x00\x05abcd"),
}


@pytest.mark.parametrize("data", CUT_METADATA.values(), ids=CUT_METADATA.keys())
def test_metadata_longer_than_its_message_is_marked_so_that_the_sender_can_be_told(data: bytes) -> None:
    commands, error = outcome([data])
    assert error is None
    assert [(command.sequence_id, command.checksum_ok) for command in commands] == [(1, False)]
    assert outcome(data[at : at + 1] for at in range(len(data))) == (commands, None)


@pytest.mark.parametrize("data", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_a_bad_frame_is_refused(data: bytes) -> None:
    commands, error = outcome([data])
    assert commands == []
    assert error is not None
    assert outcome(data[at : at + 1] for at in range(len(data))) == ([], error)
    assert outcome([client_commands.flow(1, 1) + data]) == ([Flow(1, 1)], error)


@pytest.mark.parametrize("value", [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**62 + 7, 2**63, U64])
def test_numbers_too_large_for_their_field_lose_the_bits_that_protobuf_drops(value: int) -> None:
    flow = b"\x08\x01\x10" + varint(value)
    flow = frame(b"\x08\x0b\x5a" + varint(len(flow)) + flow)
    assert short_outcome(flow) == the_long_way(flow) == Flow(1, value & 0xFFFFFFFF)
    send = b"\x08\x01\x10\x02\x18" + varint(value)
    send = frame(b"\x08\x06\x32" + varint(len(send)) + send, an_entry())
    assert short_outcome(send) == the_long_way(send)
    assert -(2**31) <= short_outcome(send).num_messages < 2**31


def test_a_client_may_not_stamp() -> None:
    with pytest.raises(ProtocolError, match="stamp"):
        decode(BAD_FRAMES["a client that stamps its message"])


def test_groups_and_unknown_fields_are_skipped() -> None:
    for unknown in UNKNOWN:
        body = b"\x08\x01\x10\x05" + unknown
        assert decode(frame(b"\x08\x0b\x5a" + varint(len(body)) + body)) == [Flow(1, 5)]


def test_the_last_of_a_repeated_field_counts() -> None:
    assert decode(frame(b"\x08\x0b\x5a\x06\x08\x01\x10\x05\x10\x06")) == [Flow(1, 6)]


@pytest.mark.parametrize("data", BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_a_huge_size_in_a_header_costs_no_memory(data: bytes) -> None:
    assert peak_bytes(lambda: outcome([data])) < 64 * KIB


def test_a_large_frame_that_has_only_begun_costs_no_more_than_what_has_come() -> None:
    decoder = Decoder()
    begun = struct.pack(">II", FRAME_BYTES_MAX, 100) + bytes(100)
    assert peak_bytes(lambda: decoder.feed(begun)) < 64 * KIB
    assert decoder.partial_bytes == len(begun)


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_largest_frame_is_taken_and_one_byte_more_is_not() -> None:
    head = an_entry(b"")
    overhead = len(client_commands.send(1, 1, head)) - 4
    body = client_commands.entry(
        client_commands.metadata("p", 0, 1_785_500_000_000), bytes(FRAME_BYTES_MAX - overhead)
    )
    data = client_commands.send(1, 1, body)
    assert len(data) == FRAME_BYTES_MAX + 4
    (send,) = decode(data)
    assert send.checksum_ok
    with pytest.raises(ProtocolError):
        Decoder(FRAME_BYTES_MAX - 1).feed(data)


@pytest.mark.parametrize("chunk_bytes", [512, 64 * KIB])
def test_a_large_frame_in_small_chunks_is_copied_a_few_times_only(chunk_bytes: int) -> None:
    data = client_commands.send(1, 1, an_entry(bytes(5 * MIB)))
    chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    commands: list[Any] = []

    def work() -> None:
        found, error = outcome(chunks)
        assert error is None
        commands.extend(found)

    assert peak_bytes(work) < 4 * len(data)
    assert len(commands[0].headers_and_payload) > 5 * MIB


def test_every_message_that_a_peer_may_name_has_a_class() -> None:
    for kind in ALL:
        name = pb.BaseCommand.DESCRIPTOR.fields_by_number[kind].message_type.name
        assert issubclass(getattr(pb, name), Message)


@pytest.mark.parametrize("extra", [{}, {"validation_error": pb.CommandAck.UncompressedSizeCorruption}])
def test_a_long_ack_is_cut_into_parts_of_which_the_last_has_the_request_id(extra: dict[str, Any]) -> None:
    """400,000 ids in one frame took 0.3 s to become positions, and more to acknowledge."""
    count = 5 * ACK_PART_IDS - 100
    ids = [pb.MessageIdData(ledgerId=7, entryId=n) for n in range(count)]
    ack = pb.CommandAck(
        consumer_id=3, ack_type=pb.CommandAck.Individual, message_id=ids, request_id=9, **extra
    )
    decoder = Decoder()
    [command] = decoder.feed(frame(pb.BaseCommand(type=TYPE.ACK, ack=ack).SerializeToString()))
    assert command == ack
    assert decoder.has_long_ack
    parts = list(ack_parts(ack))
    assert [type(part) for part in parts] == [pb.CommandAck if extra else Ack] * 5
    whole = [
        (part.consumer_id, part.request_id)
        for part in parts
        if isinstance(part, Ack) or part.HasField("request_id")
    ]
    assert whole == ([(3, 9)] if extra else [*[(3, None)] * 4, (3, 9)])
    named = [
        position
        for part in parts
        for position in (part.positions if isinstance(part, Ack) else map(position_of, part.message_id))
    ]
    assert named == [(7, n) for n in range(count)]
    ack.ack_type = pb.CommandAck.Cumulative
    assert list(ack_parts(ack)) == [ack], "which is ignored; a part of one id would count"
