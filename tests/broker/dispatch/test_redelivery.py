"""The redelivery set against a plain sorted list, and the counts."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from geminga.broker.dispatch.redelivery import RedeliveryCounts, RedeliverySet
from geminga.position import LATEST, Position

places = st.tuples(st.integers(1, 3), st.integers(0, 9))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), places, st.integers(0, 4)),
            st.tuples(st.just("add_all"), places, st.integers(0, 4)),
            st.tuples(st.just("discard"), places, st.just(0)),
            st.tuples(st.just("up_to"), places, st.just(0)),
        ),
        max_size=60,
    )
)
def test_it_is_a_sorted_set_that_knows_its_slots(steps: list[tuple[str, tuple[int, int], int]]) -> None:
    waiting = RedeliverySet()
    model: dict[tuple[int, int], int] = {}
    for what, place, slot in steps:
        additions = waiting.additions
        if what == "add":
            waiting.add(*place, slot)
            assert (waiting.additions > additions) is (place not in model)
            model[place] = model.get(place) or slot
        elif what == "add_all":
            column = [(place[0] + n // 2, place[1] + 2 * n) for n in range(slot)]
            new = [p for p in column if p not in model]
            waiting.add_all(array("Q", [ledger_id << 32 | entry_id for ledger_id, entry_id in new]))
            assert waiting.additions == additions + len(new)
            model |= dict.fromkeys(new, 0)
        elif what == "discard":
            waiting.discard(*place)
            model.pop(place, None)
        else:
            waiting.remove_up_to(Position(*place))
            model = {p: s for p, s in model.items() if p > place}
        assert (len(waiting), bool(waiting)) == (len(model), bool(model))
        assert waiting.first(100) == sorted(model)
        assert waiting.first(2) == sorted(model)[:2]
        assert waiting.select(3, lambda s: s % 2 == 0) == [p for p in sorted(model) if model[p] % 2 == 0][:3]
        assert {s for s in range(1, 5) if waiting.holds_slot(s)} == set(model.values()) - {0}
        found = {p for p in ((n, e) for n in range(1, 6) for e in range(20)) if p in waiting}
        assert found == set(model)
        assert [(2, e) for e in waiting.of_ledger(2)] == sorted(p for p in model if p[0] == 2)
    waiting.remove_up_to(LATEST)
    assert not waiting.first(1)
    assert not any(waiting.holds_slot(s) for s in range(5))


def test_clear() -> None:
    waiting = RedeliverySet()
    waiting.add(1, 1, 7)
    waiting.clear()
    assert (len(waiting), waiting.holds_slot(7), waiting.first(1)) == (0, False, [])


def test_counts() -> None:
    counts = RedeliveryCounts()
    counts.forget([(1, 1)])
    for place in [(1, 1), (1, 2), (1, 2), (2, 0)]:
        counts.increment(*place)
    assert counts.counts == {(1, 1): 1, (1, 2): 2, (2, 0): 1}
    counts.forget([(1, 1), (9, 9)])
    counts.forget_up_to(Position(1, 2))
    assert counts.counts == {(2, 0): 1}
