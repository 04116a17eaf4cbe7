"""docs/settings.md names every setting, and its default."""

from __future__ import annotations

import re
from pathlib import Path

from geminga.config.config import Config
from geminga.config.values import settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset | tuple):
        return ",".join(sorted(value))
    if value == -1:
        return ""
    return str(value).removeprefix("org.apache.pulsar.broker.delayed.")


def test_the_table_has_every_key_with_its_default() -> None:
    table = re.findall(r"^\| `(\w+)` \| (.*?) *\|", PAGE.read_text(), re.MULTILINE)
    defaults = {key: shown(getattr(Config(), setting.attribute)) for key, setting in settings().items()}
    assert dict(table) == defaults
    assert len(table) == len(defaults), "a key stands there twice"
