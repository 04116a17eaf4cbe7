"""What the tests of campaigns share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def silent() -> Iterator[None]:
    """No log record is made: a campaign's lives would make a hundred thousand, for no reader."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
