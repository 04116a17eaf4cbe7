"""What all tests share: budgets of property tests, and which tests run in one worker."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

from tests.budget import IS_NIGHT

settings.register_profile("day", derandomize=True, database=None, deadline=None)
settings.register_profile("night", deadline=None, max_examples=5000)
settings.load_profile("night" if IS_NIGHT else "day")

# A shell starts what runs in the background deaf to Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For workers in parallel (`--dist loadgroup`): a file stays whole, as its tests share a broker, and all
    tests that share the Spark session run in one worker: it takes ten seconds to start, and half a gigabyte.
    """
    for item in items:
        on_spark = "spark" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("spark" if on_spark else item.nodeid.split("::")[0]))
