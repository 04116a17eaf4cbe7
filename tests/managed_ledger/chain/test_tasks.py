"""Tasks that end together in somebody else's nursery."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from geminga.managed_ledger.chain.tasks import TaskGroup


async def test_tasks_end_together_and_leave_the_nursery_and_other_groups_alone(nursery):
    ended: list[str] = []

    async def sleep(name: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(name)

    ours, others = TaskGroup(nursery), TaskGroup(nursery)
    ours.start_soon(sleep, "a")
    ours.start_soon(sleep, "b")
    others.start_soon(sleep, "c")
    await trio.testing.wait_all_tasks_blocked()
    ours.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(ended) == ["a", "b"]
    assert not nursery.cancel_scope.cancel_called


async def test_a_task_that_had_not_begun_when_its_group_was_cancelled_gets_no_further_than_its_first_wait(
    nursery,
):
    passed: list[str] = []

    async def work() -> None:
        await trio.lowlevel.checkpoint()
        passed.append("waited")

    group = TaskGroup(nursery)
    group.start_soon(work)
    group.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert passed == []


async def test_after_cancel_nothing_starts_even_if_the_nursery_is_gone():
    async with trio.open_nursery() as nursery:
        group = TaskGroup(nursery)
    group.cancel()
    group.start_soon(trio.sleep_forever)


async def test_what_breaks_a_task_breaks_the_nursery():
    async def fail() -> None:
        raise KeyError("ours")

    with pytest.RaisesGroup(KeyError):
        async with trio.open_nursery() as nursery:
            TaskGroup(nursery).start_soon(fail)
