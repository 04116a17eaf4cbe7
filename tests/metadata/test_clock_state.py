"""Where a virtual clock stands is durable before it gets there."""

from __future__ import annotations

import json
import time

import pytest
import trio

from geminga.metadata.node import MUST_NOT_EXIST
from geminga.metadata.store import MetadataStore
from geminga.metadata.virtual_clock_state import restored_clock, save_clock, save_jump
from simulation.disk.sim_key_value import SimKeyValue

DAY_MS = 86_400_000
WALL_MS = 1_800_000_000_000


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    shown = [WALL_MS]
    monkeypatch.setattr(time, "time_ns", lambda: shown[0] * 1_000_000)
    return shown


@pytest.fixture
async def store(nursery: trio.Nursery) -> MetadataStore:
    made = MetadataStore(SimKeyValue(), threaded=False)
    await nursery.start(made.run)
    return made


async def test_after_a_move_it_goes_on_from_where_it_stands(store: MetadataStore, wall: list[int]) -> None:
    clock = await restored_clock(store)
    assert clock.now_ms() == WALL_MS
    with clock.held():
        await save_jump(store, clock, WALL_MS + 30 * DAY_MS)
        assert clock.now_ms() == WALL_MS, "saving does not move it"
        clock.move_to(WALL_MS + 30 * DAY_MS)
        wall[0] += 3_600_000
        clock.let_go(await save_clock(store, clock))
    wall[0] += DAY_MS
    assert clock.now_ms() == WALL_MS + 31 * DAY_MS
    again = await restored_clock(store)
    assert again.now_ms() == WALL_MS + 31 * DAY_MS, "the hour that the move took is not counted"
    wall[0] = WALL_MS - DAY_MS
    assert (await restored_clock(store)).now_ms() == WALL_MS + 30 * DAY_MS, "the machine's clock was set back"


async def test_after_a_kill_within_a_move_it_starts_at_the_target(
    store: MetadataStore, wall: list[int]
) -> None:
    clock = await restored_clock(store)
    await save_jump(store, clock, WALL_MS + 30 * DAY_MS)
    wall[0] += DAY_MS
    assert (await restored_clock(store)).now_ms() == WALL_MS + 30 * DAY_MS, "however long it was down"
    wall[0] += 7
    assert (await restored_clock(store)).now_ms() == WALL_MS + 30 * DAY_MS + 7, (
        "once, and it ticks from there"
    )


async def test_a_record_without_the_field_goes_on_from_the_end_of_its_move(
    store: MetadataStore, wall: list[int]
) -> None:
    """Versions that did not know it wrote the state of the end when a move began."""
    record = {"record": "clock", "offset_ms": DAY_MS, "reached_ms": WALL_MS + DAY_MS, "format": 1}
    await store.put("/clock", json.dumps(record).encode(), MUST_NOT_EXIST)
    wall[0] += 5
    clock = await restored_clock(store)
    assert clock.now_ms() == WALL_MS + DAY_MS + 5
    await save_jump(store, clock, WALL_MS + 2 * DAY_MS)
    stored = store.get("/clock")
    assert stored is not None
    assert json.loads(stored.value) == {
        "record": "clock",
        "format": 1,
        "offset_ms": 2 * DAY_MS - 5,
        "reached_ms": WALL_MS + 2 * DAY_MS,
        "moving_to_ms": WALL_MS + 2 * DAY_MS,
    }, "they start at the end, too, or later"
