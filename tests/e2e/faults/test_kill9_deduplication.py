"""`kill -9` while producers publish with deduplication: who sends again all that has no receipt makes no
duplicate and loses nothing.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb
from tests.e2e.binary_session import BinarySession, ConnectionEnded, plain_metadata
from tests.e2e.broker_process import BrokerProcess

pytestmark = pytest.mark.geminga_only
TOPIC = "persistent://public/default/t"
KILLS = 25 if os.environ.get("GEMINGA_LONG") else 3
IN_FLIGHT = 200
PRODUCERS = 3


class Resender(threading.Thread):
    """One producer with a raw connection: it keeps what has no receipt and sends it again, in order."""

    def __init__(self, broker: BrokerProcess, name: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.producer_name = name
        self.unconfirmed: list[tuple[int, int]] = []
        """(first, last) sequence id of each batch."""
        self.confirmed: list[tuple[int, int]] = []
        """The last few that have a receipt: sent again too, as if it had not come."""
        self.next_id = 0
        self.duplicates = 0
        self.receipts = 0
        self.is_over = threading.Event()
        self.failure: BaseException | None = None
        self._broker = broker
        self._random = random.Random(seed)

    def run(self) -> None:
        try:
            while not (self.is_over.is_set() and not self.unconfirmed):
                try:
                    with BinarySession(self._broker.endpoints.binary_address) as connection:
                        self._publish(connection)
                except (ConnectionEnded, OSError, TimeoutError):
                    self.is_over.wait(0.02)
        except BaseException as failure:
            self.failure = failure
            raise

    def _publish(self, connection: BinarySession) -> None:
        connection.connect()
        connection.send(
            pb.CommandProducer(
                topic=TOPIC,
                producer_id=1,
                request_id=1,
                producer_name=self.producer_name,
                user_provided_producer_name=True,
            )
        )
        answer = connection.receive().command
        if not isinstance(answer, pb.CommandProducerSuccess):
            raise TimeoutError(answer)  # the old connection is not gone yet, or the topic is loading
        assert answer.last_sequence_id < self.next_id
        self.unconfirmed = self.confirmed + self.unconfirmed
        known, self.confirmed = len(self.confirmed), []
        for first, last in self.unconfirmed:
            self._send(connection, first, last)
        while self.unconfirmed or not self.is_over.is_set():
            while len(self.unconfirmed) < IN_FLIGHT and not self.is_over.is_set():
                last = self.next_id + self._random.choice((0, 0, 3))
                self.unconfirmed.append((self.next_id, last))
                self._send(connection, self.next_id, last)
                self.next_id = last + 1
            receipt = connection.expect(pb.CommandSendReceipt)
            assert receipt.sequence_id == self.unconfirmed[0][0]
            is_duplicate = receipt.message_id.entryId == 2**64 - 1
            assert is_duplicate or not known
            self.duplicates += is_duplicate
            self.receipts += not known
            known = max(0, known - 1)
            self.confirmed = [*self.confirmed[-9:], self.unconfirmed.pop(0)]

    def _send(self, connection: BinarySession, first: int, last: int) -> None:
        metadata = plain_metadata(first, self.producer_name)
        command = pb.CommandSend(producer_id=1, sequence_id=first, num_messages=last - first + 1)
        payload = b"%d" % first
        if last > first:
            metadata.num_messages_in_batch = command.num_messages
            metadata.highest_sequence_id = command.highest_sequence_id = last
            single = pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
            payload = (len(single).to_bytes(4, "big") + single + payload) * command.num_messages
        connection.send(command, client_commands.entry(metadata, payload))


def stored_ids(broker: BrokerProcess, entries: int) -> dict[str, list[int]]:
    """Sequence ids of all messages of the topic, by producer, in the order of the log."""
    found: dict[str, list[int]] = {}
    with BinarySession(broker.endpoints.binary_address) as connection:
        connection.connect()
        connection.subscribe(TOPIC, "reader", initialPosition=pb.CommandSubscribe.Earliest)
        connection.send(pb.CommandFlow(consumer_id=1, messagePermits=1_000_000))
        seen = 0
        while seen < entries:
            received = connection.receive()
            if isinstance(received.command, pb.CommandMessage):
                size = int.from_bytes(received.rest[6:10], "big")
                metadata = pb.MessageMetadata.FromString(received.rest[10 : 10 + size])
                last = max(metadata.sequence_id, metadata.highest_sequence_id)
                found.setdefault(metadata.producer_name, []).extend(range(metadata.sequence_id, last + 1))
                seen += 1
    return found


def test_nothing_twice_and_nothing_lost(tmp_path: Path) -> None:
    settings = {
        "brokerDeduplicationEnabled": "true",
        "brokerDeduplicationEntriesInterval": "150",
        "managedLedgerMaxEntriesPerLedger": "700",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        producers = [Resender(broker, f"p{number}", number) for number in range(PRODUCERS)]
        with BinarySession(broker.endpoints.binary_address) as connection:
            connection.connect()
            connection.subscribe(TOPIC, "keeper")
        for producer in producers:
            producer.start()
        pause = threading.Event()
        chance = random.Random(1)
        for _ in range(KILLS):
            goal = [producer.receipts + chance.randrange(50, 600) for producer in producers]
            while any(
                p.receipts < least and p.failure is None for p, least in zip(producers, goal, strict=True)
            ):
                pause.wait(0.01)
            broker.kill()
            broker.start()
        for producer in producers:
            producer.is_over.set()
        for producer in producers:
            producer.join(30)
            assert not producer.is_alive()
            assert producer.failure is None
        entries = sum(producer.receipts for producer in producers)
        found = stored_ids(broker, entries)
        for producer in producers:
            assert found[producer.producer_name] == list(range(producer.next_id))
    assert sum(producer.duplicates for producer in producers) >= KILLS
