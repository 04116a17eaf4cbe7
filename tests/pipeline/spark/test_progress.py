"""The bar below a notebook's cell."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from geminga.pipeline.spark import progress
from geminga.pipeline.spark.progress import CellProgress, KernelBar, bar


class Events:
    """IPython's, as far as they are used."""

    def __init__(self) -> None:
        self.called: dict[str, list[Any]] = {"pre_run_cell": [], "post_run_cell": []}

    def register(self, name: str, callback: Any) -> None:
        self.called[name].append(callback)

    def unregister(self, name: str, callback: Any) -> None:
        self.called[name].remove(callback)

    def fire(self, name: str) -> None:
        for callback in self.called[name]:
            callback(None)


class Written(io.StringIO):
    """Says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.some = threading.Event()

    def write(self, text: str) -> int:
        self.some.set()
        return super().write(text)


def session(*stages: tuple[int, int]) -> Any:
    """With these stages running: tasks done, and all."""
    infos = [SimpleNamespace(numCompletedTasks=done, numTasks=total) for done, total in stages]
    tracker = SimpleNamespace(getActiveStageIds=lambda: range(len(infos)), getStageInfo=infos.__getitem__)
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=object(), statusTracker=lambda: tracker))


def test_a_bar_stands_while_a_cell_runs_and_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS", 0.001)
    events, out = Events(), Written()
    KernelBar().show(CellProgress(session((3, 4), (0, 4)), events, out))
    events.fire("pre_run_cell")
    assert out.some.wait(10)
    events.fire("post_run_cell")
    first, *_, last = [line for line in out.getvalue().split("\r") if line]
    assert first == bar(3, 8) == f"[{'=' * 15}{' ' * 25}] 3 of 8 tasks"
    assert last.strip() == ""
    assert len(last) == len(first)


def test_a_second_session_takes_the_bar_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS", 0.001)
    events, old, new = Events(), Written(), Written()
    kernel = KernelBar()
    kernel.show(CellProgress(session((1, 2)), events, old))
    kernel.show(CellProgress(session((1, 2)), events, new))
    assert [len(callbacks) for callbacks in events.called.values()] == [1, 1]
    events.fire("pre_run_cell")
    assert new.some.wait(10)
    events.fire("post_run_cell")
    assert old.getvalue() == ""


def test_nothing_running_is_no_bar() -> None:
    assert bar(0, 0) == ""
