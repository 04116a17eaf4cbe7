"""No setting without a row, and none that the code does not read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import geminga
from geminga.config.config import Config
from geminga.config.values import settings
from tests.server.settings.admin_rows import ADMIN_ROWS
from tests.server.settings.tables import ROOM_ROWS, every_key

PACKAGE = Path(geminga.__file__).parent
READERS = [
    path
    for path in PACKAGE.rglob("*.py")
    if "config" not in path.relative_to(PACKAGE).parts or path.name == "memory_budget.py"
]
"""All modules that act on a setting. Those of the configuration only parse and check it, except for the one
that divides the memory.
"""
WITHOUT_ROW = {
    "ledgerDirectories": "is in no room's settings; test_served_settings.py, test_bookie_opening.py"
}


def test_every_key_has_a_row() -> None:
    keys = {row.key for row in (*ROOM_ROWS, *ADMIN_ROWS)}
    assert settings().keys() - keys == WITHOUT_ROW.keys()
    assert keys <= settings().keys()
    assert every_key(Path("/")).keys() == settings().keys()


@pytest.mark.parametrize("rows", [ROOM_ROWS, ADMIN_ROWS], ids=["rooms", "admin"])
def test_a_table_has_a_key_once(rows: list[object]) -> None:
    keys = [row.key for row in rows]  # type: ignore[attr-defined]
    assert len(set(keys)) == len(keys)


def read_attributes(source: str) -> Iterator[str]:
    """Names read from a variable, a parameter or an attribute that is called `config`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if name in ("config", "_config"):
                yield node.attr


def test_every_setting_is_read() -> None:
    """A setting that no code reads would be dead without a notice, unlike a key that is not served."""
    read = {name for path in READERS for name in read_attributes(path.read_text())}
    assert set(Config.__struct_fields__) - read == set()


def test_only_code_that_reads_an_attribute_counts() -> None:
    source = '''
def f(config, other):
    """config.in_text"""
    # config.in_comment
    config.assigned = replace(config, keyword=1)
    return [config.plain, self._config.private, view.config.of_view.more, other.foreign]
'''
    assert set(read_attributes(source)) == {"plain", "private", "of_view"}
