"""Text as a terminal shows it: control characters escaped, widths in cells, too long ones cut."""

from __future__ import annotations

import re
import unicodedata

ELLIPSIS = "…"

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What moves the cursor, changes colours, answers in the user's name, ends a line or turns text round."""
_CONTROLS_OF_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""The same where lines and tabs are part of the text."""


def escaped(text: str) -> str:
    """One line in which control characters are written out: `\\x1b`, `\\u202e`."""
    return _CONTROLS.sub(_escape, text)


def escaped_lines(text: str) -> str:
    """As `escaped`, with line feeds and tabs left as they are."""
    return _CONTROLS_OF_TEXT.sub(_escape, text)


def escaped_json(text: str) -> str:
    """JSON that means the same, without control characters in it."""
    return _CONTROLS_OF_TEXT.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def cells(text: str) -> int:
    """How many cells of a terminal the text takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_cells_of(character) for character in text)


def _cells_of(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """At most `width` cells; the middle of a longer text becomes an ellipsis, as ends tell names apart."""
    if cells(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    tail = _start_of(text[::-1], (width - 1) // 2)[::-1]
    return _start_of(text, width - 1 - cells(tail)) + ELLIPSIS + tail


def cut_end(text: str, width: int) -> str:
    """At most `width` cells; the end of a longer text becomes an ellipsis."""
    if cells(text) <= width:
        return text
    return _start_of(text, width - 1) + ELLIPSIS[: max(0, width)]


def _start_of(text: str, width: int) -> str:
    used = 0
    for index, character in enumerate(text):
        used += _cells_of(character)
        if used > width:
            return text[:index]
    return text


def padded(text: str, width: int, *, right: bool = False) -> str:
    space = " " * max(0, width - cells(text))
    return space + text if right else text + space
