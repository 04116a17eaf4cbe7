"""Collections of garbage: what has survived one is not walked over again, and garbage goes all the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from geminga.allocation import Collections


class Knot:
    """Garbage that only a collection finds, once it is let go."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collections() -> Iterator[Collections]:
    # Those of a broker that an earlier test ran in this process would set aside what is counted here.
    others = gc.callbacks[:]
    gc.callbacks.clear()
    collections = Collections()
    collections.begin()
    yield collections
    collections.close()
    gc.callbacks[:] = others


def test_a_collection_walks_over_what_has_come_since_the_last_one(collections: Collections) -> None:
    before = collections.whole
    for _ in range(5):
        # As many each time as an eleventh of all there is; only the last ones are left to be walked over.
        kept = [[number] for number in range(gc.get_freeze_count() // 11)]
        gc.collect()
        assert len(gc.get_objects()) < len(kept), "all of them are set aside"
    assert collections.whole == before


def test_garbage_among_what_was_set_aside_goes_with_a_whole_collection(collections: Collections) -> None:
    knots = [Knot() for _ in range(100)]
    gone = weakref.ref(knots[0])
    gc.collect()
    knots.clear()
    gc.collect()
    assert gone() is not None, "it was set aside"
    before = collections.whole
    kept = [[number] for number in range(2 * gc.get_freeze_count())]
    # One that came by itself meanwhile may have set some of them aside.
    for _ in range(3):
        gc.collect()
    assert collections.whole > before
    assert gone() is None
    assert len(kept) > 0


def test_it_begins_again_and_ends(collections: Collections) -> None:
    before = len(gc.callbacks)
    collections.begin()
    assert len(gc.callbacks) == before
    collections.close()
    collections.close()
    assert len(gc.callbacks) == before - 1
