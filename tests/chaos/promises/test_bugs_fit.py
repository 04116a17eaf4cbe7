"""The bugs of the campaign follow the source, and name scenarios that there are."""

from __future__ import annotations

import ast

import pytest

from geminga.cli.chaos.shipped.scenarios import names
from tests.chaos.promises.bugs import BUGS, Bug
from tests.mutants.mutant import ROOT, mutated


def test_each_bug_has_a_name_of_its_own() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 40
    assert {bug.scenario for bug in BUGS} <= set(names())


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_fits_the_source_and_is_a_program(bug: Bug) -> None:
    before = ast.dump(ast.parse((ROOT / bug.path).read_text()))
    assert ast.dump(ast.parse(mutated(bug.mutant, ROOT))) != before
