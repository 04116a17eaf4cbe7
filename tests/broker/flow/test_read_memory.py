"""Reads for consumers take turns within their memory; one is always allowed."""

from __future__ import annotations

import trio

from geminga.broker.flow.read_memory import ReadMemory


async def test_reads_begin_in_the_order_of_their_coming_as_room_is_given_back() -> None:
    memory = ReadMemory(100)
    assert memory.try_take(60)
    begun: list[str] = []

    async def read(name: str, size_bytes: int) -> None:
        await memory.take(size_bytes)
        begun.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, "large", 80)
        await trio.testing.wait_all_tasks_blocked()
        assert not memory.try_take(10), "it would fit, but another read came first"
        nursery.start_soon(read, "small", 20)
        await trio.testing.wait_all_tasks_blocked()
        assert begun == []
        memory.give(60)
        await trio.testing.wait_all_tasks_blocked()
        assert begun == ["large", "small"]
    assert memory.used_bytes == 100
    assert memory.waits == 2


async def test_a_read_that_is_larger_than_the_memory_is_allowed_alone() -> None:
    memory = ReadMemory(100)
    assert memory.try_take(5000)
    assert not memory.try_take(1)
    memory.give(5000)
    assert memory.try_take(1)


async def test_a_read_that_is_cancelled_while_it_waits_leaves_nothing_behind() -> None:
    memory = ReadMemory(100)
    assert memory.try_take(100)
    with trio.move_on_after(0) as waiting:
        await memory.take(50)
    assert waiting.cancelled_caught
    assert memory.used_bytes == 100
    memory.give(100)
    assert memory.try_take(100)
