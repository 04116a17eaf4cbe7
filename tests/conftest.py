"""What all tests share: budgets of property tests, and how parallel workers divide the tests."""

from __future__ import annotations

import gc
import signal
from typing import Any

import pytest
from hypothesis import settings

from tests.budget import IS_NIGHT

settings.register_profile("day", derandomize=True, database=None, deadline=None)
settings.register_profile("night", deadline=None, max_examples=5000)
settings.load_profile("night" if IS_NIGHT else "day")

# A shell starts what runs in the background deaf to Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_teardown() -> None:
    """What a broker in the test's own process does to the garbage collector ends with the test.

    Hypothesis asks who refers to a source of random numbers before it registers it. The collector does not
    know of those that are set aside, and a warning in whatever test comes next was the consequence.
    """
    gc.unfreeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which worker runs which tests; see `tests/distribution.py`."""
    from tests.distribution import FilesAndSpark

    return FilesAndSpark(config, log)
