"""Whether messages came in the order of the topic.

Within a *lane* (a consumer of a subscription, a key of it, or all of it: `AuditSettings.order`) each first
delivery without a delay has to be of a later position than all before it; one that is not is *reordered*.
Each piece of the logs is looked at by itself; what it says of each lane (first and last position and time)
shows whether a lane goes back from one piece to the next, and only then the piece is read again with the
position to begin from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from geminga.pipeline.audit.events import Events, Integers, Mask, constant, digest_of, is_constant
from geminga.pipeline.audit.packing import (
    CODE_BITS,
    CODE_MASK,
    begins_of,
    bitmaps,
    pack,
    packed,
    stable_order,
)
from geminga.pipeline.audit.sessions import Chosen
from geminga.pipeline.audit.settings import MINUTE_MS, Facts

_LANES_ONE_BY_ONE_MAX: Final = 1_000
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
    some: Chosen,
    sessions: Integers,
    facts: Facts,
    piece: int,
    resumes: Sequence[Resume] = (),
) -> None:
    """Add what first deliveries without a delay, of one piece, say of their lanes (`lanes`), and what is out
    of order among them (`reordered`). At least one.

    With `resumes` only what is out of order by them, and was not found without.
    """
    events = some.events
    numbers, digests = _lanes(events, facts)
    if not len(digests):
        return
    for topic, subscription, rows in _pairs(events):
        names = events.topics[topic], events.subscriptions[subscription]
        columns = (events.ledger_id, some.codes, numbers, sessions, events.time_ms)
        ledgers, codes, lanes, inside, times_ms = (column[rows] for column in columns)
        found = _Lanes(ledgers, codes, lanes, inside, digests)
        reordered = found.reordered()
        if not resumes:
            _add_reordered(add, names, ledgers, codes, times_ms, reordered)
            add("lanes", *names, count=found.count, data=found.table(times_ms, piece))
        for resume in resumes:
            if (resume.topic, resume.subscription) == names:
                late = np.setdiff1d(found.before(resume), reordered)
                _add_reordered(add, names, ledgers, codes, times_ms, late)


def _pairs(events: Events) -> Iterator[tuple[int, int, Any]]:
    """Topic, subscription, and what chooses their events, in order."""
    keys, packing = pack([events.topic, events.subscription])
    if is_constant(keys):
        yield int(events.topic[0]), int(events.subscription[0]), slice(None)
        return
    order = stable_order(keys)
    begins = begins_of(keys[order])
    topics, subscriptions = (column.tolist() for column in packing.unpack(keys[order[begins]]))
    bounds = pairwise([*begins.tolist(), len(order)])
    for topic, subscription, (begin, end) in zip(topics, subscriptions, bounds, strict=True):
        yield topic, subscription, order[begin:end]


def _lanes(events: Events, facts: Facts) -> tuple[Integers, Integers]:
    """The number of each event's lane, and the digest of each number (of -1 too); no numbers if the
    logs do not say it of any.
    """
    order = facts.settings.order
    if order == "subscription":
        return constant(0, events.length), np.zeros(1, np.int64)
    if order == "key":
        named = bool((events.key >= 0).any())
        return events.key, np.array([*events.keys, 0] if named else [], np.int64)
    return events.client, np.array([*(digest_of(name) for name in events.clients), 0], np.int64)


def _add_reordered(
    add: Callable[..., None],
    names: tuple[str, str],
    ledgers: Integers,
    codes: Integers,
    times_ms: Integers,
    rows: Integers,
) -> None:
    here = codes[rows]
    columns = (ledgers[rows], here >> CODE_BITS, times_ms[rows] // MINUTE_MS)
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
    """First deliveries of one subscription in one piece, in the order in which they came.

    `lanes` are indexes of `digests`.
    """

    def __init__(
        self, ledgers: Integers, codes: Integers, lanes: Integers, sessions: Integers, digests: Integers
    ) -> None:
        self._ledgers, self._codes = ledgers, codes
        positions, self._packing = pack([ledgers, codes])
        groups, packing = pack([lanes, sessions])
        self._order: Any = slice(None)
        """What puts rows into the order of lanes: slices, or their numbers."""
        self._begins = np.zeros(1, np.int64)
        if not is_constant(groups):
            self._order = stable_order(groups)
            groups = groups[self._order]
            self._begins = begins_of(groups)
        self._positions = positions[self._order]
        numbers, self._session_of = packing.unpack(groups[self._begins])
        self._lane_of = digests[numbers]

    @property
    def count(self) -> int:
        return len(self._begins)

    def reordered(self) -> Integers:
        """The rows that are out of order."""
        return self._rows(self._positions < _highest(self._positions, self._begins))

    def _rows(self, in_order: Mask) -> Integers:
        rows = np.flatnonzero(in_order)
        return rows if isinstance(self._order, slice) else self._order[rows]

    def table(self, times_ms: Integers, piece: int) -> bytes:
        """The piece's number, and a row of `LANE_COLUMNS` for each lane in each session."""
        times = times_ms[self._order]
        table = np.column_stack(
            [
                self._lane_of,
                self._session_of,
                *self._packing.unpack(np.minimum.reduceat(self._positions, self._begins)),
                *self._packing.unpack(np.maximum.reduceat(self._positions, self._begins)),
                np.minimum.reduceat(times, self._begins),
                np.maximum.reduceat(times, self._begins),
            ]
        )
        return np.append(np.int64(piece), table.reshape(-1)).astype("<i8").tobytes()

    def before(self, resume: Resume) -> Integers:
        """The rows that are before the position that their lane had reached."""
        columns = (resume.lanes, resume.sessions, resume.ledgers, resume.codes)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        reached = {(lane, session): (ledger, code) for lane, session, ledger, code in rows}
        lanes = zip(self._lane_of.tolist(), self._session_of.tolist(), strict=True)
        limits = np.array([reached.get(lane, (-1, -1)) for lane in lanes], np.int64).reshape(-1, 2)
        lengths = np.diff(np.append(self._begins, len(self._positions)))
        ledgers, codes = (np.repeat(column, lengths) for column in limits.T)
        there, codes_there = self._ledgers[self._order], self._codes[self._order]
        return self._rows((there < ledgers) | ((there == ledgers) & (codes_there < codes)))


def _highest(positions: Integers, begins: Integers) -> Integers:
    """The highest position so far of each lane; lanes stand one after the other."""
    if len(begins) <= _LANES_ONE_BY_ONE_MAX:
        reached = np.empty(len(positions), positions.dtype)
        for begin, end in pairwise([*begins.tolist(), len(positions)]):
            np.maximum.accumulate(positions[begin:end], out=reached[begin:end])
        return reached
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
    begins = begins_of(groups[order])
    reached = _highest(high, begins)
    is_first = np.zeros(len(order), bool)
    is_first[begins] = True
    before = np.roll(reached, 1)
    # Pieces that overlap in time have no known order: compare a piece only with those that ended before it.
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
