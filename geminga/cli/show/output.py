"""Where a command's answer goes: a table or JSON on standard output, fitted to what it is."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from geminga.cli.show import text
from geminga.cli.show.table import COLOURS, PLAIN, Column, Style, table


def terminal_width() -> int | None:
    """Cells of a line; None if standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def style() -> Style:
    """Colours on a terminal, unless `NO_COLOR` is set or the terminal is dumb."""
    has_colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return COLOURS if has_colours else PLAIN


def show_rows(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], *, as_json: bool, nothing: str = ""
) -> None:
    """Print the rows as a table, or all that they hold as a JSON array. `nothing`: what to say on standard
    error where a person would see an empty table.
    """
    if as_json:
        show_json(list(rows))
        return
    if not rows and nothing:
        print(nothing, file=sys.stderr)
        return
    show_lines(table(columns, rows, width=terminal_width(), style=style()))


def show_json(answer: Any) -> None:
    """Indented for a person; on a terminal without control characters that are in its strings."""
    printed = json.dumps(answer, indent=2, ensure_ascii=False)
    print(text.escaped_json(printed) if sys.stdout.isatty() else printed)


def show_lines(lines: Sequence[str]) -> None:
    print("\n".join(lines), end="\n" if lines else "")
