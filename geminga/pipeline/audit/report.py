"""What an audit says in the end: a table by minute, one in all, and every position that something is wrong
with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from geminga.pipeline.audit.events import KINDS
from geminga.pipeline.audit.histogram import percentiles
from geminga.pipeline.audit.ledger import Part, parts_in
from geminga.pipeline.audit.packing import CODE_BITS
from geminga.pipeline.audit.settings import MINUTE_MS, Control, Facts

COUNTS: Final = (
    "published",
    "dispatched",
    "lost",
    "duplicated",
    "reordered",
    "early",
    "late",
    "redelivered",
    "repeated",
    "unknown",
    "pending",
    "skipped",
    "acked",
    "deduplicated",
)
WRONG: Final = ("lost", "duplicated", "reordered", "early", "late", "unknown")
REPEATS: Final = ("duplicated", "repeated")
SHARES: Final = (0.5, 0.99, 0.999)
_TIMES: Final = ("p50_ms", "p99_ms", "p999_ms", "max_ms")

MINUTES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("minute", pa.timestamp("ms", "UTC")),
        *((name, pa.int64()) for name in COUNTS),
        ("early_max_ms", pa.int64()),
        *((f"late_{name}", pa.int64()) for name in _TIMES),
        *((f"wait_{name}", pa.int64()) for name in _TIMES),
    ]
)
"""`published`, `lost`, `pending`, `skipped` and `deduplicated` are counted in the minute of publishing, all
others in that of the delivery; `acked` only in the totals. `late_*` is of first deliveries of delayed
messages, from the due time on; `wait_*` of all others, from the publish time on. Null: there was none.
"""
TOTALS: Final = pa.schema([field for field in MINUTES if field.name != "minute"])
FINDINGS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("what", pa.string()),
        ("minute", pa.timestamp("ms", "UTC")),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("batch_index", pa.int32()),
    ]
)


class Finding(NamedTuple):
    topic: str
    subscription: str
    what: str
    minute: int
    ledger_id: int
    slab: int
    codes: BitMap


class Report(NamedTuple):
    minutes: pa.Table
    totals: pa.Table
    found: list[Finding]
    batch_bits: int
    incomplete: list[str]
    """Why the logs themselves do not say all: events that the broker could not log, a crash."""

    @property
    def wrong(self) -> int:
        """How many positions something is wrong with; late ones included."""
        return sum(sum(self.totals[name].to_pylist()) for name in WRONG)

    def positions(self, what: str) -> Iterator[tuple[str, str, int, int, int]]:
        """(topic, subscription, ledger, entry, batch index) of each finding of this kind, batch index -1
        where no log has any.
        """
        for finding in self.found:
            if finding.what == what:
                for code in finding.codes:
                    yield (
                        finding.topic,
                        finding.subscription,
                        finding.ledger_id,
                        *self._entry_and_index(finding.slab, code),
                    )

    def _entry_and_index(self, slab: int, code: int) -> tuple[int, int]:
        whole = slab << CODE_BITS | code
        if not self.batch_bits:
            return whole, -1
        return whole >> self.batch_bits, whole & ((1 << self.batch_bits) - 1)

    def findings(self, each_max: int = 1_000_000) -> pa.Table:
        """A row for each position, at most `each_max` of each kind for a subscription."""
        columns: dict[str, list[Any]] = {name: [] for name in FINDINGS.names}
        taken: dict[tuple[str, str, str], int] = defaultdict(int)
        for finding in self.found:
            key = finding[:3]
            room = each_max - taken[key]
            positions = [self._entry_and_index(finding.slab, code) for code in finding.codes[:room]]
            taken[key] += len(positions)
            for name, value in (*zip(FINDINGS.names[:3], key, strict=True), ("ledger_id", finding.ledger_id)):
                columns[name] += [value] * len(positions)
            columns["minute"] += [finding.minute * MINUTE_MS] * len(positions)
            columns["entry_id"] += [entry for entry, _ in positions]
            columns["batch_index"] += [index for _, index in positions]
        return pa.Table.from_pydict(columns, FINDINGS)


def report_of(found: pa.Table, facts: Facts) -> Report:
    """From all rows of `FOUND`, those of the second look included."""
    parts = parts_in(found)
    subscriptions: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        if part.subscription:
            subscriptions[part.topic].add(part.subscription)
    for control in facts.controls:
        if control.topic and control.subscription:
            subscriptions[control.topic].add(control.subscription)
    counts: _Counts = defaultdict(int)
    findings = _first_only(_merged(_expected(parts, subscriptions, counts, facts)))
    for finding in findings:
        if finding.what not in REPEATS:
            counts[finding.topic, finding.subscription, finding.minute, finding.what] += len(finding.codes)
    logged = {part.topic for part in parts if part.what in ("published", "pending")}
    for part in parts:
        if not part.data and part.subscription and part.what in COUNTS:
            counts[part.topic, part.subscription, part.minute, part.what] += part.events
        elif part.what in REPEATS:
            # A position that came three times is one finding and two deliveries too many.
            counts[part.topic, part.subscription, part.minute, part.what] += part.events
    found_wrong = [
        one for one in findings if one.what in WRONG and (one.what != "unknown" or one.topic in logged)
    ]
    for key in [key for key in counts if key[3] == "unknown" and key[0] not in logged]:
        del counts[key]
    times = _Times(part for part in parts if part.what in ("delayed", "prompt"))
    return Report(
        _table(MINUTES, counts, times, by_minute=True),
        _table(TOTALS, counts, times, by_minute=False),
        found_wrong,
        facts.batch_bits,
        [*_incomplete(facts), *_left_out(parts)],
    )


_Counts = dict[tuple[str, str, int, str], int]


def _expected(
    parts: list[Part], subscriptions: dict[str, set[str]], counts: _Counts, facts: Facts
) -> Iterator[Finding]:
    """Findings by ledger, with what a subscription lost that got nothing of a ledger, and without what it did
    not have to get. Counts what was published.
    """
    seen: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
    first: dict[tuple[str, str], tuple[int, int, int]] = {}
    for part in parts:
        if part.what == "seen":
            key = part.topic, part.subscription
            seen[key].add((part.ledger_id, part.slab))
            if part.data:
                position = part.ledger_id, part.slab, part.codes[0]
                first[key] = min(first.get(key, position), position)
    skips = _Skips(facts, first)
    for part in parts:
        codes = part.codes if part.data and part.ledger_id >= 0 else BitMap()
        if part.what in ("published", "pending"):
            what = "lost" if part.what == "published" else "pending"
            for subscription in subscriptions[part.topic]:
                counts[part.topic, subscription, part.minute, "published"] += part.events
                if (part.ledger_id, part.slab) not in seen[part.topic, subscription]:
                    yield from skips.cut(part._replace(subscription=subscription, what=what), codes)
            if not subscriptions[part.topic]:
                counts[part.topic, "", part.minute, "published"] += part.events
        elif part.what in ("lost", "waiting"):
            what = "lost" if part.what == "lost" else "pending"
            yield from skips.cut(part._replace(what=what), codes)
        elif part.what == "deduplicated":
            for subscription in subscriptions[part.topic] or ("",):
                counts[part.topic, subscription, part.minute, part.what] += part.events
        elif part.what in (*WRONG, "repeated") and codes:
            yield Finding(
                part.topic, part.subscription, part.what, part.minute, part.ledger_id, part.slab, codes
            )


class _Skips:
    """Up to where a subscription's backlog was settled otherwise than by a delivery."""

    def __init__(self, facts: Facts, first: dict[tuple[str, str], tuple[int, int, int]]) -> None:
        self._bits = facts.batch_bits
        self._from_first = facts.settings.start == "first"
        self._first = first
        self._up_to: dict[tuple[str, str], tuple[int, int]] = {}
        self._deleted: set[tuple[str, str]] = set()
        for control in facts.controls:
            self._note(control)

    def _note(self, control: Control) -> None:
        key = control.topic, control.subscription
        if control.kind == KINDS["unsubscribed"]:
            self._deleted.add(key)
        elif control.kind in (KINDS["subscribed"], KINDS["skipped_up_to"], KINDS["sought"]):
            self._deleted.discard(key)
            position = control.ledger_id, control.entry_id
            self._up_to[key] = max(position, self._up_to.get(key, position))

    def cut(self, part: Part, codes: BitMap) -> Iterator[Finding]:
        """The codes that had to come, and as `skipped` those that had not."""
        key = part.topic, part.subscription
        settled = BitMap()
        if key in self._deleted:
            settled = codes
        else:
            if key in self._up_to:
                ledger_id, entry_id = self._up_to[key]
                settled |= self._below(part, codes, ledger_id, (entry_id + 1) << self._bits)
            if self._from_first and key in self._first:
                ledger_id, slab, code = self._first[key]
                settled |= self._below(part, codes, ledger_id, slab << CODE_BITS | code)
        for what, some in ((part.what, codes - settled), ("skipped", settled)):
            if some:
                yield Finding(*key, what, part.minute, part.ledger_id, part.slab, some)

    def _below(self, part: Part, codes: BitMap, ledger_id: int, end: int) -> BitMap:
        if part.ledger_id != ledger_id:
            return codes if part.ledger_id < ledger_id else BitMap()
        here = min(max(end - (part.slab << CODE_BITS), 0), 1 << CODE_BITS)
        return codes & BitMap(range(here))


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """One for each slab, minute and kind, in order."""
    by_key: dict[tuple[str, str, str, int, int, int], Finding] = {}
    for finding in findings:
        key = finding[:6]
        known = by_key.get(key)
        by_key[key] = finding._replace(codes=known.codes | finding.codes) if known else finding
    return [by_key[key] for key in sorted(by_key)]


def _first_only(findings: list[Finding]) -> list[Finding]:
    """Without what a position that came again would be called late, early or reordered for."""
    repeats: dict[tuple[str, str, int, int], BitMap] = defaultdict(BitMap)
    for finding in findings:
        if finding.what in REPEATS:
            repeats[finding.topic, finding.subscription, finding.ledger_id, finding.slab] |= finding.codes
    left = []
    for finding in findings:
        if finding.what in ("early", "late", "reordered"):
            again = repeats.get((finding.topic, finding.subscription, finding.ledger_id, finding.slab))
            finding = finding._replace(codes=finding.codes - again) if again else finding
        if finding.codes:
            left.append(finding)
    return left


class _Times:
    """How late deliveries were."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._by_minute: dict[tuple[str, str, int, str], list[Any]] = defaultdict(list)
        self._in_all: dict[tuple[str, str, int, str], list[Any]] = defaultdict(list)
        for part in parts:
            numbers = np.frombuffer(part.data, "<i8")
            self._by_minute[part.topic, part.subscription, part.minute, part.what].append(numbers)
            self._in_all[part.topic, part.subscription, 0, part.what].append(numbers)

    def of(self, topic: str, subscription: str, minute: int | None) -> dict[str, int]:
        found: dict[str, int] = {}
        for what, prefix in (("delayed", "late"), ("prompt", "wait")):
            table = self._in_all if minute is None else self._by_minute
            numbers = table.get((topic, subscription, minute or 0, what))
            if not numbers:
                continue
            rest = [part[2:].reshape(2, -1) for part in numbers]
            steps, counts = np.concatenate(rest, axis=1)
            values = [*percentiles(steps, counts, SHARES), max(0, *(int(part[1]) for part in numbers))]
            found |= {f"{prefix}_{name}": value for name, value in zip(_TIMES, values, strict=True)}
            if what == "delayed":
                found["early_max_ms"] = max(0, *(-int(part[0]) for part in numbers))
        return found


def _table(schema: pa.Schema, counts: _Counts, times: _Times, *, by_minute: bool) -> pa.Table:
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for (topic, subscription, minute, what), count in counts.items():
        if what not in COUNTS or (by_minute and what == "acked"):
            continue
        key = topic, subscription, minute if by_minute else 0
        row = rows.setdefault(key, dict.fromkeys(COUNTS, 0))
        row[what] += count
    for (topic, subscription, minute), row in rows.items():
        row |= {"topic": topic, "subscription": subscription}
        if by_minute:
            row["minute"] = minute * MINUTE_MS
        row |= times.of(topic, subscription, minute if by_minute else None)
    return pa.Table.from_pylist([rows[key] for key in sorted(rows)], schema)


def _left_out(parts: list[Part]) -> list[str]:
    count = sum(part.events for part in parts if part.what == "left out")
    if not count:
        return []
    firsts = sorted(part.data.decode() for part in parts if part.what == "left out")
    return [f"malformed events were left out ({count:,}), such as {firsts[0]}"]


def _incomplete(facts: Facts) -> list[str]:
    reasons = []
    missed = [control.batch_size for control in facts.controls if control.kind == KINDS["missed"]]
    if sum(missed):
        reasons.append(f"the broker could not log {sum(missed)} events")
    if 0 in missed:
        reasons.append("the broker could not log some events; how many is not known")
    is_open = False
    for control in facts.controls:
        if control.kind == KINDS["opened"]:
            if is_open:
                reasons.append(f"the broker ended at about {control.time_ms} without closing its log")
            is_open = True
        elif control.kind == KINDS["closed"]:
            is_open = False
    return reasons
