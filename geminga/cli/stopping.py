"""What ends a run of the broker: signals, and the end of standard input."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable

import trio

from geminga.cli.arguments.parser import EXIT_FAILED

SAME_WISH_SECONDS = 1.0
IGNORED_BYTES = 4096
"""Of input that is read and ignored at once."""

log = logging.getLogger("geminga.standalone")


def stop_signals() -> list[signal.Signals]:
    """SIGHUP is among them unless it was ignored when we began: `nohup` asks for that."""
    stopping = [signal.SIGTERM, signal.SIGINT]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        stopping.append(signal.SIGHUP)
    return stopping


class Stop:
    """Stops what runs in a cancel scope, once."""

    def __init__(self, serving: trio.CancelScope) -> None:
        self._serving = serving
        self._began_s = 0.0

    async def on(self, signals: AsyncIterator[int], say_all: Callable[[], None]) -> None:
        """The first signal stops in order, a later one at once; `say_all` is called before that.

        One that follows within a second is the same wish told twice: `timeout` signals the process and its
        group. So is SIGHUP at any time: a terminal that is closed sends it, and the shell in it does.
        """
        async for number in signals:
            name = signal.Signals(number).name
            is_soon = time.monotonic() - self._began_s < SAME_WISH_SECONDS
            if self._serving.cancel_called and (is_soon or name == "SIGHUP"):
                continue
            if self._serving.cancel_called:
                log.warning("%s again: ending at once; the next start recovers what was not closed", name)
                say_all()
                os._exit(EXIT_FAILED)
            self._begin(name)

    async def at_end_of(self, descriptor: int) -> None:
        """Stop in order when a pipe or terminal has no more input; what it has is ignored. A file or
        /dev/null, for which there is no waiting, counts as at its end.
        """
        try:
            while True:
                await trio.lowlevel.wait_readable(descriptor)
                if not os.read(descriptor, IGNORED_BYTES):
                    break
        except OSError:
            pass
        self._begin("end of standard input")

    def _begin(self, why: str) -> None:
        if self._serving.cancel_called:
            return
        log.info("%s: stopping", why)
        self._began_s = time.monotonic()
        # All there is goes with the process: no collection needs to walk over it, the last one included.
        gc.disable()
        gc.freeze()
        self._serving.cancel()
