"""Transactions over a bare connection: the official Python client has none."""

from __future__ import annotations

from types import TracebackType

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.binary_session import BinarySession, message_bytes, plain_metadata

COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
_TTL_SECONDS = 600


class Transactions:
    """A producer of one topic, whose messages belong to transactions."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        self._session = BinarySession(address)
        self._topic = topic
        self._sequence_id = 0

    def __enter__(self) -> Transactions:
        session = self._session
        session.connect()
        for topic in (COORDINATOR, self._topic):
            session.request(
                pb.CommandLookupTopic(topic=topic, request_id=session.next_request_id()),
                pb.CommandLookupTopicResponse,
            )
        connect = pb.CommandTcClientConnectRequest(request_id=session.next_request_id(), tc_id=0)
        session.request(connect, pb.CommandTcClientConnectResponse)
        session.request(
            pb.CommandProducer(
                topic=self._topic, producer_id=1, request_id=session.next_request_id(), txn_enabled=True
            ),
            pb.CommandProducerSuccess,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()

    def begin(self, payloads: list[bytes]) -> dict[str, int]:
        """A transaction with these messages; its id."""
        session = self._session
        new = pb.CommandNewTxn(request_id=session.next_request_id(), txn_ttl_seconds=_TTL_SECONDS, tc_id=0)
        begun = session.request(new, pb.CommandNewTxnResponse)
        assert not begun.HasField("error"), begun
        transaction = {"txnid_least_bits": begun.txnid_least_bits, "txnid_most_bits": begun.txnid_most_bits}
        session.request(
            pb.CommandAddPartitionToTxn(
                request_id=session.next_request_id(), partitions=[self._topic], **transaction
            ),
            pb.CommandAddPartitionToTxnResponse,
        )
        for payload in payloads:
            metadata = plain_metadata(self._sequence_id)
            metadata.MergeFrom(pb.MessageMetadata(**transaction))
            send = pb.CommandSend(producer_id=1, sequence_id=self._sequence_id, num_messages=1, **transaction)
            session.send(send, message_bytes(metadata, payload))
            session.expect(pb.CommandSendReceipt)
            self._sequence_id += 1
        return transaction

    def end(self, transaction: dict[str, int], *, commits: bool) -> None:
        action = pb.TxnAction.COMMIT if commits else pb.TxnAction.ABORT
        end = pb.CommandEndTxn(request_id=self._session.next_request_id(), txn_action=action, **transaction)
        ended = self._session.request(end, pb.CommandEndTxnResponse)
        assert not ended.HasField("error"), ended
