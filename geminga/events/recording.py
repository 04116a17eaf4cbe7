"""How a room tells what has happened. Light: rooms that record import nothing else of this package."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


class Record(Protocol):
    """Tells one event. From any thread; never blocks, and never raises for a disk."""

    def __call__(
        self,
        kind: str,
        *,
        topic: str = "",
        subscription: str = "",
        bucket: int = -1,
        text: str = "",
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> None:
        """`kind` is one of `kinds.KINDS`, `bucket` the ledger of a bucket, `counts` are those of the kind."""
        ...


def unrecorded(
    kind: str,
    *,
    topic: str = "",
    subscription: str = "",
    bucket: int = -1,
    text: str = "",
    counts: Mapping[str, int] = NO_COUNTS,
) -> None:
    """A `Record` that keeps nothing."""
