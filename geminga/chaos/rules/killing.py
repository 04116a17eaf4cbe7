"""Ends the process as a crash does: nothing is flushed, closed or said."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable
from typing import NoReturn

from geminga.chaos.rules.deciding import Armed, Facts
from geminga.chaos.rules.faults import Door


def kill_process() -> NoReturn:
    if sys.platform == "win32":
        os._exit(137)
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()
    raise AssertionError("SIGKILL did not end the process")


class Points:
    """The named points of the process, as the code that passes them sees them."""

    __slots__ = ("door",)

    def __init__(self, door: Door) -> None:
        self.door = door

    def passed(self, name: str) -> None:
        """The process has come to this point; a rule may end it here. On any thread."""
        if self.door.armed and any(one.rule.kind == "kill" for one in self.door.hit(Facts(name=name))):
            kill_process()


def pause(pause_ms: int) -> None:
    """Stop the calling thread for this time; on the event loop, that stops the broker."""
    threading.Event().wait(pause_ms / 1000)


def has(hit: Iterable[Armed], kind: str) -> bool:
    return any(one.rule.kind == kind for one in hit)
