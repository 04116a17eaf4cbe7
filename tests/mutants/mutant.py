"""A mutant: one small bug, planted in the source as text, and the tests that fail with it.

Each table (`broker.py`, `tracker.py`, ...) has `MUTANTS: tuple[Mutant, ...]`. `python -m tests.mutants`
plants them one by one; `test_mutants_fit.py` keeps the tables in step with the source in every run.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TABLES = (
    "admin",
    "bookie",
    "broker",
    "chaos",
    "clock",
    "events",
    "scenarios",
    "cli",
    "managed_ledger",
    "pipeline",
    "pipeline_arrow",
    "server",
    "snapshots",
    "tracker",
    "wire",
)
"""Modules of this package; one that does not exist is left out."""


class Mutant(NamedTuple):
    name: str
    """Words in kebab case, of no other mutant."""
    path: str
    """The mutated file, from the project's root."""
    old: str
    """Occurs exactly once in that file."""
    new: str
    tests: tuple[str, ...]
    """Ids for pytest, or files, from the project's root. At least one of them fails."""
    untested: str
    """One line: what no test noticed before."""


class DoesNotFit(Exception):
    """The text to be replaced is not in the file, or not exactly once."""


def all_mutants() -> tuple[Mutant, ...]:
    """Those of every table."""
    modules = [f"tests.mutants.{table}" for table in TABLES]
    return tuple(
        mutant
        for module in modules
        if find_spec(module)
        for mutant in importlib.import_module(module).MUTANTS
    )


def mutated(mutant: Mutant, root: Path) -> str:
    """The text of the file under this root with the bug in it. DoesNotFit."""
    path = root / mutant.path
    source = path.read_text(encoding="utf-8") if path.is_file() else ""
    if (count := source.count(mutant.old)) != 1:
        raise DoesNotFit(f"the text to be replaced occurs {count} times in {mutant.path}")
    return source.replace(mutant.old, mutant.new)
