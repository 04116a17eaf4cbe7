"""A client that sends as many commands as it can leaves the others their turns."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.binary_session import BinarySession, frame, message_bytes, plain_metadata
from tests.e2e.broker_process import Endpoints

pytestmark = pytest.mark.geminga_only
LOOKUP = frame(pb.CommandLookupTopic(topic="persistent://public/default/t", request_id=1))
ROUND_TRIPS = 5


class Flood:
    """Lookups without end, and how many bytes of answers have come."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.answer_bytes = 0
        self.began = threading.Event()
        self._socket = socket.create_connection(address)
        self._socket.sendall(frame(pb.CommandConnect(client_version="flood", protocol_version=20)))
        self._socket.recv(4096)
        self._threads = [threading.Thread(target=work) for work in (self._send, self._receive)]

    def _send(self) -> None:
        burst = LOOKUP * 1000
        try:
            while True:
                self._socket.sendall(burst)
        except OSError:
            return  # the test is over

    def _receive(self) -> None:
        try:
            while data := self._socket.recv(1 << 20):
                self.answer_bytes += len(data)
                self.began.set()
        except OSError:
            return  # the test is over, and the broker had more to send

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            self.began.wait()
            yield
        finally:
            self._socket.shutdown(socket.SHUT_RDWR)
            for thread in self._threads:
                thread.join()
            self._socket.close()


def test_a_flood_of_lookups_gets_a_few_turns_in_anothers_round_trip(broker: Endpoints, topic: str) -> None:
    """Counted in commands, not in time: each of the flooder's turns is some hundred of them."""
    with BinarySession(broker.binary_address) as other:
        other.connect()
        other.send(pb.CommandLookupTopic(topic="persistent://public/default/t", request_id=1))
        answer_bytes = len(frame(other.expect(pb.CommandLookupTopicResponse)))
        other.create_producer(topic)
        flood = Flood(broker.binary_address)
        meanwhile = []
        with flood.running():
            for sequence_id in range(ROUND_TRIPS):
                before_bytes = flood.answer_bytes
                send = pb.CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=1)
                other.send(send, message_bytes(plain_metadata(sequence_id), b"x"))
                assert other.expect(pb.CommandSendReceipt).sequence_id == sequence_id
                meanwhile.append((flood.answer_bytes - before_bytes) // answer_bytes)
        assert min(meanwhile) < 5000
