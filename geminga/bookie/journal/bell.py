"""Wakes the event loop from a thread with one system call; one more resets the bell.

trio's own `run_sync_soon` takes five system calls, and as many Python calls. The bell uses it on systems
without eventfd.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Self

import trio


class Bell:
    """A bell for one thread and one task. Leave the context only after the thread has ended, because another
    file may get the descriptor then.
    """

    def __init__(self) -> None:
        """Call on the loop."""
        self._token = trio.lowlevel.current_trio_token()
        self._descriptor = -1
        if hasattr(os, "eventfd"):
            # An eventfd adds up what is written to it: many rings before the loop looks cost it one read and
            # one call of `answer`, where a pipe would have to be drained.
            self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The thread may ring before `run` has said what to call; the descriptor keeps that ring until `run`
        # reads it.
        self._answer: Callable[[], None] = _nothing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    async def run(self, answer: Callable[[], None]) -> None:
        """Call `answer` on the loop after each `ring`, until cancelled. Several rings may share one call."""
        self._answer = answer
        if self._descriptor < 0:
            # Without an eventfd `ring` calls `answer` by the token; this task exists to be cancelled alike.
            await trio.sleep_forever()
        while True:
            answer()
            await trio.lowlevel.wait_readable(self._descriptor)
            os.eventfd_read(self._descriptor)

    def ring(self) -> None:
        """Call on any thread."""
        if self._descriptor >= 0:
            os.eventfd_write(self._descriptor, 1)
        else:
            self._token.run_sync_soon(self._answer, idempotent=True)


def _nothing() -> None:
    pass
