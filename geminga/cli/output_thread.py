"""Standard output and standard error of the broker, written by a thread each: no writer waits for a reader.

A pipe that nothing reads, a terminal that is stopped (Ctrl-S) and a hung log volume hold up `write(2)` for as
long as they like. Here that holds up a thread that nothing waits for; lines that find no room meanwhile are
dropped, the oldest first, and counted.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from geminga.clock import RealClock

QUEUE_BYTES_MAX = 1 << 20
"""Bound on the text of one stream that waits to be written."""
RECORD_BYTES = 100
"""Approximate memory of a waiting record beyond its text."""
LINE_CHARS_MAX = 64 << 10
"""A line without an end is passed on in pieces of this."""
WRITE_BYTES = 64 << 10
"""One write takes records until it has so many bytes."""
FLUSH_SECONDS = 2.0
"""How long the end of the process waits for both streams to be read."""
_monotonic_s = RealClock().monotonic_s


class OutputThread(io.TextIOBase):
    """A text stream on a descriptor. `write` neither blocks nor raises, on any thread and in signal handlers;
    whole lines are passed on. What the system refuses (no reader, no space) is dropped and counted too, and
    the next lines are tried again.
    """

    def __init__(self, descriptor: int, encoding: str = "utf-8", *, bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._bytes_max = bytes_max
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._partial = ""
        self._untold = 0
        self._is_cut = False
        self._closing = False
        self._thread: threading.Thread | None = None
        # Its lock is reentrant: a finalizer may print while this thread is inside `write`.
        self._changed = threading.Condition()
        self.dropped_lines = 0
        """Since the start."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Queue the text up to its last end of a line; the rest waits for its own."""
        with self._changed:
            head, end, tail = text.rpartition("\n")
            if end or len(self._partial) + len(tail) > LINE_CHARS_MAX:
                whole = self._partial + head + end + ("" if end else tail)
                self._partial = tail if end else ""
                self._add(whole)
            else:
                self._partial += tail
        return len(text)

    def finish(self, until_s: float) -> None:
        """Write what is queued, but not after `until_s` (monotonic); what comes later is dropped."""
        with self._changed:
            if self._partial:
                partial, self._partial = self._partial, ""
                self._add(partial)
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(max(0.0, until_s - _monotonic_s()))

    def _add(self, text: str) -> None:
        record = text.encode(self._encoding, "backslashreplace")
        if self._closing or not self._is_running():
            self._drop(record)
            return
        self._queue.append(record)
        self._queued_bytes += len(record) + RECORD_BYTES
        # The newest stay: they say why a process ends.
        while self._queued_bytes > self._bytes_max:
            oldest = self._queue.popleft()
            self._queued_bytes -= len(oldest) + RECORD_BYTES
            self._drop(oldest)
        self._changed.notify()

    def _is_running(self) -> bool:
        if self._thread is None:
            # A daemon: one that hangs in a write does not hold up the end of the process.
            thread = threading.Thread(target=self._run, name=f"output-{self._descriptor}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads
                return False
            self._thread = thread
        return True

    def _drop(self, data: bytes) -> None:
        lines = max(1, data.count(b"\n"))
        self.dropped_lines += lines
        self._untold += lines

    def _run(self) -> None:
        is_cut = False
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                untold, self._untold = self._untold, 0
                batch = self._taken()
            notice = _notice(untold, self._encoding, is_cut=is_cut)
            data = notice + batch
            written = self._write_all(data)
            is_cut = 0 < written < len(data) and not data[:written].endswith(b"\n")
            if written < len(data):
                with self._changed:
                    self._drop(batch[max(0, written - len(notice)) :])
                    if written < len(notice):
                        self._untold += untold

    def _taken(self) -> bytes:
        parts, size_bytes = [], 0
        while self._queue and size_bytes < WRITE_BYTES:
            parts.append(self._queue.popleft())
            size_bytes += len(parts[-1])
        self._queued_bytes -= size_bytes + RECORD_BYTES * len(parts)
        return b"".join(parts)

    def _write_all(self, data: bytes) -> int:
        """Returns how many bytes were written: all, or those before a failure."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process that has this pipe or terminal too made it so
                with contextlib.suppress(OSError):
                    select.select((), (self._descriptor,), (), 1.0)
            except OSError:
                break
        return len(data) - len(left)


def _notice(untold: int, encoding: str, *, is_cut: bool) -> bytes:
    if not untold:
        return b""
    cut = "\n" if is_cut else ""
    return f"{cut}geminga: {untold} lines are missing here: they could not be written\n".encode(encoding)


class Streams(NamedTuple):
    """Both while they stand in for the system's."""

    out: OutputThread
    err: OutputThread

    def dropped_lines(self) -> int:
        return self.out.dropped_lines + self.err.dropped_lines

    def finish(self) -> None:
        """Wait a while for what is queued to be written; nothing is taken any more."""
        until_s = _monotonic_s() + FLUSH_SECONDS
        for stream in (self.err, self.out):
            stream.finish(until_s)


@contextlib.contextmanager
def streams_on_threads() -> Iterator[Streams]:
    """Let threads write what is printed inside the block; its end waits `FLUSH_SECONDS` for them at most."""
    streams = Streams(OutputThread(1, sys.stdout.encoding), OutputThread(2, sys.stderr.encoding))
    with contextlib.redirect_stdout(streams.out), contextlib.redirect_stderr(streams.err):
        try:
            yield streams
        finally:
            streams.finish()
