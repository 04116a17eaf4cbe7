"""How soon threads are heard: while anyone wants it, and while the delayed index is imported."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from geminga.broker.delays import topic_delays
from geminga.broker.flow.switching import SHORT_S, USUAL_S, SwitchInterval


def test_the_interval_is_short_until_the_last_one_that_wants_it_so_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intervals: list[float] = []
    monkeypatch.setattr("sys.setswitchinterval", intervals.append)
    interval = SwitchInterval()
    interval.shorten()
    interval.shorten()
    interval.restore()
    assert intervals == [SHORT_S]
    interval.restore()
    assert intervals == [SHORT_S, USUAL_S]


@pytest.mark.parametrize("fails", [False, True])
async def test_the_loop_is_heard_soon_while_the_delayed_index_is_imported(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    before_s = sys.getswitchinterval()
    during_s: list[float] = []

    def import_module(name: str) -> ModuleType:
        during_s.append(sys.getswitchinterval())
        if fails:
            raise ImportError(name)
        return sys

    monkeypatch.setattr(topic_delays, "_OPEN_INDEX", "geminga.broker.delays.not_imported_yet")
    monkeypatch.setattr(importlib, "import_module", import_module)
    try:
        await topic_delays._import_index()
    except ImportError:
        assert fails
    assert during_s == [pytest.approx(SHORT_S)]
    assert sys.getswitchinterval() == before_s
