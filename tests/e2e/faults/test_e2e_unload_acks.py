"""An orderly unload keeps every acknowledgement that the broker had taken, also if the broker is killed right
after it; and so does an orderly stop.

What comes again around unloads was acknowledged at a client whose connection had no consumer any more. The
C++ client collects acknowledgements for 100 ms, and drops those that are unsent when its consumer is closed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.binary_session import BinarySession, frame, message_bytes, plain_metadata
from tests.e2e.broker_process import BrokerProcess

TOPIC = "persistent://public/default/unloaded"
SETTINGS = {
    "delayedDeliveryMinIndexCountPerBucket": "20",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
}
COUNT = 120
Position = tuple[int, int]


def connect(broker: BrokerProcess) -> BinarySession:
    session = BinarySession(broker.endpoints.binary_address)
    session.connect()
    return session


def publish(broker: BrokerProcess) -> None:
    """By turns without a delay, due in a moment by way of the index and its buckets, and batches of two."""
    with connect(broker) as session:
        session.create_producer(TOPIC)
        frames = []
        for number in range(COUNT):
            metadata = plain_metadata(number)
            metadata.partition_key = str(number)
            payload = b"%d" % number
            if number % 3 == 1:
                metadata.deliver_at_time = metadata.publish_time + 300
            if number % 3 == 2:
                metadata.num_messages_in_batch = 2
                single = pb.SingleMessageMetadata(payload_size=1, partition_key=str(number))
                head = single.SerializeToString()
                payload = 2 * (len(head).to_bytes(4, "big") + head + b"x")
            command = pb.CommandSend(
                producer_id=1, sequence_id=number, num_messages=metadata.num_messages_in_batch
            )
            frames.append(frame(command, message_bytes(metadata, payload)))
        session.send_bytes(b"".join(frames))
        for _ in range(COUNT):
            session.expect(pb.CommandSendReceipt)


def subscribe(session: BinarySession, kind: int) -> None:
    session.subscribe(TOPIC, kind=kind, initialPosition=pb.CommandSubscribe.Earliest)
    session.send(pb.CommandFlow(consumer_id=1, messagePermits=1000))


def receive(session: BinarySession, count: int) -> dict[Position, list[int]]:
    """So many entries, each once; with the bits of those messages that are still wanted, if not all are."""
    found: dict[Position, list[int]] = {}
    for _ in range(count):
        message = session.expect(pb.CommandMessage)
        position = message.message_id.ledgerId, message.message_id.entryId
        assert position not in found
        found[position] = list(message.ack_set)
    return found


@pytest.mark.parametrize("end", ["unload", "unload, then kill", "stop"])
@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared])
def test_an_orderly_end_keeps_the_acknowledgements_that_the_broker_has_taken(
    tmp_path: Path, kind: int, end: str
) -> None:
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker:
        publish(broker)
        with connect(broker) as session:
            subscribe(session, kind)
            places = sorted(receive(session, COUNT))
            admin = Admin(broker.endpoints.web_url)
            # The first request imports what answers it, which takes longer than the cursor's write waits.
            assert admin.get(f"/admin/v2/{topic_path(TOPIC)}/stats").status == 200
            whole, half = places[::2], [place for place in places[1::2] if place[1] % 3 == 2]
            ids = [pb.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in whole]
            # Of a batch of two the first message: the second one's bit stays.
            ids += [pb.MessageIdData(ledgerId=ledger, entryId=entry, ack_set=[2]) for ledger, entry in half]
            session.send(
                pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids, request_id=7)
            )
            assert not session.expect(pb.CommandAckResponse).HasField("error")
            # At once, so that no write of the cursor by the clock comes in between: four a second at most.
            if end == "stop":
                assert broker.stop() == 0
                broker.start()
            else:
                assert admin.put(f"/admin/v2/{topic_path(TOPIC)}/unload").status == 204
            if end == "unload, then kill":
                broker.kill()
                broker.start()
        with connect(broker) as session:
            subscribe(session, kind)
            expected = {place: [2] if place in half else [] for place in places if place not in whole}
            assert receive(session, len(expected)) == expected
