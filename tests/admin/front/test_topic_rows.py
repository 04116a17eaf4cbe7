"""Which topics a reader sees: searched, sorted, and never too many."""

from __future__ import annotations

import pytest

from geminga.admin.front.topic_rows import (
    ROWS_MAX,
    SEARCH_CHARS_MAX,
    Chosen,
    Query,
    TopicRow,
    TopicRows,
    query_of,
)
from geminga.admin.http.router import BadRequest

DEFAULT = "persistent://public/default"


def rows(*found: TopicRow) -> TopicRows:
    kept = TopicRows()
    for row in found:
        kept.add(row)
    return kept


def row(name: str, backlog: float = 0, unacked: float = 0, producers: float = 0) -> TopicRow:
    return TopicRow(name, 0.5, 0.25, backlog, 0, unacked, producers, 0, 0)


def names(chosen: Chosen) -> list[str]:
    return [row.name.rpartition("/")[2] for row in chosen.rows]


FEW = rows(
    row(f"{DEFAULT}/b", 5, producers=1),
    row(f"{DEFAULT}/A", 7),
    row("persistent://public/default2/c", 5, unacked=3, producers=9),
    row(f"{DEFAULT}/d", 0),
)


async def test_figures_come_back_as_they_were() -> None:
    found = (await FEW.chosen(Query(search="default/b"))).rows[0]
    assert found == row(f"{DEFAULT}/b", 5, producers=1)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (Query(), ["A", "c", "b", "d"]),
        (Query(sort="producers"), ["c", "b", "A", "d"]),
        (Query(sort="topic"), ["A", "b", "d", "c"]),
        (Query(limit=2), ["A", "c"]),
        (Query(search="default/a"), ["A"]),
        (Query(namespace="public/default"), ["A", "b", "d"]),
        (Query(namespace="public/default", sort="topic", limit=1, search="d"), ["A"]),
        (Query(search="nothing"), []),
    ],
)
async def test_what_a_query_chooses(query: Query, wanted: list[str]) -> None:
    assert names(await FEW.chosen(query)) == wanted


async def test_the_largest_of_thousands_are_found_wherever_they_are() -> None:
    many = rows(*(row(f"{DEFAULT}/t{number}", number * 7919 % 5003) for number in range(5003)))
    chosen = await many.chosen(Query(limit=3))
    assert [found.backlog for found in chosen.rows] == [5002, 5001, 5000]
    assert chosen.matching == 5003
    assert (await many.chosen(Query(search="t12"))).matching == 111


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, Query()),
        (
            {"sort": "stored", "q": " Order ", "namespace": "a/b", "limit": "50"},
            Query("stored", "order", "a/b", 50),
        ),
        ({"sort": "", "limit": ""}, Query()),
        ({"limit": str(ROWS_MAX)}, Query(limit=ROWS_MAX)),
        ({"q": "x" * 5000}, Query(search="x" * SEARCH_CHARS_MAX)),
    ],
)
def test_a_query_is_read_and_bounded(given: dict[str, str], wanted: Query) -> None:
    assert query_of(given) == wanted


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"sort": "bogus"}, "sort: expected one of topic, in, out, "),
        *(
            ({"limit": limit}, f"limit: expected a number of rows from 1 to {ROWS_MAX}")
            for limit in ("x", "0", "-1", str(ROWS_MAX + 1), "9" * 5000, "²")
        ),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(given: dict[str, str], allowed: str) -> None:
    with pytest.raises(BadRequest, match=allowed):
        query_of(given)


def test_a_query_as_a_link() -> None:
    assert Query().target() == "/#topics"
    assert Query("in", 'a"&b', limit=50).target() == "/?sort=in&q=a%22%26b&limit=50#topics"
