"""Taking what is due, as positions."""

from __future__ import annotations

from geminga.position import Position
from geminga.tracker.index.view import View


def take(tracker: View, count_max: int) -> list[Position]:
    """In the order of the topic."""
    codes = tracker.take_due(count_max)
    assert codes.typecode == "Q"
    taken = [Position(code >> 32, code & 0xFFFFFFFF) for code in codes]
    assert taken == sorted(taken)
    return taken
