"""Rows as a table: columns aligned, and fitted into the width of a terminal. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from geminga.cli.show import text
from geminga.cli.show.numbers import UNKNOWN

GAP = "  "
COMFORTABLE = 28
"""A column of texts is cut down to this many cells before columns of little importance are left out."""
NARROWEST = 12
"""And down to this many before any other is."""
IMPORTANT = 5
"""From this importance on a column is not of little importance."""


class Column(NamedTuple):
    title: str
    key: str
    """Where a row has the value."""
    shown: Callable[[Any], str] | None = None
    """A number as text; given, the column is aligned to the right. None: texts."""
    importance: int = 1
    """The lowest is left out first where the terminal is too narrow; 0 and above. The first column stays."""
    alarming: Callable[[Any], bool] | None = None
    """Whether a value wants attention; it is then red where there are colours."""


class Style(NamedTuple):
    """What stands around a text. Empty: no colours."""

    heading: str = ""
    alarm: str = ""
    selected: str = ""
    end: str = ""


PLAIN = Style()
COLOURS = Style(heading="\x1b[1m", alarm="\x1b[31m", selected="\x1b[7m", end="\x1b[0m")


def table(
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    *,
    width: int | None = None,
    style: Style = PLAIN,
    selected: int | None = None,
) -> list[str]:
    """A heading and a line for each row. `width` in cells; None: as wide as it takes, and nothing cut."""
    shown = [[_cell(column, row) for column in columns] for row in rows]
    widths = [
        max(text.cells(column.title), *(text.cells(cells[at]) for cells in shown), 0)
        for at, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    if width is not None:
        kept = _fit(columns, widths, width)
    lines = [_styled(_line(columns, [c.title for c in columns], widths, kept), style.heading, style)]
    for number, (row, cells) in enumerate(zip(rows, shown, strict=True)):
        if number == selected:
            line = _line(columns, cells, widths, kept)
            lines.append(_styled(text.padded(line, width or 0), style.selected, style))
            continue
        alarms = {
            at
            for at in kept
            if style.alarm
            and (is_alarming := columns[at].alarming) is not None
            and row.get(columns[at].key) is not None
            and is_alarming(row[columns[at].key])
        }
        lines.append(_line(columns, cells, widths, kept, alarms, style))
    return lines


def _cell(column: Column, row: Mapping[str, Any]) -> str:
    value = row.get(column.key)
    if value is None:
        return UNKNOWN
    return text.escaped(column.shown(value) if column.shown is not None else str(value))


def _fit(columns: Sequence[Column], widths: list[int], width: int) -> list[int]:
    """The columns to show; shrinks the `widths` of texts until the line fits. A name that can be read is
    worth more than a column of little importance.
    """
    kept = list(range(len(columns)))
    for narrowest, spared in ((COMFORTABLE, IMPORTANT), (NARROWEST, None)):
        while True:
            over = sum(widths[at] for at in kept) + len(GAP) * (len(kept) - 1) - width
            over = _shrink([at for at in kept if columns[at].shown is None], widths, over, narrowest)
            least = min(kept[1:], key=lambda at: (columns[at].importance, -at), default=None)
            if over <= 0 or least is None:
                return kept
            if spared is not None and columns[least].importance >= spared:
                break
            kept.remove(least)
    return kept


def _shrink(texts: Sequence[int], widths: list[int], over: int, narrowest: int) -> int:
    """Take `over` cells away from the widest of these columns; what could not be taken."""
    while over > 0:
        widest = max(texts, key=lambda at: widths[at], default=None)
        if widest is None or widths[widest] <= narrowest:
            break
        taken = min(over, widths[widest] - narrowest)
        widths[widest] -= taken
        over -= taken
    return over


def _line(
    columns: Sequence[Column],
    cells: Sequence[str],
    widths: Sequence[int],
    kept: Sequence[int],
    alarms: Set[int] = frozenset(),
    style: Style = PLAIN,
) -> str:
    parts = []
    for at in kept:
        is_number = columns[at].shown is not None
        cell = text.padded(text.cut(cells[at], widths[at]), widths[at], right=is_number)
        parts.append(_styled(cell, style.alarm, style) if at in alarms else cell)
    return GAP.join(parts).rstrip()


def _styled(line: str, start: str, style: Style) -> str:
    return f"{start}{line}{style.end}" if start else line


def pairs(rows: Sequence[tuple[str, str]], *, width: int | None = None) -> list[str]:
    """Names and values, a line each, the values below one another."""
    longest = max((text.cells(name) for name, _ in rows), default=0)
    lines = [f"{text.padded(text.escaped(name), longest)}{GAP}{text.escaped(value)}" for name, value in rows]
    return [line if width is None else text.cut_end(line, width) for line in lines]
