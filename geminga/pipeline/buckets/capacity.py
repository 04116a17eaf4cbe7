"""How large a delayed index gets: a backlog is drawn up, ledger by ledger, and its bitmaps are really
serialised.

The structure is the published one (Pulsar pull request 23611): due times cut by some
bits, and for each of them and each ledger a Roaring bitmap of entry ids. Beside it stand what the article's
formula says, the heap of 24 bytes an entry that was there before, and the buckets that Geminga writes, exact
to the millisecond.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap, BitMap64

from geminga.clock import RealClock
from geminga.errors import GemingaError
from geminga.limits import MIB
from geminga.tracker.format.bucket_format import encode_bucket
from geminga.tracker.format.rows import ENTRY_BITS, Rows, order_of
from geminga.units import duration_ms

Integers = NDArray[np.int64]

START_MS: Final = 1_700_000_000_000
FIRST_LEDGER: Final = 10_000
HEAP_BYTES: Final = 24
ARRAY_ENTRIES_MAX: Final = 4096
BITMAP_BYTES: Final = 8192
BITMAPS_MAX: Final = 4_000_000
"""If there are more, only so many are serialised, those of evenly spread ledgers; the result is scaled and
says so.
"""
LEDGERS_SEALED_MAX: Final = 1_000
"""Of so many ledgers at most Geminga's own buckets are made."""
SEGMENT_SPAN_MS: Final = 300_000
SEGMENT_ROWS_MAX: Final = 5_000
"""The defaults of `delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds` and of
`delayedDeliveryMaxIndexesPerBucketSnapshotSegment`."""


class WrongPlan(GemingaError):
    """A row of the table that cannot be drawn up."""


class Plan(NamedTuple):
    """One row: `messages` (one each in an entry, or as many as `batch`), `per_ms` of them published in each
    millisecond, due times cut by `bits`.
    """

    messages: int
    per_ms: float
    bits: int
    delays: str = "fixed"
    """`fixed`: all the same; `uniform:1d`, `exponential:1h`, `normal:1h,10m`, `choice:10s,1m,1h`."""
    entries_per_ledger: int = 50_000
    batch: int = 1

    @property
    def entries(self) -> int:
        return -(-self.messages // self.batch)

    @property
    def ledgers(self) -> int:
        return -(-self.entries // self.entries_per_ledger)


ARTICLE: Final[dict[tuple[float, int], tuple[float, float]]] = {
    (1, 10): (19.1, 25.0),
    (4, 10): (19.1, 20.48),
    (8, 10): (9.53, 11.0),
    (8, 15): (1.55, 2.25),
}
"""Its theory and its measurement, in MiB for 10,000,000 messages, by messages in a millisecond and bits."""
ARTICLE_MESSAGES: Final = 10_000_000


class Weighed(NamedTuple):
    """What some ledgers of a plan weigh. Numbers of several ranges of ledgers are added up."""

    entries: int = 0
    weighed_entries: int = 0
    bitmaps: int = 0
    bitmap_bytes: int = 0
    """Serialised, without runs: the article leaves those aside."""
    run_bytes: int = 0
    """Serialised with runs."""
    sealed_entries: int = 0
    sealed_bytes: int = 0
    times: bytes = b""
    """The time buckets that occur in weighed ledgers: a `BitMap64`, counted from the first one possible."""

    def __add__(self, other: object) -> Weighed:
        assert isinstance(other, Weighed)
        sets = [BitMap64.deserialize(data) for data in (self.times, other.times) if data]
        sums = {name: getattr(self, name) + getattr(other, name) for name in self._fields[:-1]}
        return Weighed(**sums, times=BitMap64.union(BitMap64(), *sets).serialize())


# -- delays -----------------------------------------------------------------------------------------------


def _duration_ms(text: str) -> int:
    try:
        return duration_ms(text)
    except ValueError as error:
        raise WrongPlan(str(error)) from None


def _delays_ms(text: str, draw: np.random.Generator, count: int) -> Integers:
    kind, _, rest = text.partition(":")
    sizes = [_duration_ms(part) for part in rest.split(",")] if rest else []
    match kind, sizes:
        case "fixed", []:
            return np.zeros(count, np.int64)
        case "uniform", [span_ms]:
            drawn = draw.random(count) * span_ms
        case "exponential", [mean_ms]:
            drawn = draw.exponential(mean_ms, count)
        case "normal", [mean_ms, deviation_ms]:
            drawn = draw.normal(mean_ms, deviation_ms, count)
        case "choice", [_, *_]:
            drawn = np.array(sizes)[draw.integers(len(sizes), size=count)]
        case _:
            raise WrongPlan(
                f"unknown delays {text!r}: fixed, uniform:1d, exponential:1h, normal:1h,10m, choice:10s,1m"
            )
    return np.maximum(drawn, 0).astype(np.int64)


def ledger_times_ms(plan: Plan, ledger: int) -> Integers:
    """When the entries of one ledger, the `ledger`-th of the backlog, are due; the same on every machine."""
    first = ledger * plan.entries_per_ledger
    last = min(first + plan.entries_per_ledger, plan.entries)
    entries = np.arange(first, last)
    if float(plan.per_ms).is_integer():
        # The article's program counts the time up before the first message of each millisecond.
        published_ms = START_MS + 1 + entries * plan.batch // int(plan.per_ms)
    else:
        published_ms = START_MS + (entries * plan.batch / plan.per_ms).astype(np.int64)
    if plan.delays == "fixed":
        return published_ms
    return published_ms + _delays_ms(plan.delays, np.random.Generator(np.random.Philox(ledger)), len(entries))


# -- weighing ---------------------------------------------------------------------------------------------


def check(plan: Plan) -> None:
    """Raises `WrongPlan`."""
    if plan.messages < 1 or plan.per_ms <= 0 or not 0 <= plan.bits <= 40 or plan.batch < 1:
        raise WrongPlan(f"a plan that cannot be: {plan}")
    if not 1 <= plan.entries_per_ledger <= 1 << 31:
        raise WrongPlan(f"{plan.entries_per_ledger} entries in a ledger")
    _delays_ms(plan.delays, np.random.default_rng(0), 1)


class Sample(NamedTuple):
    """Every how many-th ledger is serialised, and made a bucket of."""

    weighed: int
    sealed: int


def sample_of(plan: Plan) -> Sample:
    """So that neither takes longer than it should: from what one ledger holds."""
    times = len(np.unique(ledger_times_ms(plan, plan.ledgers // 2) >> plan.bits))
    weighed = max(1, -(-times * plan.ledgers // BITMAPS_MAX))
    return Sample(weighed, max(1, -(-plan.ledgers // LEDGERS_SEALED_MAX)))


def weigh(plan: Plan, first: int, last: int, sample: Sample) -> Weighed:
    """The ledgers `first` to `last` - 1 of the backlog."""
    entries = weighed_entries = bitmaps = plain = runs = sealed_entries = sealed_bytes = 0
    times = BitMap64()
    for ledger in range(first, last):
        size = min(plan.entries_per_ledger, plan.entries - ledger * plan.entries_per_ledger)
        entries += size
        if ledger % sample.weighed and ledger % sample.sealed:
            continue
        times_ms = ledger_times_ms(plan, ledger)
        if ledger % sample.weighed == 0:
            weighed_entries += size
            own = TimeBuckets.of(times_ms, plan.bits)
            bitmaps += len(own.times)
            times |= BitMap64(array("Q", own.times.tobytes()))
            for bitmap in own.bitmaps():
                plain += len(bitmap.serialize())
                bitmap.run_optimize()
                runs += len(bitmap.serialize())
        if ledger % sample.sealed == 0:
            sealed_entries += size
            sealed_bytes += _sealed_bytes(ledger, times_ms)
    return Weighed(
        entries, weighed_entries, bitmaps, plain, runs, sealed_entries, sealed_bytes, times.serialize()
    )


class TimeBuckets(NamedTuple):
    """One ledger's time buckets, counted from the first one possible, in the order of their times."""

    times: Integers
    entry_ids: array[int] | None
    """Of all buckets together; None: they are 0, 1, 2 and so on, because due times follow the order."""
    begins: list[int]
    ends: list[int]

    @classmethod
    def of(cls, times_ms: Integers, bits: int) -> TimeBuckets:
        buckets = (times_ms >> bits) - (START_MS >> bits)
        entry_ids = None
        if np.any(buckets[1:] < buckets[:-1]):
            order = order_of(buckets)
            buckets = buckets.take(order)
            entry_ids = array("I", order.astype(np.uint32).tobytes())
        begins = np.flatnonzero(buckets[1:] != buckets[:-1]) + 1
        bounds = [0, *begins.tolist(), len(buckets)]
        return cls(buckets[bounds[:-1]], entry_ids, bounds[:-1], bounds[1:])

    def bitmaps(self) -> Iterator[BitMap]:
        """Of entry ids, for each time; without runs."""
        bounds = zip(self.begins, self.ends, strict=True)
        if self.entry_ids is not None:
            for begin, end in bounds:
                yield BitMap(self.entry_ids[begin:end], optimize=False)
            return
        # Neighbours are cut out of a bitmap that has them all, in a tenth of the time that adding them takes;
        # what CRoaring makes of the two is never a run.
        every = _every_id(self.ends[-1])
        for begin, end in bounds:
            yield every & BitMap(range(begin, end))


@functools.lru_cache(maxsize=1)
def _every_id(count: int) -> BitMap:
    """0 to `count` - 1, without runs. Cached, so callers must not change it."""
    return BitMap(array("I", np.arange(count, dtype=np.uint32).tobytes()), optimize=False)


def _sealed_bytes(ledger: int, times_ms: Integers) -> int:
    ledger_id = FIRST_LEDGER + ledger % (1 << 20)
    rows = Rows(times_ms, (ledger_id << ENTRY_BITS) + np.arange(len(times_ms))).sorted()
    bucket = encode_bucket(ledger_id, ledger_id, rows, SEGMENT_SPAN_MS, SEGMENT_ROWS_MAX)
    return sum(map(len, bucket.segments)) + sum(map(len, bucket.directory))


# -- the table --------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """Bytes are for all messages of the plan."""

    plan: Plan
    bitmap_bytes: float
    run_bytes: float
    bucket_bytes: float
    time_buckets: int
    bitmaps: int
    weighed_share: float
    """Of the entries, how many were serialised; below 1 the bitmaps' figures are scaled."""
    seconds: float

    @property
    def heap_bytes(self) -> int:
        return self.plan.entries * HEAP_BYTES

    @property
    def theory_bytes(self) -> float | None:
        """The article's formula; None for delays that it does not speak of."""
        plan = self.plan
        if plan.delays != "fixed":
            return None
        together = plan.per_ms * (1 << plan.bits) / plan.batch
        if together <= ARRAY_ENTRIES_MAX:
            each = 2.0
        elif together <= plan.entries_per_ledger:
            each = BITMAP_BYTES / together
        else:
            each = BITMAP_BYTES / plan.entries_per_ledger
        return plan.entries * each

    @property
    def article(self) -> tuple[float, float] | None:
        """Its theory and measurement in MiB, for its own 10,000,000 messages."""
        plan = self.plan
        if plan.delays != "fixed" or plan.batch != 1 or plan.entries_per_ledger != 50_000:
            return None
        return ARTICLE.get((plan.per_ms, plan.bits))

    def as_dict(self) -> dict[str, Any]:
        """Flat, for JSON and tables of columns."""
        article = self.article
        return {
            **self.plan._asdict(),
            "article_theory_mib_10m": article[0] if article else None,
            "article_measured_mib_10m": article[1] if article else None,
            "theory_bytes": self.theory_bytes,
            "heap_bytes": self.heap_bytes,
            **{name: getattr(self, name) for name in self._fields[1:]},
        }


def row_of(plan: Plan, parts: Iterable[Weighed], seconds: float) -> Row:
    total = Weighed()
    for part in parts:
        total = total + part
    scale = plan.entries / total.weighed_entries
    return Row(
        plan,
        total.bitmap_bytes * scale,
        total.run_bytes * scale,
        total.sealed_bytes * plan.entries / total.sealed_entries,
        len(BitMap64.deserialize(total.times)),
        round(total.bitmaps * scale),
        total.weighed_entries / plan.entries,
        seconds,
    )


def rows_of(plans: Iterable[Plan], progress: Callable[[Row], None] = lambda row: None) -> list[Row]:
    """The table in this process, without Spark. Raises `WrongPlan` before it begins."""
    plans = list(plans)
    for plan in plans:
        check(plan)
    rows = []
    for plan in plans:
        began_s = RealClock().monotonic_s()
        part = weigh(plan, 0, plan.ledgers, sample_of(plan))
        rows.append(row_of(plan, [part], RealClock().monotonic_s() - began_s))
        progress(rows[-1])
    return rows


def text_of(rows: list[Row]) -> str:
    """The table, MiB for all messages and beside the article's for 10,000,000."""
    lines = [
        f"{'':36} |{'MiB for 10,000,000 messages':^50}|{'all messages':^48}|",
        f"{'messages':>14} {'x/ms':>5} {'y':>3} {'delays':<11} |{'theory':>8}{'article':>9}{'article':>9}"
        f"{'bitmaps':>8}{'runs':>8}{'buckets':>8}|{'heap MiB':>10}{'bitmaps MiB':>12}{'runs MiB':>11}"
        f"{'buckets MiB':>12}  |{'B/msg':>7}{'weighed':>9}{'s':>7}",
        f"{'':36} |{'':>8}{'theory':>9}{'measured':>9}{'':>24}|{'':>48}|",
    ]
    for row in rows:
        plan, article = row.plan, row.article or (None, None)
        scale = ARTICLE_MESSAGES / plan.messages / MIB
        theory = row.theory_bytes
        lines.append(
            f"{plan.messages:>14,} {plan.per_ms:>5g} {plan.bits:>3} {plan.delays:<11} |"
            f"{_number(theory and theory * scale, 8)}{_number(article[0], 9)}{_number(article[1], 9)}"
            f"{row.bitmap_bytes * scale:>8.2f}{row.run_bytes * scale:>8.2f}{row.bucket_bytes * scale:>8.2f}|"
            f"{row.heap_bytes / MIB:>10,.0f}{row.bitmap_bytes / MIB:>12,.1f}{row.run_bytes / MIB:>11,.1f}"
            f"{row.bucket_bytes / MIB:>12,.1f}  |{row.bitmap_bytes / plan.messages:>7.3f}"
            f"{100 * row.weighed_share:>8.3g}%{row.seconds:>7.1f}"
        )
    return "\n".join(lines)


def _number(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.2f}"
