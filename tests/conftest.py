"""What all tests share: budgets of property tests, and how parallel workers divide the tests."""

from __future__ import annotations

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which worker runs which tests; see `tests/distribution.py`."""
    from tests.distribution import FilesAndSpark

    return FilesAndSpark(config, log)
