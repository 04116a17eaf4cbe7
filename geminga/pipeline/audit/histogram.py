"""How late deliveries were, as counts: exact to the millisecond up to 65 s, to one part in 32,768 beyond."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

_EXACT_BITS: Final = 16
_STEPS: Final = 1 << (_EXACT_BITS - 1)
"""From 2**16 on every power of two is cut into as many steps."""
STEP_EXACT_MAX: Final = (1 << _EXACT_BITS) - 1
"""Up to here a step is one millisecond."""


def steps_of(values_ms: Integers) -> Integers:
    """The step that each value falls into; negative values count as 0."""
    values = np.maximum(values_ms, 0)
    large = values > STEP_EXACT_MAX
    if not large.any():
        return values
    over = np.zeros(len(values), np.int64)
    # frexp is exact here: a double holds 53 bits, and values stay far below that.
    over[large] = np.frexp(values[large].astype(np.float64))[1] - _EXACT_BITS
    return over * _STEPS + (values >> over)


def least_of(steps: Integers) -> Integers:
    """The least value of each step."""
    over = np.maximum(steps // _STEPS - 1, 0)
    least: Integers = (steps - over * _STEPS) << over
    return least


def percentiles(steps: Integers, counts: Integers, shares: tuple[float, ...]) -> list[int]:
    """The least value that at least each share of all values does not exceed (nearest rank). `steps` in any
    order, each any number of times; at least one.
    """
    order = np.argsort(steps, kind="stable")
    reached = np.cumsum(counts[order])
    ranks = [max(1, -int(-share * reached[-1] // 1)) for share in shares]
    at = np.searchsorted(reached, ranks)
    return [int(value) for value in least_of(steps[order][at])]
