"""Whether the bookie lives, and a signal for every change; all of its parts share this."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import trio

from geminga.errors import ReadOnly, StorageError


class Lifeline:
    """Keeps the first failure. Every waiter gets that one, because later failures are its consequences. On
    the loop.
    """

    def __init__(self, on_failed: Callable[[StorageError], None]) -> None:
        """`on_failed` is called once, with the first failure."""
        self.failed: StorageError | None = None
        self._on_failed = on_failed
        self._changed = trio.Event()
        self._listeners: list[Callable[[], None]] = []

    def fail(self, error: StorageError) -> None:
        # Kept for good. Linux reports a failed sync once and then calls the lost pages clean, so a disk that
        # "works again" has lost data.
        if self.failed is None:
            self.failed = error
            self._on_failed(error)
            self.notify()

    def check(self) -> None:
        """Raises StorageError with the text of the failure, if there was one."""
        if self.failed is not None:
            # A copy: the same exception raised in many tasks would have their tracebacks joined.
            raise StorageError(str(self.failed))

    @contextlib.contextmanager
    def failure_ends_it(self) -> Iterator[None]:
        """A StorageError that leaves the block ends the bookie, unless it is ReadOnly."""
        try:
            yield
        # A full disk passes, and nothing that was confirmed is in danger.
        except ReadOnly:
            raise
        except StorageError as error:
            self.fail(error)
            raise

    def call_on_change(self, tell: Callable[[], None]) -> None:
        """Call `tell` after each group, flush, and failure from now on."""
        self._listeners.append(tell)

    def notify(self) -> None:
        self._changed.set()
        for tell in self._listeners:
            tell()

    async def next_change(self) -> None:
        """Wait until the next group, flush or failure."""
        if self._changed.is_set():
            self._changed = trio.Event()
        await self._changed.wait()
