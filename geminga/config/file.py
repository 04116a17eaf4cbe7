"""The syntax of `broker.conf`: Java properties.

key=value     key: value     key value      blanks around key and separator do not count
# comment     ! comment                     only at the start of a line
a backslash at the end of a line continues it; \\t \\n \\r \\f \\uXXXX stand for characters, \\x for x itself
"""

from __future__ import annotations

from typing import NamedTuple

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One key as the user gave it, and its source: `broker.conf:12`, a flag, an environment variable."""

    key: str
    value: str
    source: str
    bare: bool = False
    """Whether the line has no `=` and no `:`, which the syntax allows, but which is probably no setting."""


class ConfigFile(NamedTuple):
    name: str
    properties: list[Property]


def parse(name: str, data: bytes) -> ConfigFile:
    """Read a whole file; a key may repeat. `ValueError` names the line that does not follow the syntax."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{name}:{number}: this is not UTF-8 text") from None
    properties = []
    for number, line in _logical_lines(text):
        key_end, value_start = _split(line)
        try:
            key, value = _unescape(line[:key_end]), _unescape(line[value_start:])
        except ValueError as error:
            raise ValueError(f"{name}:{number}: {error}") from None
        if not key:
            raise ValueError(f"{name}:{number}: a line must start with a key, as in key=value")
        bare = not line[key_end:value_start].strip(_BLANKS)
        properties.append(Property(key, value.strip(), f"{name}:{number}", bare))
    return ConfigFile(name, properties)


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines numbered from 1, with continuations joined, without leading blanks and without comments."""
    found: list[tuple[int, str]] = []
    pending: tuple[int, str] | None = None
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        line = raw.lstrip(_BLANKS)
        if pending is None:
            if not line or line[0] in "#!":
                continue
            pending = (number, line)
        else:
            pending = (pending[0], pending[1] + line)
        backslashes = len(pending[1]) - len(pending[1].rstrip("\\"))
        if backslashes % 2:
            pending = (pending[0], pending[1][:-1])
        else:
            found.append(pending)
            pending = None
    if pending is not None:
        found.append(pending)
    return found


def _split(line: str) -> tuple[int, int]:
    """Where the key ends and where the value starts."""
    at = 0
    while at < len(line) and line[at] not in "=:" + _BLANKS:
        at += 2 if line[at] == "\\" else 1
    key_end = min(at, len(line))
    rest = line[key_end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return key_end, len(line) - len(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    characters = []
    at = 0
    while at < len(text):
        character = text[at]
        at += 1
        if character == "\\" and at < len(text):
            character = text[at]
            at += 1
            if character == "u":
                digits = text[at : at + 4]
                if len(digits) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                    raise ValueError("\\u must be followed by four hexadecimal digits")
                character = chr(int(digits, 16))
                at += 4
            else:
                character = _ESCAPES.get(character, character)
        characters.append(character)
    return "".join(characters)
