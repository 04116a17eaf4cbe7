"""One page of metrics for all who ask while it is drawn; nobody waits for a page that nobody wants."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import pairwise

import pytest
import trio

from geminga.admin.metrics import page as page_module
from geminga.admin.metrics.page import Pages
from geminga.errors import ServiceNotReady

SLICES = 50


class Drawings:
    """Pages of 50 slices that say which page and which slice they are."""

    def __init__(self) -> None:
        self.begun = 0
        self.slices = 0

    def begin(self, open_metrics: bool) -> Iterator[str]:
        self.begun += 1
        return self._draw(self.begun)

    def _draw(self, number: int) -> Iterator[str]:
        for place in range(SLICES):
            self.slices += 1
            yield f"page {number} slice {place}\n"

    @staticmethod
    def text(number: int) -> str:
        return "".join(f"page {number} slice {place}\n" for place in range(SLICES))


async def whole(parts: AsyncGenerator[bytes, None]) -> str:
    async with aclosing(parts):
        return b"".join([part async for part in parts]).decode()


async def test_ten_who_ask_at_once_get_one_page_and_the_next_gets_another() -> None:
    drawings = Drawings()
    pages = Pages(drawings.begin)
    found: list[str] = []

    async def scrape() -> None:
        found.append(await whole(pages.read(gzip=False)))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(scrape)
    assert found == [drawings.text(1)] * 10
    assert (drawings.begun, drawings.slices) == (1, SLICES)
    await scrape()
    assert found[-1] == drawings.text(2)


async def test_one_who_comes_late_gets_the_page_from_its_beginning() -> None:
    drawings = Drawings()
    pages = Pages(drawings.begin)
    found: list[str] = []

    async def scrape() -> None:
        found.append(await whole(pages.read(gzip=False)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(scrape)
        while drawings.slices < SLICES // 2:
            await trio.lowlevel.checkpoint()
        assert drawings.slices < SLICES
        nursery.start_soon(scrape)
    assert found == [drawings.text(1)] * 2


async def test_a_page_is_drawn_no_further_when_the_last_one_who_wants_it_is_gone() -> None:
    drawings = Drawings()
    pages = Pages(drawings.begin)
    scopes = [trio.CancelScope() for _ in range(3)]

    async def scrape(scope: trio.CancelScope) -> None:
        with scope:
            await whole(pages.read(gzip=True))

    async with trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(scrape, scope)
        for left, scope in enumerate(scopes):
            before = drawings.slices
            while drawings.slices < before + 3:
                await trio.lowlevel.checkpoint()
            assert left < 3
            scope.cancel()
    assert drawings.begun == 1
    assert drawings.slices < SLICES
    assert await whole(pages.read(gzip=False)) == drawings.text(2)


async def test_other_tasks_run_between_two_slices() -> None:
    drawings = Drawings()
    pages = Pages(drawings.begin)
    seen: list[int] = []

    async def watch() -> None:
        while True:
            seen.append(drawings.slices)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await whole(pages.read(gzip=False))
        nursery.cancel_scope.cancel()
    # In each turn of the loop both run once, in either order.
    assert {after - before for before, after in pairwise(seen)} <= {0, 1, 2}


async def test_gzip_is_the_same_text() -> None:
    drawings = Drawings()
    pages = Pages(drawings.begin)
    async with aclosing(pages.read(gzip=True)) as parts:
        packed = b"".join([part async for part in parts])
    assert zlib.decompress(packed, 31).decode() == drawings.text(1)


async def test_old_pages_that_are_not_taken_are_let_go_for_newer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_module, "HELD_BYTES_MAX", 100)
    monkeypatch.setattr(page_module, "PART_BYTES_MAX", 10)
    drawings = Drawings()
    pages = Pages(drawings.begin)
    slow = [pages.read(gzip=False) for _ in range(3)]
    for number, parts in enumerate(slow, 1):
        assert (await anext(parts)).decode() == f"page {number} slice"[:10]
    assert await whole(slow[2]) == drawings.text(3)[10:]
    with pytest.raises(ServiceNotReady, match="newer ones needed the room"):
        await whole(slow[0])
    await slow[1].aclose()


async def test_what_goes_wrong_in_a_slice_is_told_to_all_and_the_next_page_begins_anew() -> None:
    begun = 0

    def begin(open_metrics: bool) -> Iterator[str]:
        nonlocal begun
        begun += 1
        yield "first\n"
        if begun == 1:
            raise KeyError("a bug")

    pages = Pages(begin)
    errors: list[type[Exception]] = []

    async def scrape() -> None:
        try:
            await whole(pages.read(gzip=False))
        except (KeyError, ServiceNotReady) as error:
            errors.append(type(error))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(scrape)
    assert sorted(error.__name__ for error in errors) == ["KeyError", "ServiceNotReady", "ServiceNotReady"]
    assert await whole(pages.read(gzip=False)) == "first\n"


async def test_scrapes_of_two_formats_at_once_get_a_page_each() -> None:
    def begin(open_metrics: bool) -> Iterator[str]:
        for _ in range(SLICES):
            yield "open\n" if open_metrics else "plain\n"

    pages = Pages(begin)
    found: dict[bool, str] = {}

    async def scrape(open_metrics: bool) -> None:
        found[open_metrics] = await whole(pages.read(gzip=False, open_metrics=open_metrics))

    async with trio.open_nursery() as nursery:
        for open_metrics in (False, True):
            nursery.start_soon(scrape, open_metrics)
    assert found == {False: "plain\n" * SLICES, True: "open\n" * SLICES}


async def test_a_crowd_of_slow_readers_holds_little_and_its_memory_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    returned: list[int] = []
    monkeypatch.setattr(page_module, "return_free_memory", lambda: returned.append(1))
    pages = Pages(lambda open_metrics: iter(["x" * 100_000] * 20))

    async def read_by(readers: int) -> set[int]:
        """They all read in step; returns the lengths of the parts of text."""
        lengths: set[int] = set()
        started = [pages.read(gzip=False) for _ in range(readers)]
        while parts := [await anext(one, b"") for one in started]:
            if not any(parts):
                break
            lengths |= set(map(len, parts))
        return lengths

    assert max(await read_by(page_module.CROWD - 1)) <= 32 << 10
    assert returned == []
    await read_by(page_module.CROWD)
    assert returned == [1]
    await read_by(1)
    assert returned == [1]
