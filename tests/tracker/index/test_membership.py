"""The set of positions that wait, above all while a ledger is kept open for what follows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from geminga.tracker.index.membership import Membership


def test_what_comes_back_to_the_open_ledger_is_not_added_twice() -> None:
    """As when the clock has stepped back: entries beyond the last run wait again, then are read again."""
    members = Membership()
    members.keep_open(1)
    assert members.add_entries([0, 1, 2])
    assert members.add_all({1: BitMap([2, 7, 8, 9])}) == 3
    assert members.count == 6
    assert not members.begin_run(8), "it is a member"
    assert not members.add_entries([9, 10]), "one of them is a member"
    assert members.count == 6
    assert members.begin_run(10)
    assert members.count == 7
    assert list(members.positions_from(0, 0)) == [(1, n) for n in (0, 1, 2, 7, 8, 9, 10)]


def test_entries_far_beyond_the_others_are_members_all_the_same() -> None:
    """The bound of the open ledger follows what is added in bulk, not what was there before."""
    members = Membership()
    members.keep_open(1)
    assert members.add_all({1: BitMap([100])}) == 1
    assert members.add_all({1: BitMap([3])}) == 1
    assert not members.begin_run(100)
    assert members.begin_run(50)
    assert not members.begin_run(50)
    assert members.count == 3


ENTRIES = st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True).map(sorted)
STEPS = st.one_of(
    st.tuples(st.just("keep_open"), st.integers(1, 2)),
    st.tuples(st.just("begin_run"), st.integers(0, 12)),
    st.tuples(st.just("add_entries"), ENTRIES),
    st.tuples(st.just("add_all"), st.dictionaries(st.integers(1, 2), ENTRIES)),
    st.tuples(st.just("discard"), st.tuples(st.integers(1, 2), st.integers(0, 12))),
    st.tuples(st.just("discard_up_to"), st.tuples(st.integers(1, 2), st.integers(-1, 12))),
)


@given(st.lists(STEPS, max_size=30))
def test_any_steps_are_those_of_a_plain_set(steps: list[tuple[str, object]]) -> None:
    members = Membership()
    expected: set[tuple[int, int]] = set()
    members.keep_open(open_ledger := 1)
    for step, argument in steps:
        match step, argument:
            case "keep_open", int(open_ledger):
                members.keep_open(open_ledger)
            case "begin_run", int(entry_id):
                assert members.begin_run(entry_id) == ((open_ledger, entry_id) not in expected)
                expected.add((open_ledger, entry_id))
            case "add_entries", list(entry_ids):
                places = {(open_ledger, entry_id) for entry_id in entry_ids}
                if members.add_entries(entry_ids):  # else it may be that some are members
                    assert not places & expected
                    expected |= places
            case "add_all", dict(by_ledger):
                places = {(ledger_id, e) for ledger_id, entry_ids in by_ledger.items() for e in entry_ids}
                added = members.add_all({n: BitMap(entry_ids) for n, entry_ids in by_ledger.items()})
                assert added == len(places - expected)
                expected |= places
            case "discard", (int(ledger_id), int(entry_id)):
                assert members.discard(ledger_id, entry_id) == ((ledger_id, entry_id) in expected)
                expected.discard((ledger_id, entry_id))
            case "discard_up_to", (int(ledger_id), int(entry_id)):
                gone = {place for place in expected if place <= (ledger_id, entry_id)}
                assert members.discard_up_to(ledger_id, entry_id) == len(gone)
                expected -= gone
        assert members.count == len(expected)
    assert list(members.positions_from(0, 0)) == sorted(expected)
