"""Waiting for what a broker does, without sleeping for it to settle."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pulsar

T = TypeVar("T")
POLL_SECONDS = 0.02
RECEIVE_MS = 10_000
"""How long a test waits for a message that must come."""
QUIET_MS = 200
"""How long a test listens to believe that a message does not come."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def eventually(condition: Callable[[], T], timeout_s: float = 60.0, *, what: str = "") -> T:
    """Poll `condition` until it returns something true; return that. A failed assertion in it is false."""
    deadline_s = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        failure: AssertionError | None = None
        try:
            if value := condition():
                return value
        except AssertionError as error:
            failure = error
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}") from failure
        pause.wait(POLL_SECONDS)


def receive(consumer: pulsar.Consumer, timeout_ms: int = RECEIVE_MS) -> pulsar.Message:
    try:
        return consumer.receive(timeout_ms)
    except pulsar.Timeout:
        raise AssertionError(f"no message within {timeout_ms} ms") from None


def receive_count(
    consumer: pulsar.Consumer, count: int, *, acknowledge: bool = True, timeout_ms: int = RECEIVE_MS
) -> list[pulsar.Message]:
    """Receive exactly `count` messages, acknowledging each unless told otherwise."""
    messages = []
    for index in range(count):
        try:
            message = consumer.receive(timeout_ms)
        except pulsar.Timeout:
            got = [message.data()[:40] for message in messages]
            raise AssertionError(f"{index} of {count} messages within {timeout_ms} ms: {got[-10:]}") from None
        messages.append(message)
        if acknowledge:
            consumer.acknowledge(message)
    return messages


def receive_available(
    consumer: pulsar.Consumer, *, acknowledge: bool = True, quiet_ms: int = QUIET_MS
) -> list[pulsar.Message]:
    """Receive until nothing came for `quiet_ms`."""
    messages = []
    while True:
        try:
            message = consumer.receive(quiet_ms)
        except pulsar.Timeout:
            return messages
        messages.append(message)
        if acknowledge:
            consumer.acknowledge(message)


def receive_shares(
    consumers: Sequence[pulsar.Consumer], total: int, *, acknowledge: bool = True, timeout_s: float = 10.0
) -> list[list[pulsar.Message]]:
    """Receive `total` messages, whichever consumers they go to: what each of them got, in order."""
    shares: list[list[pulsar.Message]] = [[] for _ in consumers]

    def has_all() -> bool:
        for consumer, share in zip(consumers, shares, strict=True):
            with contextlib.suppress(pulsar.Timeout):
                while True:
                    message = consumer.receive(10)
                    share.append(message)
                    if acknowledge:
                        consumer.acknowledge(message)
        return sum(map(len, shares)) >= total

    eventually(has_all, timeout_s, what=f"{total} messages, got {[len(share) for share in shares]}")
    assert sum(map(len, shares)) == total
    return shares


def assert_quiet(consumer: pulsar.Consumer, quiet_ms: int = QUIET_MS) -> None:
    """Nothing arrives for `quiet_ms`."""
    try:
        message = consumer.receive(quiet_ms)
    except pulsar.Timeout:
        return
    raise AssertionError(f"unexpected message {message.data()[:80]!r} at {message.message_id()}")


def payloads(messages: list[pulsar.Message]) -> list[bytes]:
    return [message.data() for message in messages]


def place(message_id: pulsar.MessageId) -> tuple[int, int, int]:
    """(ledger, entry, batch index) of a message id: what must grow along a topic."""
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
