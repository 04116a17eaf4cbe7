"""What publishing has parsed of an entry's metadata is not parsed again by a reader at the tail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trio.testing import wait_all_tasks_blocked

from geminga.broker.dispatch import reader
from geminga.broker.dispatch.consumer import EXCLUSIVE
from geminga.broker.policies.policies import EffectivePolicies
from geminga.broker.policies.values import DelayedDelivery
from geminga.wire import message_metadata
from geminga.wire.peek import Peek
from tests.broker.topics_rig import join, open_topics, publish, received

BOUNDED = EffectivePolicies(delayed_delivery=DelayedDelivery(1000, True, 3_600_000))
"""Each delayed message has to be looked at when it is published."""


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which room has parsed an entry."""
    found: list[str] = []
    peek: Callable[[bytes], Peek] = message_metadata.peek

    def counting(room: str) -> Callable[[bytes], Peek]:
        def parse(body: bytes) -> Peek:
            found.append(room)
            return peek(body)

        return parse

    monkeypatch.setattr(message_metadata, "peek", counting("topic"))
    monkeypatch.setattr(reader, "peek", counting("dispatch"))
    monkeypatch.setattr(reader, "native", None)  # in C the usual entries are parsed without it
    return found


@pytest.mark.parametrize(
    ("delay_s", "defaults", "rooms"),
    [
        (60, BOUNDED, ["topic"] * 3),
        (0, BOUNDED, ["dispatch"] * 3),
        (60, EffectivePolicies(), ["dispatch"] * 3),
    ],
    ids=["delayed and bounded", "at once", "delayed"],
)
async def test_each_entry_is_parsed_once_from_its_publisher_to_its_consumer(
    parses: list[str], delay_s: float, defaults: EffectivePolicies, rooms: list[str]
) -> None:
    async with open_topics(defaults=defaults) as rig:
        _, outbox = await join(rig, EXCLUSIVE)
        await publish(rig, 3, delay_s=delay_s)
        await wait_all_tasks_blocked()
        assert received(outbox) == 3
        assert parses == rooms
