"""Pages of metrics: one is rendered at a time, and requests that arrive meanwhile share it.

The waiting requests render the page in slices, in turn, and it is kept compressed: some hundred bytes for a
topic. There is no separate task, so rendering stops when no request waits for the page any more. Each request
then sends the finished page at the pace of its own connection; pages that slow connections still hold are
dropped, the oldest first, when they exceed `HELD_BYTES_MAX` together.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Final

import trio

from geminga.admin.metrics.bookie import Figure
from geminga.errors import ServiceNotReady
from geminga.limits import KIB, MIB

HELD_BYTES_MAX: Final = 8 * MIB
"""Bound on the finished pages that are still being sent, not counting the newest."""
PART_BYTES_MAX: Final = 64 * KIB
_GZIP: Final = 31
"""zlib's window and format."""


class _Page:
    def __init__(self, drawing: Iterator[str]) -> None:
        self.readers = 0
        self.parts: list[bytes] = []
        self.size_bytes = 0
        self.is_whole = False
        self.is_broken = False
        """True if a slice raised. Its request gets the error, the others `ServiceNotReady`."""
        self.is_let_go = False
        self.drawing = trio.Lock()
        """Fair: waiting requests render one slice each, in turn."""
        self._slices = drawing
        self._compressor = zlib.compressobj(1, zlib.DEFLATED, _GZIP)

    def draw(self) -> None:
        """One slice more."""
        if self.is_broken:
            raise ServiceNotReady("the metrics could not be drawn; the broker's log says why")
        self.is_broken = True
        text = next(self._slices, None)
        self.is_broken = False
        part = self._compressor.flush() if text is None else self._compressor.compress(text.encode())
        if part:
            self.parts.append(part)
            self.size_bytes += len(part)
        self.is_whole = text is None

    def check_held(self) -> None:
        if self.is_let_go:
            raise ServiceNotReady("metrics: the peer took its page so slowly that newer ones needed the room")


class Pages:
    """`begin` starts to draw a page."""

    def __init__(self, begin: Callable[[], Iterator[str]]) -> None:
        self._begin = begin
        self._pages: list[_Page] = []
        """Those that have readers, in the order of their beginning; only the last one may be under way."""
        self._asked = 0
        self._begun = 0
        self._abandoned = 0

    def figures(self) -> Iterator[Figure]:
        """Since the start."""
        for name, text, count in (
            ("scrapes", "Scrapes of this page that were asked for", self._asked),
            ("pages", "Pages that were begun for them: scrapes at the same time share one", self._begun),
            (
                "pages_abandoned",
                "Of these, those whose last client went away before they were whole",
                self._abandoned,
            ),
        ):
            yield Figure(f"geminga_metrics_{name}", text, [({}, float(count))])

    async def read(self, *, gzip: bool) -> AsyncGenerator[bytes, None]:
        """A whole page, of which nothing is older than this call and the drawing that was under way: gzip's
        bytes, or text. The first part comes when the page is whole.
        """
        self._asked += 1
        page = self._join()
        page.readers += 1
        try:
            while not page.is_whole:
                async with page.drawing:
                    if not page.is_whole:
                        page.draw()
            self._make_room()
            for part in _parts(page) if gzip else _plain(page):
                yield part
        finally:
            page.readers -= 1
            if not page.readers:
                self._let_go(page)

    def _join(self) -> _Page:
        if not self._pages or self._pages[-1].is_whole or self._pages[-1].is_broken:
            self._pages.append(_Page(self._begin()))
            self._begun += 1
        return self._pages[-1]

    def _make_room(self) -> None:
        held = sum(page.size_bytes for page in self._pages[:-1])
        while held > HELD_BYTES_MAX:
            held -= self._pages[0].size_bytes
            self._let_go(self._pages[0])

    def _let_go(self, page: _Page) -> None:
        self._abandoned += not (page.is_whole or page.is_let_go)
        page.is_let_go = True
        page.parts.clear()
        if page in self._pages:
            self._pages.remove(page)


def _parts(page: _Page) -> Iterator[bytes]:
    at = 0
    while True:
        page.check_held()
        if at == len(page.parts):
            return
        yield page.parts[at]
        at += 1


def _plain(page: _Page) -> Iterator[bytes]:
    reader = zlib.decompressobj(_GZIP)
    for part in _parts(page):
        left = part
        while text := reader.decompress(left, PART_BYTES_MAX):
            yield text
            page.check_held()
            left = reader.unconsumed_tail
