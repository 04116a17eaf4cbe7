"""How each key of a configuration is read: its type, its bounds, and the value of a text."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from geminga.config.config import Config


class Setting(NamedTuple):
    """How one key is read."""

    key: str
    attribute: str
    type: Any
    low: int | float | None
    high: int | float | None


def settings() -> dict[str, Setting]:
    """Every served setting by Pulsar's key, in the order of `Config`."""
    found: dict[str, Setting] = {}
    for key, attribute in zip(Config.__struct_encode_fields__, Config.__struct_fields__, strict=True):
        annotation: Any = Config.__annotations__[attribute]
        low = high = None
        if typing.get_origin(annotation) is Annotated:
            annotation, meta = typing.get_args(annotation)
            low, high = meta.ge, meta.le
        found[key] = Setting(key, attribute, annotation, low, high)
    return found


def parse(setting: Setting, text: str) -> Any:
    """The value of `text`. Raises `ValueError`, with the allowed values."""
    if setting.type is bool:
        return _parse_bool(text)
    if setting.type is int:
        return _parse_int(setting, text)
    if setting.type is float:
        return _parse_float(setting, text)
    if setting.type is str:
        if any(character.isspace() or not character.isprintable() for character in text):
            raise ValueError("expected a text without spaces")
        return text
    origin, arguments = typing.get_origin(setting.type), typing.get_args(setting.type)
    if origin is Literal:
        return _parse_choice(arguments, text)
    if origin is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    assert origin is frozenset, setting
    choices = typing.get_args(arguments[0])
    return frozenset(_parse_choice(choices, part.strip()) for part in text.split(",") if part.strip())


def _parse_bool(text: str) -> bool:
    lower = text.lower()
    if lower not in ("true", "false"):
        raise ValueError("expected true or false")
    return lower == "true"


def _parse_int(setting: Setting, text: str) -> int:
    assert setting.low is not None, f"{setting.key} has no lower bound"
    assert setting.high is not None, f"{setting.key} has no upper bound"
    expected = f"expected a whole number from {setting.low} to {setting.high}"
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise ValueError(expected)
    value = int(text)
    if not setting.low <= value <= setting.high:
        raise ValueError(expected)
    return value


def _parse_float(setting: Setting, text: str) -> float:
    assert setting.low is not None, f"{setting.key} has no lower bound"
    assert setting.high is not None, f"{setting.key} has no upper bound"
    expected = f"expected a number from {setting.low} to {setting.high}"
    if not text.replace(".", "", 1).isdigit() or not text.isascii():
        raise ValueError(expected)
    value = float(text)
    if not setting.low <= value <= setting.high:
        raise ValueError(expected)
    return value


def _parse_choice(choices: Sequence[str], text: str) -> str:
    for choice in choices:
        if choice.lower() == text.lower():
            return choice
    raise ValueError(f"expected one of {', '.join(choices)}")
