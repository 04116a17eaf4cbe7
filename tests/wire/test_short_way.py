"""The usual SEND, ACK and FLOW are read without protobuf; what they say is held in test_decoder.py."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from geminga.wire import client_commands
from geminga.wire import decoder as decoder_module
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import singly
from geminga.wire.decoder import Decoder

TYPE = pb.BaseCommand.Type
ENTRY = client_commands.entry(client_commands.metadata("p", 0, 1_785_500_000_000), b"hello")

PRODUCER_IDS = {"one byte": 127, "two bytes": 16_383}
SEQUENCE_IDS = {"one byte": 127, "two bytes": 16_383, "three bytes": 2**21 - 1, "nine bytes": 2**63 - 1}
BATCHES: dict[str, dict[str, int]] = {
    "neither": {},
    "number": {"num_messages": 1},
    "large number": {"num_messages": 2**31 - 1},
    "number and highest id": {"num_messages": 100, "highest_sequence_id": 2**40},
    "highest id": {"highest_sequence_id": 0},
}


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the commands that protobuf has read."""
    found: list[str] = []
    parse = decoder_module.parse_command

    def noting(*arguments: Any) -> Any:
        command = parse(*arguments)
        found.append(type(command).__name__)
        return command

    monkeypatch.setattr(decoder_module, "parse_command", noting)
    return found


def framed(command: pb.BaseCommand, rest: bytes = b"") -> bytes:
    data = command.SerializeToString()
    return struct.pack(">II", 4 + len(data) + len(rest), len(data)) + data + rest


def send(producer_id: int = 1, sequence_id: int = 2, **fields: Any) -> bytes:
    fields |= {"producer_id": producer_id, "sequence_id": sequence_id}
    return framed(pb.BaseCommand(type=TYPE.SEND, send=pb.CommandSend(**fields)), ENTRY)


def ack(*ids: dict[str, int], consumer_id: int = 1, cumulative: bool = False, **fields: Any) -> bytes:
    fields |= {"ack_type": pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual}
    fields |= {"message_id": [pb.MessageIdData(**one) for one in ids]}
    return framed(pb.BaseCommand(type=TYPE.ACK, ack=pb.CommandAck(consumer_id=consumer_id, **fields)))


def flow(consumer_id: int, permits: int) -> bytes:
    fields = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
    return framed(pb.BaseCommand(type=TYPE.FLOW, flow=fields))


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("sequence_id", SEQUENCE_IDS.values(), ids=SEQUENCE_IDS)
@pytest.mark.parametrize("producer_id", PRODUCER_IDS.values(), ids=PRODUCER_IDS)
def test_sends_of_clients_take_the_short_way(
    long_way: list[str], producer_id: int, sequence_id: int, batch: dict[str, int]
) -> None:
    """Java's client names the highest id of a batch, the others only how many messages it has."""
    (command,) = singly(Decoder().feed(send(producer_id, sequence_id, **batch)))
    assert (command.producer_id, command.sequence_id) == (producer_id, sequence_id)
    assert command.num_messages == batch.get("num_messages", 1)
    assert command.highest_sequence_id == batch.get("highest_sequence_id", 0)
    assert long_way == []


ONE = {"ledgerId": 2**33, "entryId": 5}
ACKS = {
    "one": ack(ONE),
    "entry id of two bytes": ack(ONE | {"entryId": 16_383}),
    "entry id of three bytes": ack(ONE | {"entryId": 2**21 - 1}),
    "entry id of nine bytes": ack(ONE | {"entryId": 2**63 - 1}),
    "cumulative": ack(ONE, cumulative=True),
    "of a partition": ack(ONE | {"partition": 7}),
    "of no partition": ack(ONE | {"partition": -1, "batch_index": -1}),
    "with a receipt": ack(ONE, request_id=2**40),
    "of a consumer with two bytes": ack(ONE, consumer_id=128),
    "of a consumer with two full bytes": ack(ONE, consumer_id=16_383, request_id=1),
    "several": ack(*({"ledgerId": 9, "entryId": n} for n in range(8))),
    "several ledgers": ack(*({"ledgerId": n, "entryId": n} for n in range(8))),
    "long": ack(*({"ledgerId": 9, "entryId": 1000 + n} for n in range(300)), consumer_id=2**40),
    "long, with a receipt": ack(*({"ledgerId": 9, "entryId": n} for n in range(40)), request_id=3),
}


@pytest.mark.parametrize("data", ACKS.values(), ids=ACKS)
def test_acks_of_clients_take_the_short_way(long_way: list[str], data: bytes) -> None:
    assert len(Decoder().feed(data)) == 1
    assert long_way == []


@pytest.mark.parametrize("consumer_id", [127, 128, 16_383])
@pytest.mark.parametrize("permits", [1, 127, 1000, 2**32 - 1])
def test_flows_of_clients_take_the_short_way(long_way: list[str], permits: int, consumer_id: int) -> None:
    (command,) = Decoder().feed(flow(consumer_id, permits))
    assert command.consumer_id == consumer_id
    assert command.permits == permits
    assert long_way == []


@pytest.mark.parametrize(
    "data",
    [
        send(is_chunk=True),
        send(txnid_least_bits=1, txnid_most_bits=2),
        send(num_messages=2, marker=True),
        ack(ONE | {"ack_set": [1]}),
        ack(ONE, txnid_least_bits=1, txnid_most_bits=2),
    ],
    ids=["chunk", "transaction", "marker", "part of a batch", "acknowledgement in a transaction"],
)
def test_others_take_the_long_way(long_way: list[str], data: bytes) -> None:
    assert len(Decoder().feed(data)) == 1
    assert len(long_way) == 1
