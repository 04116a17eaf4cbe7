"""Eviction of what is due while the index has no room for all that is not."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.policies.values import BacklogQuota
from tests.broker.delays.test_full_index import FROZEN_MAX, Disk
from tests.broker.dispatch_rig import on_loop
from tests.broker.subscription.test_due_policies import EVICTS, opened
from tests.broker.topics_rig import publish, subscription_of


async def test_what_a_full_index_does_not_hold_is_not_evicted_before_its_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", on_loop)
    Disk(monkeypatch)
    quota = BacklogQuota(limit_size=20_000, policy=EVICTS)
    async with opened("buckets", quota_size=quota, quota_from_due_time=True) as rig:
        subscription = await subscription_of(rig)
        waiting = 2 * FROZEN_MAX
        await publish(rig, waiting, delay_s=600)
        await publish(rig, 300)
        await trio.sleep(60)
        assert len(subscription.delayed) < waiting, "the others had no room"
        assert waiting <= subscription.backlog() < waiting + 150
        await trio.sleep(500)
        assert subscription.backlog() >= waiting, "all of them are still to come"
