"""The tables of mutants follow the source and the tests: none of them names what is no longer there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, DoesNotFit, Mutant, all_mutants, mutated

MUTANTS = all_mutants()
each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])


@cache
def defined_in(path: Path) -> frozenset[str]:
    """`test_x` and `TestY::test_x` of this file."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else []
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for function in (node, *inner):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + function.name)
        if prefix:
            found.add(prefix.removesuffix("::"))
    return frozenset(found)


def test_no_two_mutants_have_one_name():
    names = [mutant.name for mutant in MUTANTS]
    assert sorted(set(names)) == sorted(names)
    assert [name for name in names if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)] == []


@each_mutant
def test_the_text_that_a_mutant_replaces_is_there_once(mutant: Mutant):
    assert mutated(mutant, ROOT) != (ROOT / mutant.path).read_text()


@each_mutant
def test_a_mutant_is_a_program(mutant: Mutant):
    before = ast.dump(ast.parse((ROOT / mutant.path).read_text()))
    assert ast.dump(ast.parse(mutated(mutant, ROOT))) != before


@each_mutant
def test_the_tests_that_a_mutant_fails_are_there(mutant: Mutant):
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file()
        assert not name or name.partition("[")[0] in defined_in(ROOT / file)


@pytest.mark.parametrize("source", ["", "b = 1\n", "a = 1\na = 1\n"], ids=["no file", "none", "two"])
def test_text_that_is_not_there_exactly_once_does_not_fit(tmp_path: Path, source: str):
    if source:
        (tmp_path / "module.py").write_text(source)
    with pytest.raises(DoesNotFit):
        mutated(Mutant("a-bug", "module.py", "a = 1", "a = 2", ("test_module.py",), "nothing"), tmp_path)
