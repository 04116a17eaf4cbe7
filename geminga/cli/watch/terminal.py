"""A terminal that a program takes over, and leaves as it found it: whatever ends the program, but kill -9."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The other screen, no cursor, no wrapping."""
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l\x1b[0m"
_SEQUENCES = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), "up"),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), "down"),
    **dict.fromkeys(("\x1b[C", "\x1bOC"), "right"),
    **dict.fromkeys(("\x1b[D", "\x1bOD"), "left"),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~"), "home"),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~"), "end"),
    **dict.fromkeys(("\r", "\n"), "enter"),
    **dict.fromkeys(("\x7f", "\x08"), "backspace"),
    "\x1b[5~": "pgup",
    "\x1b[6~": "pgdn",
    "\x03": "ctrl-c",
    "\x1b": "esc",
}
_KEY = re.compile(r"\x1b\[[0-9;]*[~A-Za-z]|\x1bO[A-Za-z]|.", re.DOTALL)
READ_BYTES = 1024
ENDING = (signal.SIGTERM, signal.SIGHUP)


class Ended(Exception):
    """A signal asks the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def keys_of(typed: str) -> list[str]:
    """Names of keys, or the characters themselves."""
    return [_SEQUENCES.get(found, found if len(found) == 1 else "") for found in _KEY.findall(typed)]


class Terminal:
    """Use as `with Terminal() as terminal`. `wait` returns keys; `draw` shows lines; `wake` may be called by
    another thread.
    """

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._before: list[Any] = []
        self._wakes, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(self._wakes, False)
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Terminal:
        self._before = termios.tcgetattr(self._input)
        for number in ENDING:
            self._handlers[number] = signal.signal(number, self._end)
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: self.wake())
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wakes)
        os.close(self._waker)

    def _end(self, number: int, frame: FrameType | None) -> None:
        raise Ended(number)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the shell gets its terminal; once we go on, we take it again."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)
        self._take()
        self.wake()

    def _take(self) -> None:
        tty.setcbreak(self._input)
        self._write(ENTER)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._write(LEAVE)
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def _write(self, data: str) -> None:
        sys.stdout.write(data)
        sys.stdout.flush()

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        found = shutil.get_terminal_size()
        return found.columns, found.lines

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines; nothing of the last ones stays."""
        # Each line is erased before it is written: behind a full one the cursor stands on its last character.
        self._write("\x1b[H" + "\r\n".join(f"\x1b[2K{line}" for line in lines))

    def wake(self) -> None:
        """Let `wait` return."""
        with contextlib.suppress(OSError):
            os.write(self._waker, b"x")

    def wait(self, seconds: float | None) -> Iterator[str]:
        """The keys that were pressed, after one was, `wake` was called or the time has passed."""
        ready, _, _ = select.select([self._input, self._wakes], [], [], seconds)
        if self._wakes in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakes, READ_BYTES)
        if self._input in ready:
            typed = os.read(self._input, READ_BYTES)
            if not typed:
                raise Ended(signal.SIGHUP)
            yield from filter(None, keys_of(typed.decode(errors="replace")))
