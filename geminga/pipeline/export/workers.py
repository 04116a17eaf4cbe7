"""Where the work of an export or a replay is done: in this process, or wherever another of these does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from geminga.clock import RealClock

S = TypeVar("S")
T = TypeVar("T")
Progress = Callable[[str], None]
PROGRESS_SECONDS: Final = 2.0


class Workers(Protocol):
    """What runs pieces of work side by side."""

    def side_by_side(self) -> int:
        """How many pieces run at once, at most."""
        ...

    def run(
        self, what: str, items: Sequence[S], work: Callable[[S], T], *, sizes: Sequence[int] | None = None
    ) -> list[T]:
        """What `work` makes of each item, in no order. Items, work and results have to be picklable and
        small: they say what to read and what was written.

        `what` is said of how far it is; `sizes`: of what each item reads, in bytes, if it may be so little
        that it is not worth sending. Raises what `work` raises, in its words.
        """
        ...


class Here:
    """One piece after the other, in this process."""

    def __init__(self, progress: Progress = lambda text: None) -> None:
        self._progress: Final = progress

    def side_by_side(self) -> int:
        return 1

    def run(
        self, what: str, items: Sequence[S], work: Callable[[S], T], *, sizes: Sequence[int] | None = None
    ) -> list[T]:
        found: list[T] = []
        clock = RealClock()
        told_s = clock.monotonic_s()
        for item in items:
            found.append(work(item))
            if clock.monotonic_s() >= told_s + PROGRESS_SECONDS:
                self._progress(f"{what}: {len(found)} of {len(items)} parts")
                told_s = clock.monotonic_s()
        return found
