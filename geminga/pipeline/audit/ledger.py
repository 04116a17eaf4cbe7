"""All that the logs say of one ledger, put together: what is lost, came twice, or was never published."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
from pyroaring import BitMap

from geminga.pipeline.audit.acknowledged import Acknowledged
from geminga.pipeline.audit.order import resumes_of
from geminga.pipeline.audit.packing import packed
from geminga.pipeline.audit.partials import NO_LEDGER, PARTS, Parts
from geminga.pipeline.audit.sessions import RELEASED, session_ends
from geminga.pipeline.audit.settings import Control, Facts

ACKED_PARTS: Final = ("acked", "acked_messages")
FOUND: Final = PARTS
"""What comes out has the same columns. `published` and `pending` without a subscription are for those of
which the ledger has no delivery.
"""


class Part(NamedTuple):
    topic: str
    subscription: str
    ledger_id: int
    slab: int
    minute: int
    session: int
    client: str
    what: str
    events: int
    data: bytes

    @property
    def codes(self) -> BitMap:
        return BitMap.deserialize(self.data)


def parts_in(batch: pa.RecordBatch | pa.Table) -> list[Part]:
    columns = [batch[name].to_pylist() for name in PARTS.names]
    return [Part(*row) for row in zip(*columns, strict=True)]


def judged(parts: Iterable[Part], facts: Facts) -> list[pa.RecordBatch]:
    """What `judge` says of each ledger and slab, and of each topic without one."""
    groups: dict[tuple[str, int, int], list[Part]] = defaultdict(list)
    for part in parts:
        groups[part.topic, part.ledger_id, part.slab].append(part)
    return [judge(own, facts) for own in groups.values()]


def judge(parts: Iterable[Part], facts: Facts) -> pa.RecordBatch:
    """All parts of one topic, ledger and slab, in any order, as rows of `FOUND`.

    Parts without a ledger are handed on; `lanes` become `resume` where a piece has to be looked at again.
    """
    found = Parts()
    parts = list(parts)
    if not parts:
        return found.batch()
    if parts[0].ledger_id == NO_LEDGER:
        _hand_on(found, parts)
        return found.batch()
    topic, ledger_id, slab = parts[0].topic, parts[0].ledger_id, parts[0].slab
    published = _by_minute(part for part in parts if part.what == "published")
    pending = _by_minute(part for part in parts if part.what == "pending")
    for what, minutes in (("published", published), ("pending", pending)):
        for minute, codes in minutes.items():
            found.add(
                what,
                topic,
                ledger_id=ledger_id,
                slab=slab,
                minute=minute,
                count=len(codes),
                data=packed(codes),
            )
    by_subscription: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        if part.subscription:
            by_subscription[part.subscription].append(part)
    for own in by_subscription.values():
        _judge_subscription(found, own, published, pending, facts)
    return found.batch()


def _hand_on(found: Parts, parts: list[Part]) -> None:
    lanes: dict[tuple[str, str], list[bytes]] = defaultdict(list)
    for part in parts:
        if part.what == "lanes":
            lanes[part.topic, part.subscription].append(part.data)
        else:
            found.add(
                part.what,
                part.topic,
                part.subscription,
                minute=part.minute,
                count=part.events,
                data=part.data,
            )
    for (topic, subscription), tables in lanes.items():
        for resume in resumes_of(topic, subscription, tables):
            found.add(
                "resume",
                topic,
                subscription,
                session=resume.piece,
                count=len(resume.lanes),
                data=resume.packed(),
            )


def _by_minute(parts: Iterable[Part]) -> dict[int, BitMap]:
    minutes: dict[int, BitMap] = {}
    for part in parts:
        minutes[part.minute] = minutes.get(part.minute, BitMap()) | part.codes
    return minutes


def _judge_subscription(
    found: Parts,
    parts: list[Part],
    published: dict[int, BitMap],
    pending: dict[int, BitMap],
    facts: Facts,
) -> None:
    topic, subscription, ledger_id, slab = parts[0][:4]

    def add(what: str, minute: int, codes: BitMap, extra: int = 0) -> None:
        if codes or extra:
            found.add(
                what,
                topic,
                subscription,
                ledger_id=ledger_id,
                slab=slab,
                minute=minute,
                count=len(codes) + extra,
                data=packed(codes),
            )

    def count(what: str, minute: int, number: int) -> None:
        if number:
            found.add(what, topic, subscription, minute=minute, count=number, data=b"")

    deliveries = [part for part in parts if part.what in ("dispatched", "redelivered")]
    delivered = BitMap.union(BitMap(), *(part.codes for part in deliveries))
    known = BitMap.union(BitMap(), *published.values(), *pending.values())
    found.add(
        "seen",
        topic,
        subscription,
        ledger_id=ledger_id,
        slab=slab,
        count=len(delivered),
        data=_first(delivered),
    )
    for minute, codes in published.items():
        add("lost", minute, codes - delivered)
    for minute, codes in pending.items():
        add("waiting", minute, codes - delivered)
    for part in deliveries:
        count(part.what, part.minute, part.events)
    for minute, codes in _by_minute(deliveries).items():
        add("unknown", minute, codes - known)
    repeats = Repeats()
    for minute, again, excused in repeats.take(parts, list(session_ends(facts, topic, subscription))):
        add("duplicated", minute, again)
        add("repeated", minute, excused)
    for part in parts:
        if part.what == "doubled":
            extra = part.events - len(part.codes)
            add("duplicated", part.minute, part.codes, extra)
    for what in ("early", "late", "reordered"):
        for minute, codes in _by_minute(part for part in parts if part.what == what).items():
            add(what, minute, codes)
    count("acked", 0, len(repeats.acked.entries))


def _first(codes: BitMap) -> bytes:
    return packed(codes[:1]) if codes else b""


class Repeats:
    """What a subscription was given of one ledger so far, and what of it may come again."""

    def __init__(self) -> None:
        self.seen = BitMap()
        self.acked = Acknowledged()
        self._excused = BitMap()
        self._held: dict[str, BitMap] = {}

    def take(self, parts: list[Part], ends: list[Control]) -> Iterator[tuple[int, BitMap, BitMap]]:
        """Of deliveries that are not the first: their minute, the positions that should not have come again,
        and those that might. `ends` are the session ends after what was taken before; the parts' sessions
        count them.
        """
        acked = deque(sorted((part for part in parts if part.what in ACKED_PARTS), key=_session))
        deliveries = [part for part in parts if part.what in ("dispatched", "redelivered")]
        session = 0
        for (of_session, minute), group in _by_time(deliveries):
            for number in range(session, of_session):
                self._end(number, ends[number], acked)
            session = of_session
            for part in group:
                if part.what == "dispatched":
                    codes = part.codes
                    if again := codes & self.seen:
                        wrong = again - self._excused
                        yield minute, wrong, again - wrong
                    self._excused -= codes
                    self.seen |= codes
            _hold(self._held, group)
        for number in range(session, len(ends)):
            self._end(number, ends[number], acked)
        self._acknowledge(acked, len(ends))

    def _end(self, number: int, end: Control, acked: deque[Part]) -> None:
        """Session `number` ends; `acked` are the acknowledgements that were not looked at yet."""
        self._acknowledge(acked, number)
        if end.kind == RELEASED:
            self._excused |= self._held.pop(end.client, BitMap()) - self.acked.entries
        else:
            self._excused |= self.seen

    def _acknowledge(self, acked: deque[Part], session: int) -> None:
        """Those up to and with this session."""
        while acked and acked[0].session <= session:
            part = acked.popleft()
            if part.what == "acked":
                self.acked.add(part.codes)
            else:
                self.acked.add_messages(part.data)


def _session(part: Part) -> int:
    return part.session


def _by_time(parts: list[Part]) -> list[tuple[tuple[int, int], list[Part]]]:
    groups: dict[tuple[int, int], list[Part]] = defaultdict(list)
    for part in parts:
        groups[part.session, part.minute].append(part)
    return sorted(groups.items())


def _hold(held: dict[str, BitMap], group: list[Part]) -> None:
    """Note which client each position was last sent to; several, if they were sent it in the same minute."""
    new: dict[str, BitMap] = defaultdict(BitMap)
    for part in group:
        if part.client:
            new[part.client] |= part.codes
    if new:
        given = BitMap.union(*new.values())
        for own in held.values():
            own -= given
        for client, codes in new.items():
            held[client] = held.get(client, BitMap()) | codes
