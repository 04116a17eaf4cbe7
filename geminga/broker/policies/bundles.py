"""Bundles: parts of a namespace's hash range. They are only shown, because one process serves all of them.
Pure.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from geminga.errors import InvalidName, PeerError
from geminga.names import NamespaceName

BUNDLES_DEFAULT: Final = 4
BUNDLES_MAX: Final = 1024
WHOLE_RANGE: Final = "0x00000000_0xffffffff"
_RANGE: Final = 2**32
_BUNDLE: Final = re.compile(r"0x([0-9a-fA-F]{1,8})_0x([0-9a-fA-F]{1,8})")


def bundle_boundaries(bundles: int) -> list[str]:
    """Where `bundles` equal parts of the 32-bit hash range begin, and where the last one ends."""
    size = _RANGE // bundles
    return [_text(size * index) for index in range(bundles)] + [_text(_RANGE - 1)]


def bundle_count(given: object) -> int:
    """The number of bundles in the policies of a new namespace. Raises `PeerError`."""
    count = given.get("numBundles", BUNDLES_DEFAULT) if isinstance(given, dict) else BUNDLES_DEFAULT
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= BUNDLES_MAX:
        raise PeerError(
            f"Invalid number of bundles. Number of bundles has to be in the range of (0, {BUNDLES_MAX}]."
        )
    return count or BUNDLES_DEFAULT


def bundle_range(name: NamespaceName, bundle: str, boundaries: Sequence[str]) -> tuple[int, int]:
    """The first hash of a bundle, and the first hash after it. Raises `InvalidName` if the namespace has no
    such bundle.
    """
    found = _BUNDLE.fullmatch(bundle)
    if found is None:
        raise InvalidName(f"Invalid bundle range: {bundle}")
    low, high = int(found[1], 16), int(found[2], 16)
    starts = [int(boundary, 16) for boundary in boundaries]
    if low not in starts[:-1]:
        raise InvalidName(f"Invalid lower boundary for bundle {name}/{bundle}")
    end = starts[starts.index(low) + 1]
    if high != end:
        raise InvalidName(
            f"Invalid upper boundary for bundle {name}/{bundle}. "
            f"Expected upper boundary of {name}/{_text(low)}_{_text(end)}"
        )
    return low, _RANGE if end == _RANGE - 1 else end


def bundle_of(topic: str, boundaries: Sequence[str]) -> str:
    """The bundle of a topic, given its full name."""
    starts = [int(boundary, 16) for boundary in boundaries]
    after = min(bisect_right(starts, topic_hash(topic)), len(starts) - 1)
    return f"{_text(starts[after - 1])}_{_text(starts[after])}"


def split(boundaries: Sequence[str], low: int, high: int) -> list[str]:
    """The boundaries after the bundle from `low` to `high` was split in halves. Raises `PeerError` if there
    are too many.
    """
    if len(boundaries) > BUNDLES_MAX:
        raise PeerError(f"a namespace has at most {BUNDLES_MAX} bundles")
    starts = sorted({*(int(boundary, 16) for boundary in boundaries), (low + high) // 2})
    return [_text(start) for start in starts]


def topic_hash(topic: str) -> int:
    """The hash of a topic in the range, given its full name."""
    return zlib.crc32(topic.encode())


def _text(start: int) -> str:
    return f"0x{start:08x}"
