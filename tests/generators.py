"""Generators that return something, run to their end."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finished(slices: Generator[object, None, T]) -> T:
    """What it returns."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: T = end.value
            return found
