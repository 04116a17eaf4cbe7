"""The campaign's world and scripts, for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from simulation.bookie.scripts import SCRIPTS
from simulation.bookie.world import BookieWorld, Script


@pytest.fixture(scope="session")
def new_world() -> Callable[..., BookieWorld]:
    return BookieWorld


@pytest.fixture(scope="session")
def scripts() -> Mapping[str, Script]:
    return SCRIPTS
