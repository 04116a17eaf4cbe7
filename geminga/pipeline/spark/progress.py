"""A bar below the cell of a notebook while Spark works for it: Spark's own goes to a terminal that a notebook
does not show.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any, Final, TextIO

from pyspark.sql import SparkSession

_SECONDS: Final = 1.0
_WIDTH: Final = 40


def show_progress_in_a_notebook(spark: SparkSession) -> None:
    """From the next cell on, where this Python is the kernel of a notebook; elsewhere nothing."""
    shell = _shell_of_a_notebook()
    if shell is not None:
        _BAR.show(CellProgress(spark, shell.events))


def _shell_of_a_notebook() -> Any:
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return None
    shell = sys.modules["IPython"].get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


class CellProgress:
    """Watches the stages of a session while a cell runs."""

    def __init__(self, spark: SparkSession, events: Any, out: TextIO | None = None) -> None:
        """`events` are those of IPython."""
        self._spark = spark
        self._events = events
        self._out = out
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def follow_cells(self) -> None:
        self._events.register("pre_run_cell", self.begin)
        self._events.register("post_run_cell", self.end)

    def stop_following(self) -> None:
        self.end()
        with contextlib.suppress(ValueError):
            self._events.unregister("pre_run_cell", self.begin)
            self._events.unregister("post_run_cell", self.end)

    def begin(self, *_: object) -> None:
        """A thread for each cell: what a thread prints is shown below the cell that began it."""
        self._done.clear()
        self._thread = threading.Thread(target=self._watch, name="geminga-progress", daemon=True)
        self._thread.start()

    def end(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        shown = ""
        out = self._out or sys.stderr
        while not self._done.wait(_SECONDS):
            text = bar(*self._tasks())
            if text != shown:
                print("\r" + text.ljust(len(shown)), end="", file=out, flush=True)
                shown = text
        if shown:
            print("\r" + " " * len(shown), end="\r", file=out, flush=True)

    def _tasks(self) -> tuple[int, int]:
        """Done, and all, of the stages that run. None of a session that was stopped."""
        context = self._spark.sparkContext
        if context._jsc is None:
            return 0, 0
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)


class KernelBar:
    """The one bar of a kernel: cells have one output, and the bar of a stopped session would show nothing."""

    def __init__(self) -> None:
        self._shown: CellProgress | None = None

    def show(self, progress: CellProgress) -> None:
        """From the next cell on, instead of the bar of an earlier session."""
        if self._shown is not None:
            self._shown.stop_following()
        self._shown = progress
        progress.follow_cells()


_BAR = KernelBar()


def bar(done: int, total: int) -> str:
    """Nothing of nothing."""
    if total == 0:
        return ""
    filled = _WIDTH * done // total
    return f"[{'=' * filled}{' ' * (_WIDTH - filled)}] {done} of {total} tasks"
