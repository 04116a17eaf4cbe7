"""A part of a subscription's backlog, as the dispatcher reads it."""

from __future__ import annotations

from typing import Final, NamedTuple

from pyroaring import BitMap

from geminga.position import Position

WINDOW_ENTRIES: Final = 65_536
"""How far one look for entries that are not held back goes: one container of a bitmap, about 10 us."""


class Window(NamedTuple):
    """A run of entries of one ledger, from the unacknowledged one at `place` up to and without `end`."""

    place: Position
    free: BitMap | None
    """Those that are neither acknowledged nor held back; None: nothing of it is held back."""
    end: Position
