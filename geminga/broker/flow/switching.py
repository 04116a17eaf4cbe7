"""Sets how soon a thread that wants the interpreter gets it, for the whole process."""

from __future__ import annotations

import sys
from typing import Final

# A busy loop releases the interpreter for a moment at each system call, and each of them restarts the wait of
# the journal's thread: with an interval above the time between two calls the thread hardly ever runs. While
# one client floods with ACKs, another's receipt takes 20 ms (p99 110) with intervals from 0.2 to 5 ms, and
# 3.7 (p99 7) with 0.1. Where all connections are equally busy, a short interval only makes groups of entries
# smaller, for a tenth more CPU. With a thread that imports modules it is the loop that waits, each time it
# wakes up, if the interval is the usual one.
USUAL_S: Final = 0.005
"""How long a thread usually waits for the interpreter before it requests it."""
SHORT_S: Final = 0.0001
"""The interval while the loop is so busy that the journal's thread would not run."""


class SwitchInterval:
    """The interval is short while there are more calls of `shorten` than of `restore`."""

    def __init__(self) -> None:
        self._wanted = 0

    def shorten(self) -> None:
        self._wanted += 1
        if self._wanted == 1:
            sys.setswitchinterval(SHORT_S)

    def restore(self) -> None:
        """Call this once for each `shorten`."""
        assert self._wanted > 0
        self._wanted -= 1
        if not self._wanted:
            sys.setswitchinterval(USUAL_S)


switch_interval: Final = SwitchInterval()
"""The one object for the interpreter."""
