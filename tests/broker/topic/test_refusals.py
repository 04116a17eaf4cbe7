"""SEND_ERRORs of refused entries and receipts of stored ones leave in the order of their SENDs."""

from __future__ import annotations

from typing import Any

from geminga.broker.topic.producer import REFUSALS_HELD_MAX, Producer
from geminga.errors import ChecksumMismatch, NotAllowed, StorageError
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Send
from tests.broker.dispatch_rig import FakeOutbox
from tests.broker.topics_rig import send


class World:
    def __init__(self) -> None:
        self.outbox = FakeOutbox()
        outbox: Any = self.outbox
        self.producer = Producer(1, "p", outbox, message_bytes_max=2**22)

    def accept(self, *sequence_ids: int) -> None:
        for sequence_id in sequence_ids:
            assert self.producer.take(send(sequence_id)) is None

    def refuse(self, *sequence_ids: int) -> None:
        for sequence_id in sequence_ids:
            self.producer.refuse(sequence_id, NotAllowed("no"))

    def confirm(self, *sequence_ids: int) -> None:
        self.producer.confirm(list(sequence_ids), [0] * len(sequence_ids), 7, 0)

    def answers(self) -> list[str]:
        """`3`: the receipt of message 3; `-3`: its error."""
        errors = (pb.CommandSendError,)
        return [
            f"{'-' if isinstance(command, errors) else ''}{command.sequence_id}"
            for command in self.outbox.commands
        ]


def test_refusals_wait_for_the_receipts_before_them() -> None:
    world = World()
    world.accept(0, 1)
    world.refuse(2, 3)
    world.accept(4)
    world.refuse(5)
    world.accept(6)
    assert world.answers() == []
    world.confirm(0)
    assert world.answers() == ["0"]
    world.refuse(7)
    world.confirm(1, 4)
    assert world.answers() == ["0", "1", "-2", "-3", "4", "-5"]
    world.confirm(6)
    world.refuse(8)
    assert world.answers() == ["0", "1", "-2", "-3", "4", "-5", "6", "-7", "-8"]


def test_the_order_begins_anew_when_nothing_waits() -> None:
    world = World()
    for first in (0, 10):
        world.accept(first, first + 1)
        world.refuse(first + 2)
        world.accept(first + 3)
        world.confirm(first, first + 1, first + 3)
    assert world.answers() == ["0", "1", "-2", "3", "10", "11", "-12", "13"]


def test_an_entry_that_fails_counts_as_answered() -> None:
    world = World()
    world.accept(0)
    world.refuse(1)
    world.accept(2)
    world.producer.fail(0, StorageError("gone"))
    assert world.answers() == ["-0", "-1"]
    world.confirm(2)
    assert world.answers() == ["-0", "-1", "2"]


def test_a_duplicate_is_no_answer_to_an_earlier_entry() -> None:
    world = World()
    world.accept(5)
    world.refuse(6)
    world.accept(1)
    world.producer.confirm_duplicate(send(1))
    assert world.answers() == ["1"]
    world.confirm(5)
    assert world.answers() == ["1", "5", "-6"]
    assert world.producer.pending == 0


def test_nothing_follows_for_a_producer_that_was_given_up() -> None:
    world = World()
    world.accept(0, 1)
    world.refuse(2)
    world.producer.give_up(0, StorageError("too late"))
    world.confirm(0, 1)
    assert world.answers() == ["-0"]


def test_an_error_upon_which_clients_reconnect_does_not_wait() -> None:
    world = World()
    world.accept(0)
    world.producer.refuse(1, ChecksumMismatch("damaged"))
    assert world.answers() == ["-1"]


def test_the_refusals_that_wait_are_bounded() -> None:
    world = World()
    world.accept(0)
    world.refuse(*range(1, REFUSALS_HELD_MAX + 2))
    assert world.answers() == [f"-{REFUSALS_HELD_MAX + 1}"]
    world.confirm(0)
    assert world.answers()[1:] == ["0", *(f"-{i}" for i in range(1, REFUSALS_HELD_MAX + 1))]


def test_an_entry_of_a_transaction_is_not_taken() -> None:
    world = World()
    error = world.producer.take(Send(1, 0, 1, 0, send(0).headers_and_payload, True, txnid=(0, 5)))
    assert isinstance(error, NotAllowed)
    assert (world.producer.pending, world.producer.messages_in) == (0, 0)
