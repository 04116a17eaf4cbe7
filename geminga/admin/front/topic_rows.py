"""All topics of one look, by columns, and which of them a reader wants to see."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from heapq import nlargest, nsmallest
from typing import Final, NamedTuple
from urllib.parse import urlencode

from geminga.admin.http.router import BadRequest
from geminga.broker.flow.slices import Pace

ROWS: Final = 20
ROWS_MAX: Final = 200
"""Rows that one page shows, at most."""
TOPICS_MAX: Final = 100_000
"""Topics that are kept for searching and sorting, 80 bytes each; further ones are only counted."""
SEARCH_CHARS_MAX: Final = 200
AT_ONCE: Final = 1000
"""Topics that are looked through between two checkpoints: about a millisecond."""


class TopicRow(NamedTuple):
    """One topic. Rates are messages per second."""

    name: str
    rate_in: float
    rate_out: float
    backlog: float
    """Entries, of all its subscriptions together."""
    delayed: float
    unacked: float
    producers: float
    consumers: float
    storage_bytes: float
    unread: float = 0
    """Entries that were not read since the start: any may be delayed, too."""


SORTS: Final = {
    "topic": "name",
    "in": "rate_in",
    "out": "rate_out",
    "backlog": "backlog",
    "delayed": "delayed",
    "unacked": "unacked",
    "producers": "producers",
    "consumers": "consumers",
    "stored": "storage_bytes",
}
"""The values of the query parameter, and the fields that they sort by."""


class Query(NamedTuple):
    """What a reader wants to see."""

    sort: str = "backlog"
    search: str = ""
    """Part of a name, in small letters."""
    namespace: str = ""
    """`tenant/namespace`; empty: all."""
    limit: int = ROWS

    def target(self) -> str:
        """The path and query of the page for this; defaults are left out."""
        pairs = {
            key: value
            for key, value, default in zip(("sort", "q", "namespace", "limit"), self, Query(), strict=True)
            if value != default
        }
        return f"/?{urlencode(pairs)}#topics" if pairs else "/#topics"


def query_of(given: Mapping[str, str]) -> Query:
    """From a request. `BadRequest` says what is allowed."""
    sort, limit = given.get("sort") or "backlog", given.get("limit") or str(ROWS)
    if sort not in SORTS:
        raise BadRequest(f"sort: expected one of {', '.join(SORTS)}")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 9 and 1 <= int(limit) <= ROWS_MAX):
        raise BadRequest(f"limit: expected a number of rows from 1 to {ROWS_MAX}")
    return Query(
        sort,
        given.get("q", "").strip().lower()[:SEARCH_CHARS_MAX],
        given.get("namespace", "").strip()[:SEARCH_CHARS_MAX],
        int(limit),
    )


class Chosen(NamedTuple):
    rows: list[TopicRow]
    matching: int
    """How many topics fit the query; `rows` has the first ones of them."""


class TopicRows:
    """Numbers in arrays, since a hundred thousand tuples would cost the collector milliseconds."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._columns = tuple(array("d") for _ in TopicRow._fields[1:])

    def __len__(self) -> int:
        return len(self._names)

    def add(self, row: TopicRow) -> None:
        if len(self._names) < TOPICS_MAX:
            self._names.append(row.name)
            for column, value in zip(self._columns, row[1:], strict=True):
                column.append(value)

    def _row(self, at: int) -> TopicRow:
        return TopicRow(self._names[at], *(column[at] for column in self._columns))

    async def chosen(self, query: Query) -> Chosen:
        """The topics that a query wants, in its order; others run in between."""
        names, matching, best, pace = self._names, 0, list[int](), Pace()
        backlogs, unacked, rates = (
            self._columns[TopicRow._fields.index(field) - 1] for field in ("backlog", "unacked", "rate_in")
        )
        prefix = f"persistent://{query.namespace}/" if query.namespace else ""
        for start in range(0, len(names), AT_ONCE):
            some = [
                at
                for at in range(start, min(start + AT_ONCE, len(names)))
                if names[at].startswith(prefix) and query.search in names[at].lower()
            ]
            matching += len(some)
            if query.sort == "topic":
                best = nsmallest(query.limit, best + some, key=names.__getitem__)
            else:
                column = self._columns[TopicRow._fields.index(SORTS[query.sort]) - 1]
                key = [(column[at], backlogs[at], unacked[at], rates[at], -at) for at in best + some]
                best = [-found[-1] for found in nlargest(query.limit, key)]
            await pace.turn()
        return Chosen([self._row(at) for at in best], matching)
