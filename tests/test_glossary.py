"""docs/glossary.md: its terms exist in the code, and clean texts stay free of the words it rules out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"
CELL_CHARS_MAX = 120
CODE = re.compile(r"`(\w+)` in `([\w/]+\.py)`")
WORDS_NOT_TO_USE = re.compile(r"\b(?:who|whoever|nobody|somebody|anew)\b", re.IGNORECASE)
INLINE_CODE = re.compile(r"`[^`]*`")
PAGES = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")}
    - {GLOSSARY, ROOT / "docs" / "moves.md"}
)


def rows() -> list[list[str]]:
    """The cells of each row of the tables of terms."""
    terms, _, _ = GLOSSARY.read_text().partition("## Words not to use")
    lines = re.findall(r"^\| (.*) \|$", terms, re.MULTILINE)
    return [line.split(" | ") for line in lines if not line.startswith(("term |", "---"))]


def found_in(path: Path) -> list[str]:
    """Lines with such a word; a page's inline code may have one."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WORDS_NOT_TO_USE.search(INLINE_CODE.sub("", line) if path.suffix == ".md" else line)
    ]


def test_each_term_is_explained_once_in_cells_that_fit_a_screen() -> None:
    terms = [row[0] for row in rows()]
    assert len(terms) == len(set(terms)) > 50
    assert not [cell for row in rows() for cell in row if len(cell) > CELL_CHARS_MAX]
    assert all(row[1].endswith(".") for row in rows())


def test_what_it_names_is_defined_where_it_says() -> None:
    named = CODE.findall(GLOSSARY.read_text())
    assert len(named) > 40
    assert not [
        (name, path)
        for name, path in named
        if not any(
            isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
            for node in ast.parse((ROOT / "geminga" / path).read_text()).body
        )
    ]


def test_pages_do_without_the_words_not_to_use() -> None:
    assert len(PAGES) > 25
    assert not [line for path in PAGES for line in found_in(path)]


def test_clean_rooms_stay_clean() -> None:
    modules = sorted((ROOT / "geminga").rglob("*.py"))
    assert len(modules) > 80
    assert not [line for path in modules for line in found_in(path)]


def test_the_rule_finds_what_it_is_for(tmp_path: Path) -> None:
    found = [
        bool(WORDS_NOT_TO_USE.search(text)) for text in ("Nobody waits.", "made anew", "_open_anew", "whole")
    ]
    assert found == [True, True, False, False]
