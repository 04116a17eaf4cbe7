"""Pages of metrics: one of each format is rendered at a time, and requests that arrive meanwhile share it.

The waiting requests render the page in slices, in turn, and it is kept compressed: some hundred bytes for a
topic. A thread compresses it, half a megabyte at once. There is no separate task, so rendering stops when no
request waits for the page any more. Each request then sends the finished page at the pace of its own
connection; pages that slow connections still hold are dropped, the oldest first, when they exceed
`HELD_BYTES_MAX` together.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Final

import trio

from geminga.admin.metrics.figures import Figure
from geminga.allocation import return_free_memory
from geminga.errors import ServiceNotReady
from geminga.limits import KIB, MIB

HELD_BYTES_MAX: Final = 8 * MIB
"""Bound on the finished pages that are still being sent, not counting the newest."""
PART_BYTES_MAX: Final = 32 * KIB
"""Of text, for a reader without gzip: each one that is slow holds such a part and its decompressor."""
CROWD: Final = 16
"""So many readers at once leave free memory behind that is worth to be returned."""
THREAD_BYTES_MIN: Final = 512 * KIB
"""So much text is compressed at once, in a thread..."""
INLINE_BYTES_MAX: Final = 64 * KIB
"""...unless all that is left is no longer than this: a tenth of a millisecond."""
SLICES_WITHOUT_PAUSE: Final = 20
PAUSE_S: Final = 0.001
"""Between the slices of a long page. A checkpoint alone has the other tasks run, and keeps the interpreter's
lock nearly all the time: the threads that write the journal would wait for it.
"""
_GZIP: Final = 31
"""zlib's window and format."""


class _Page:
    def __init__(self, drawing: Iterator[str], *, open_metrics: bool) -> None:
        self.open_metrics = open_metrics
        self.readers = 0
        self.parts: list[bytes] = []
        self.size_bytes = 0
        self.slices = 0
        self.is_whole = False
        self.is_broken = False
        """True if a slice raised. Its request gets the error, the others `ServiceNotReady`."""
        self.is_let_go = False
        self.drawing = trio.Lock()
        """Fair: waiting requests render one slice each, in turn."""
        self._slices = drawing
        self._is_drawn = False
        self._text: list[str] = []
        self._text_chars = 0
        """Drawn and not compressed."""
        self._compressor = zlib.compressobj(1, zlib.DEFLATED, _GZIP)

    async def draw(self) -> None:
        """One slice more. Cancelling loses nothing of what was drawn."""
        if self.is_broken:
            raise ServiceNotReady("the metrics could not be drawn; the broker's log says why")
        if not self._is_drawn:
            self._draw_slice()
        if self._is_drawn and self._text_chars <= INLINE_BYTES_MAX:
            self._keep(self._compress())
        elif self._is_drawn or self._text_chars >= THREAD_BYTES_MIN:
            self._keep(await trio.to_thread.run_sync(self._compress))

    def _draw_slice(self) -> None:
        self.is_broken = True
        text = next(self._slices, None)
        self.is_broken = False
        self.slices += 1
        if text is None:
            self._is_drawn = True
        elif text:
            self._text.append(text)
            self._text_chars += len(text)

    def _compress(self) -> bytes:
        return self._compressor.compress("".join(self._text).encode())

    def _keep(self, part: bytes) -> None:
        self._text.clear()
        self._text_chars = 0
        if self._is_drawn:
            part += self._compressor.flush()
            self.is_whole = True
        if part:
            self.parts.append(part)
            self.size_bytes += len(part)

    def check_held(self) -> None:
        if self.is_let_go:
            raise ServiceNotReady("metrics: the peer took its page so slowly that newer ones needed the room")


class Pages:
    """`begin` starts to draw a page, in OpenMetrics if it is called with True."""

    def __init__(self, begin: Callable[[bool], Iterator[str]]) -> None:
        self._begin = begin
        self._pages: list[_Page] = []
        """Those that have readers, in the order of their beginning; of each format only the last one may be
        under way.
        """
        self.asked = 0
        """Scrapes, since the start."""
        self._begun = 0
        self._abandoned = 0
        self._readers = self._readers_most = 0
        """Now, and the most since there was none."""

    def figures(self) -> Iterator[Figure]:
        """Since the start."""
        for name, text, count in (
            ("scrapes", "Scrapes of this page that were asked for", self.asked),
            ("pages", "Pages that were begun for them: scrapes at the same time share one", self._begun),
            (
                "pages_abandoned",
                "Of these, those whose last client went away before they were whole",
                self._abandoned,
            ),
        ):
            yield Figure(f"geminga_metrics_{name}", text, [({}, float(count))])

    async def read(self, *, gzip: bool, open_metrics: bool = False) -> AsyncGenerator[bytes, None]:
        """A whole page, of which nothing is older than this call and the drawing that was under way: gzip's
        bytes, or text. The first part comes when the page is whole.
        """
        self.asked += 1
        page = self._join(open_metrics)
        page.readers += 1
        self._readers += 1
        self._readers_most = max(self._readers_most, self._readers)
        try:
            while not page.is_whole:
                async with page.drawing:
                    if not page.is_whole:
                        await page.draw()
                if page.slices > SLICES_WITHOUT_PAUSE:
                    await trio.sleep(PAUSE_S)
            self._make_room()
            for part in _parts(page) if gzip else _plain(page):
                yield part
        finally:
            page.readers -= 1
            if not page.readers:
                self._let_go(page)
            self._readers -= 1
            if not self._readers:
                if self._readers_most >= CROWD:
                    return_free_memory()
                self._readers_most = 0

    def _join(self, open_metrics: bool) -> _Page:
        for page in reversed(self._pages):
            if page.open_metrics is open_metrics:
                if page.is_whole or page.is_broken:
                    break
                return page
        page = _Page(self._begin(open_metrics), open_metrics=open_metrics)
        self._pages.append(page)
        self._begun += 1
        return page

    def _make_room(self) -> None:
        held = sum(page.size_bytes for page in self._pages[:-1])
        for page in self._pages[:-1]:
            if held <= HELD_BYTES_MAX:
                break
            if page.is_whole:
                held -= page.size_bytes
                self._let_go(page)

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
