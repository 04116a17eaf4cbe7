"""Scenarios by name or by file."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from geminga.cli.arguments.guesses import alike
from geminga.cli.chaos.checking.scenario import InvalidScenario, Scenario, parse_scenario


def names() -> list[str]:
    """Of those that are shipped."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in files(__package__ or __name__).iterdir()
        if entry.name.endswith(".toml")
    )


def text_of(name: str) -> str:
    """The text of a shipped scenario, or of the file with this name. Raises `InvalidScenario`."""
    if name in names():
        return files(__package__ or __name__).joinpath(f"{name}.toml").read_text("utf-8")
    try:
        return Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "this is no UTF-8 text"
        known = ", ".join(names())
        raise InvalidScenario(
            f"{name}: {reason}; write a file's name, or one of {known}.{alike(name, names())}"
        ) from None


def scenario(name: str) -> Scenario:
    """Raises `InvalidScenario`."""
    shown = os.fsencode(Path(name).name).decode("utf-8", "replace")
    return parse_scenario(text_of(name), shown.removesuffix(".toml"))
