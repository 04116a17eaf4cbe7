"""Whether messages came in the order of the topic.

Within a *lane* (a consumer of a subscription, a key of it, or all of it: `AuditSettings.order`) each first
delivery without a delay has to be of a later position than all before it; one that is not is *reordered*.
Each piece of the logs is looked at by itself; what it says of each lane (first and last position and time)
shows whether a lane goes back from one piece to the next, and only then the piece is read again with the
position to begin from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from geminga.pipeline.audit_events import Events, digest_of
from geminga.pipeline.audit_packing import CODE_BITS, CODE_MASK, bitmaps, pack, packed
from geminga.pipeline.audit_settings import MINUTE_MS, Facts

Integers = NDArray[np.int64]

LANE_COLUMNS: Final = 8
"""lane | session | first ledger | its first code | last ledger | its last code | first ms | last ms"""


class Resume(NamedTuple):
    """Where lanes of one subscription were before a piece: columns."""

    topic: str
    subscription: str
    piece: int
    lanes: Integers
    sessions: Integers
    ledgers: Integers
    codes: Integers

    def packed(self) -> bytes:
        columns = np.concatenate([self.lanes, self.sessions, self.ledgers, self.codes])
        return columns.astype("<i8").tobytes()

    @classmethod
    def unpacked(cls, topic: str, subscription: str, piece: int, data: bytes) -> Resume:
        return cls(topic, subscription, piece, *np.frombuffer(data, "<i8").reshape(4, -1))


def order_parts(
    add: Callable[..., None],
    events: Events,
    codes: Integers,
    rows: Integers,
    sessions: Integers,
    facts: Facts,
    piece: int,
    resumes: Sequence[Resume] = (),
) -> None:
    """Add what one piece says of its lanes (`lanes`) and what is out of order in it (`reordered`).

    With `resumes` only what is out of order by them, and was not found without.
    """
    for topic, subscription in _pairs(events, rows):
        mine = (events.topic[rows] == topic) & (events.subscription[rows] == subscription)
        names = events.topics[topic], events.subscriptions[subscription]
        chosen, inside = rows[mine], sessions[mine]
        lanes = _lanes(events, chosen, facts)
        if lanes is None:
            continue
        found = _Lanes(events.ledger_id[chosen], codes[chosen], lanes, inside)
        if not resumes:
            _add_reordered(add, names, events, codes, chosen[found.reordered])
            add("lanes", *names, count=found.count, data=found.table(events.time_ms[chosen], piece))
        for resume in resumes:
            if (resume.topic, resume.subscription) == names:
                late = found.before(resume) & ~found.reordered
                _add_reordered(add, names, events, codes, chosen[late])


def _pairs(events: Events, rows: Integers) -> list[tuple[int, int]]:
    width = max(len(events.subscriptions), 1)
    pairs = np.unique(events.topic[rows] * width + events.subscription[rows])
    return [(pair // width, pair % width) for pair in pairs.tolist()]


def _lanes(events: Events, rows: Integers, facts: Facts) -> Integers | None:
    """The lane of each row; None if the logs do not say it of any."""
    order = facts.settings.order
    if order == "subscription":
        return np.zeros(len(rows), np.int64)
    if order == "key":
        keys = events.key[rows]
        return keys if keys.any() else None
    digests = np.array([*(digest_of(name) for name in events.clients), 0], np.int64)
    lanes: Integers = digests[events.client[rows]]
    return lanes


def _add_reordered(
    add: Callable[..., None], names: tuple[str, str], events: Events, codes: Integers, rows: Integers
) -> None:
    here = codes[rows]
    columns = (events.ledger_id[rows], here >> CODE_BITS, events.time_ms[rows] // MINUTE_MS)
    for group in bitmaps(columns, here & CODE_MASK):
        ledger_id, slab, minute = group.of
        data = packed(group.codes)
        add(
            "reordered",
            *names,
            ledger_id=ledger_id,
            slab=slab,
            minute=minute,
            count=len(group.codes),
            data=data,
        )


class _Lanes:
    """First deliveries of one subscription in one piece, in the order in which they came."""

    def __init__(self, ledgers: Integers, codes: Integers, lanes: Integers, sessions: Integers) -> None:
        self._ledgers, self._codes = ledgers, codes
        self._lane_of, self._session_of = lanes, sessions
        positions, _ = pack([ledgers, codes])
        self._positions = positions
        groups, _ = pack([lanes, sessions])
        if len(groups) and groups.min() == groups.max():
            self._order = np.arange(len(groups))
            self._begins = np.zeros(1, np.int64)
            highest = np.maximum.accumulate(positions)
        else:
            self._order = np.argsort(groups, kind="stable")
            there = groups[self._order]
            self._begins = np.flatnonzero(np.diff(there, prepend=there[0] - 1))
            highest = _highest(positions[self._order], self._begins)
        self._reordered_in_order = positions[self._order] < highest
        self.reordered = np.zeros(len(groups), bool)
        self.reordered[self._order] = self._reordered_in_order

    @property
    def count(self) -> int:
        return len(self._begins)

    def table(self, times_ms: Integers, piece: int) -> bytes:
        """The piece's number, and a row of `LANE_COLUMNS` for each lane in each session."""
        there, times = self._positions[self._order], times_ms[self._order]
        least = np.minimum.reduceat(there, self._begins)
        greatest = np.maximum.reduceat(there, self._begins)
        by_position = np.argsort(self._positions, kind="stable")
        ranked = self._positions[by_position]
        low = by_position[np.searchsorted(ranked, least)]
        high = by_position[np.searchsorted(ranked, greatest)]
        first = self._order[self._begins]
        table = np.column_stack(
            [
                self._lane_of[first],
                self._session_of[first],
                self._ledgers[low],
                self._codes[low],
                self._ledgers[high],
                self._codes[high],
                np.minimum.reduceat(times, self._begins),
                np.maximum.reduceat(times, self._begins),
            ]
        )
        return np.append(np.int64(piece), table.reshape(-1)).astype("<i8").tobytes()

    def before(self, resume: Resume) -> NDArray[np.bool_]:
        """Which rows are before the place that their lane had reached."""
        columns = (resume.lanes, resume.sessions, resume.ledgers, resume.codes)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        reached = {(lane, session): (ledger, code) for lane, session, ledger, code in rows}
        first = self._order[self._begins]
        places = zip(self._lane_of[first].tolist(), self._session_of[first].tolist(), strict=True)
        limits = np.array([reached.get(place, (-1, -1)) for place in places], np.int64).reshape(-1, 2)
        lengths = np.diff(np.append(self._begins, len(self._order)))
        ledgers, codes = (np.repeat(column, lengths) for column in limits.T)
        there, codes_there = self._ledgers[self._order], self._codes[self._order]
        found = np.zeros(len(self._codes), bool)
        found[self._order] = (there < ledgers) | ((there == ledgers) & (codes_there < codes))
        return found


def _highest(positions: Integers, begins: Integers) -> Integers:
    """The highest position so far of each lane; lanes stand one after the other."""
    lengths = np.diff(np.append(begins, len(positions)))
    lane = np.repeat(np.arange(len(begins)), lengths)
    width = int(positions.max()).bit_length()
    if width + len(begins).bit_length() > 63:
        _, positions = np.unique(positions, return_inverse=True)
        positions = positions.astype(np.int64)
        width = int(positions.max()).bit_length()
    lifted = np.maximum.accumulate(positions | (lane << width))
    highest: Integers = lifted & ((1 << width) - 1)
    return highest


def resumes_of(topic: str, subscription: str, tables: Iterable[bytes]) -> list[Resume]:
    """Which pieces have to be read again, from the `lanes` of all pieces of one subscription."""
    rows = []
    for data in tables:
        table = np.frombuffer(data, "<i8")
        body = table[1:].reshape(-1, LANE_COLUMNS)
        rows.append(np.column_stack([body, np.full(len(body), table[0])]))
    if not rows:
        return []
    every = np.concatenate(rows)
    lane, session, low_ledger, low_code, high_ledger, high_code, first_ms, last_ms, piece = every.T
    order = np.lexsort((piece, first_ms, session, lane))
    positions, _ = pack([np.concatenate([low_ledger, high_ledger]), np.concatenate([low_code, high_code])])
    low, high = positions[: len(every)][order], positions[len(every) :][order]
    groups, _ = pack([lane, session])
    begins = np.flatnonzero(np.diff(groups[order], prepend=groups[order][0] - 1))
    reached = _highest(high, begins)
    is_first = np.zeros(len(order), bool)
    is_first[begins] = True
    before = np.roll(reached, 1)
    # Of pieces that overlap in time nobody can say which came first.
    ended = np.roll(_highest(last_ms[order] - last_ms.min(), begins), 1) + last_ms.min()
    conflicts = np.flatnonzero(~is_first & (low < before) & (first_ms[order] >= ended))
    high_ranks = np.argsort(high, kind="stable")
    at = high_ranks[np.searchsorted(high[high_ranks], before[conflicts])]
    found: list[Resume] = []
    pieces = piece[order][conflicts]
    for number in np.unique(pieces).tolist():
        mine = pieces == number
        rows_there, reach = order[conflicts[mine]], order[at[mine]]
        found.append(
            Resume(
                topic,
                subscription,
                number,
                lane[rows_there],
                session[rows_there],
                high_ledger[reach],
                high_code[reach],
            )
        )
    return found
