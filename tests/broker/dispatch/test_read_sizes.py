"""Reads for consumers bring no more than their outboxes take, and wait for room in the memory of reads."""

from __future__ import annotations

from typing import Any

import pytest

from geminga.broker.dispatch.consumer import EXCLUSIVE, KEY_SHARED, SHARED
from geminga.errors import CorruptData
from tests.broker.dispatch_rig import OpenRig, Rig, message

BODY = bytes(1000)
TYPES = pytest.mark.parametrize("sub_type", [EXCLUSIVE, SHARED, KEY_SHARED])


def note_reads(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nothing is in memory; the entries that each read from the bookie brings."""
    brought: list[int] = []
    read, read_positions = rig.ledger.read, rig.ledger.read_positions

    async def noted(*arguments: Any, **named: Any) -> Any:
        entries = await read(*arguments, **named)
        brought.append(len(entries))
        return entries

    async def noted_positions(*arguments: Any, **named: Any) -> Any:
        entries = await read_positions(*arguments, **named)
        brought.append(len(entries))
        return entries

    monkeypatch.setattr(rig.ledger, "read_cached", lambda *_: [])
    monkeypatch.setattr(rig.ledger, "read", noted)
    monkeypatch.setattr(rig.ledger, "read_positions", noted_positions)
    return brought


@TYPES
async def test_a_read_brings_no_more_than_the_outbox_takes(
    dispatch_rig: OpenRig, monkeypatch: pytest.MonkeyPatch, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        await rig.publish(*(message(BODY, sequence_id=n) for n in range(20)))
        subscription = await rig.subscription()
        brought = note_reads(rig, monkeypatch)
        client = rig.join(subscription, sub_type, permits=0)
        client.outbox.room = 4500
        client.flow(20)
        await rig.settle()
        assert len(client.payloads) == 20
        assert brought == [4] * 5


async def test_what_is_sent_again_is_read_as_the_outbox_takes_it(
    dispatch_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        await rig.publish(*(message(BODY, sequence_id=n) for n in range(20)))
        subscription = await rig.subscription()
        first = rig.join(subscription, SHARED, permits=20)
        second = rig.join(subscription, SHARED, permits=0)
        await rig.settle()
        brought = note_reads(rig, monkeypatch)
        second.outbox.room = 4500
        first.leave()
        second.flow(20)
        await rig.settle()
        assert len(second.payloads) == 20
        assert max(brought) == 5, "up to the entry with which the room is used up"


@TYPES
async def test_a_read_waits_for_room_and_is_not_done_for_an_outbox_that_filled_meanwhile(
    dispatch_rig: OpenRig, monkeypatch: pytest.MonkeyPatch, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        await rig.publish(*(message(BODY, sequence_id=n) for n in range(20)))
        subscription = await rig.subscription()
        brought = note_reads(rig, monkeypatch)
        all_of_it = rig.reads.bytes_max
        assert rig.reads.try_take(all_of_it)
        client = rig.join(subscription, sub_type, permits=20)
        await rig.settle()
        assert brought == []
        client.outbox.writable = False
        rig.reads.give(all_of_it)
        await rig.settle()
        assert brought == []
        assert rig.reads.used_bytes == 0
        client.outbox.has_room_again()
        await rig.settle()
        assert len(client.payloads) == 20
        assert rig.reads.used_bytes == 0


async def test_a_read_that_fails_gives_its_room_back(
    dispatch_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> Any:
        assert rig.reads.used_bytes > 0
        raise CorruptData("no")

    async with dispatch_rig() as rig:
        await rig.publish(message(BODY))
        subscription = await rig.subscription()
        monkeypatch.setattr(rig.ledger, "read_cached", lambda *_: [])
        monkeypatch.setattr(rig.ledger, "read", fails)
        rig.join(subscription, EXCLUSIVE, permits=1)
        await rig.settle()
        assert rig.reads.used_bytes == 0
