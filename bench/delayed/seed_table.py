"""The published table of the time-bucket index for delayed messages, measured again, as text and chart.

    python bench/delayed/seed_table.py                          10 million messages for each row; some minutes
    python bench/delayed/seed_table.py --png table.png              and a chart (needs matplotlib)
    python bench/delayed/seed_table.py --jars DIR --fetch CACHE   and Pulsar's own classes; see java_trackers/

The workload is the published one: 10,000,000 messages, 50,000 entries to a ledger, x messages in each
millisecond, delivery times in the order of publishing, cut by y bits. Each index is weighed in a process of
its own: the growth of resident memory after the allocator has returned what it could, so every object and
every list that is too long counts. What is weighed:

    heap          (time, ledger, entry), 24 bytes each, in a heap that grows by 16 MiB, as Pulsar's queue does
    dict/roaring  time -> ledger -> bitmap: the published structure, with Python's dicts and CRoaring
    ours          the index as the broker uses it in memory, with its bookkeeping
    Java          with --jars, live heap and direct memory of Pulsar's own trackers

MiB everywhere, as in the article. Its figures are 240 for the heap, and the two columns "article" for the
structure. "theory" is the article's formula for the latter, computed here: 2 bytes a message while a bitmap
has at most 4,096 of 65,536 possible entries, else 8 KiB for each bitmap. One bit a message would be 1.19 MiB;
less is possible because neighbouring entries have neighbouring times, which the formula leaves aside and runs
use. The rows "random" are not in the article: times drawn evenly over the same span, where no runs are.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import multiprocessing
import random
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyroaring import BitMap

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.delayed.java_trackers.java_rows import (
    GivenUp,
    Workload,
    add_options,
    each_java_row,
    fetched,
    is_java_here,
)

MIB = 1024 * 1024
MESSAGES = 10_000_000
ENTRIES_PER_LEDGER = 50_000
FIRST_LEDGER = 10_000
START_MS = 1_700_000_000_000
BATCH = 100
WARM_UP = 200_000
ARRAY_ENTRIES_MAX = 4096
BITMAP_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Case:
    delays: str
    per_ms: int
    bits: int
    article_mib: float | None = None
    article_theory_mib: float | None = None

    @property
    def name(self) -> str:
        return f"{self.delays} x={self.per_ms} y={self.bits}"


CASES = (
    Case("fixed", 1, 10, 25.0, 19.1),
    Case("fixed", 4, 10, 20.48, 19.1),
    Case("fixed", 8, 10, 11.0, 9.53),
    Case("fixed", 8, 15, 2.25, 1.55),
    Case("random", 8, 10),
    Case("random", 8, 15),
)
ARTICLE_HEAP_MIB = 240.0


def theory_mib(case: Case, messages: int) -> float | None:
    """The article's formula for the average bytes of an entry; None where it does not apply."""
    if case.delays != "fixed":
        return None
    in_bucket = case.per_ms << case.bits
    if in_bucket <= ARRAY_ENTRIES_MAX:
        bytes_each = 2.0
    elif in_bucket <= ENTRIES_PER_LEDGER:
        bytes_each = BITMAP_BYTES / in_bucket
    else:
        bytes_each = BITMAP_BYTES / ENTRIES_PER_LEDGER
    return messages * bytes_each / MIB


# -- what is weighed -------------------------------------------------------------------------------------


class TripleHeap:
    """A binary heap of (time, ledger, entry) in one column of integers for each segment of 16 MiB."""

    SEGMENT = 16 * MIB // 8

    def __init__(self) -> None:
        self.segments: list[array[int]] = []
        self.count = 0

    def _at(self, triple: int) -> list[int]:
        size = self.SEGMENT
        return [self.segments[n // size][n % size] for n in range(3 * triple, 3 * triple + 3)]

    def _put(self, triple: int, values: list[int]) -> None:
        for n, value in enumerate(values, 3 * triple):
            self.segments[n // self.SEGMENT][n % self.SEGMENT] = value

    def add(self, at_ms: int, ledger_id: int, entry_id: int) -> None:
        if 3 * self.count + 3 > len(self.segments) * self.SEGMENT:
            self.segments.append(array("q", bytes(8 * self.SEGMENT)))
        place, values = self.count, [at_ms, ledger_id, entry_id]
        while place and (above := self._at((place - 1) // 2)) > values:
            self._put(place, above)
            place = (place - 1) // 2
        self._put(place, values)
        self.count += 1

    def check(self) -> None:
        for place in range(1, self.count, 997):
            assert self._at((place - 1) // 2) <= self._at(place)

    def reported_bytes(self) -> int:
        return sum(len(segment) * segment.itemsize for segment in self.segments)


class DictTracker:
    """The published structure: time -> ledger -> entry ids."""

    def __init__(self, bits: int) -> None:
        self.mask = -1 << bits
        self.times: dict[int, dict[int, BitMap]] = {}

    def add_many(self, ledger_id: int, entry_ids: list[int], times_ms: list[int]) -> None:
        for entry_id, at_ms in zip(entry_ids, times_ms, strict=True):
            ledgers = self.times.get(at_ms & self.mask)
            if ledgers is None:
                ledgers = self.times[at_ms & self.mask] = {}
            bitmap = ledgers.get(ledger_id)
            if bitmap is None:
                bitmap = ledgers[ledger_id] = BitMap()
            bitmap.add(entry_id)

    def __len__(self) -> int:
        return sum(len(bitmap) for ledgers in self.times.values() for bitmap in ledgers.values())

    def reported_bytes(self) -> int:
        """The bitmaps alone, as they would be written."""
        bitmaps = (bitmap for ledgers in self.times.values() for bitmap in ledgers.values())
        return sum(
            bitmap.get_statistics()["n_bytes_array_containers"] + _other_bytes(bitmap) for bitmap in bitmaps
        )


def _other_bytes(bitmap: BitMap) -> int:
    found = bitmap.get_statistics()
    return int(found["n_bytes_run_containers"] + found["n_bytes_bitset_containers"])


class HandClock:
    def now_ms(self) -> int:
        return 0

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        return 0.0


def reads(case: Case, messages: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """Ledger, entry ids and delivery times of one read after the other."""
    draw, span_ms = random.Random(1).randrange, messages // case.per_ms
    for first in range(0, messages, BATCH):
        ledger_id, entry_id = divmod(first, ENTRIES_PER_LEDGER)
        if case.delays == "fixed":
            times_ms = [START_MS + n // case.per_ms for n in range(first, first + BATCH)]
        else:
            times_ms = [START_MS + draw(span_ms) for _ in range(BATCH)]
        yield FIRST_LEDGER + ledger_id, list(range(entry_id, entry_id + BATCH)), times_ms


def fill_heap(case: Case, messages: int) -> tuple[Any, dict[str, float]]:
    heap = TripleHeap()
    for ledger_id, entry_ids, times_ms in reads(case, messages):
        for entry_id, at_ms in zip(entry_ids, times_ms, strict=True):
            heap.add(at_ms, ledger_id, entry_id)
    heap.check()
    return heap, {"reported_mib": heap.reported_bytes() / MIB}


def fill_dict(case: Case, messages: int) -> tuple[Any, dict[str, float]]:
    tracker = DictTracker(case.bits)
    for ledger_id, entry_ids, times_ms in reads(case, messages):
        tracker.add_many(ledger_id, entry_ids, times_ms)
    assert len(tracker) == messages
    return tracker, {"reported_mib": tracker.reported_bytes() / MIB}


def fill_ours(case: Case, messages: int) -> tuple[Any, dict[str, float]]:
    from tests.tracker.in_memory import in_memory_tracker

    tracker, full_mib = in_memory_tracker(HandClock(), 1 << case.bits), 0.0
    for ledger_id, entry_ids, times_ms in reads(case, messages):
        # Just before a ledger ends the column that messages are added to is as long as it gets.
        if entry_ids[0] == ENTRIES_PER_LEDGER - BATCH:
            full_mib = tracker.memory_bytes() / MIB
        tracker.add_many(ledger_id, entry_ids, times_ms)
    assert len(tracker) == messages
    return tracker, {"reported_mib": tracker.memory_bytes() / MIB, "full_mib": full_mib}


Fill = Callable[[Case, int], tuple[Any, dict[str, float]]]
FILLS: dict[str, Fill] = {"heap": fill_heap, "dict/roaring": fill_dict, "ours": fill_ours}


def resident_bytes() -> int:
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this bench reads /proc, so it runs on Linux only")


def weigh(structure: str, case: Case, messages: int) -> dict[str, float]:
    """In a process of its own. A small run comes first, so that imports and pools do not count."""
    fill = FILLS[structure]
    fill(case, WARM_UP)
    before_bytes = resident_bytes()
    kept, figures = fill(case, messages)
    figures["mib"] = (resident_bytes() - before_bytes) / MIB
    del kept
    return figures


def weigh_apart(structure: str, case: Case, messages: int) -> dict[str, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(weigh, (structure, case, messages))


def java_mib(options: argparse.Namespace) -> dict[tuple[str, str], float]:
    """By (version, name of the case)."""
    found: dict[tuple[str, str], float] = {}
    if options.jars is None:
        return found
    if not is_java_here():
        print("Java is not installed: no rows of Pulsar's own classes", file=sys.stderr)
        return found
    for newer in (None, *fetched(options.fetch)):
        cases = {Workload("memory", case.delays, case.per_ms, 1 << case.bits): case.name for case in CASES}
        for row in each_java_row(options.jars, list(cases), options.messages, newer):
            if isinstance(row, GivenUp):
                print(f"Java {row.version} {cases[row.workload]}: {row.why}", file=sys.stderr)
                continue
            name = cases[Workload("memory", row.delays, row.per_ms, row.tick_ms)]
            found[row.version, name] = row.memory_bytes / MIB
            print(f"Java {row.version:<14}{name:<20}{found[row.version, name]:8.2f}", file=sys.stderr)
    return found


# -- the report ------------------------------------------------------------------------------------------


def number(value: float | None, width: int, digits: int = 2) -> str:
    return f"{'-':>{width}}" if value is None or math.isnan(value) else f"{value:>{width}.{digits}f}"


def larger_mib(weighed: dict[str, float]) -> float:
    return max(weighed["mib"], weighed["reported_mib"])


def print_table(rows: list[dict[str, Any]], heap_mib: float, java_versions: list[str], messages: int) -> None:
    print(f"\n{messages:,} messages, {ENTRIES_PER_LEDGER:,} entries to a ledger; MiB")
    print(f"the heap before all this: {heap_mib:.1f} measured, {ARTICLE_HEAP_MIB:.0f} in the article\n")
    java = "".join(f"{'Java ' + version:>12}" for version in java_versions)
    print(
        f"{'delays':<8}{'x/ms':>5}{'y':>4} |{'theory':>8}{'article':>9}{'article':>9} |{java}"
        f"{'dict/roaring':>14} |{'ours':>8}{'nbytes':>8}{'at most':>9}{'B/msg':>8} |"
        f"{'of article':>11}{'of heap':>9}"
    )
    print(f"{'':<17} |{'':>8}{'theory':>9}{'measured':>9} |")
    for row in rows:
        ours, ours_mib = row["ours"], larger_mib(row["ours"])
        article_mib = row["article_mib"]
        share = 100 * ours_mib / article_mib if article_mib else None
        print(
            f"{row['delays']:<8}{row['per_ms']:>5}{row['bits']:>4} |{number(row['theory_mib'], 8)}"
            f"{number(row['article_theory_mib'], 9)}{number(article_mib, 9)} |"
            + "".join(number(row["java"].get(version), 12) for version in java_versions)
            + f"{number(row['dict/roaring']['mib'], 14)} |{number(ours['mib'], 8)}"
            f"{number(ours['reported_mib'], 8)}{number(ours['full_mib'], 9)}"
            f"{number(ours_mib * MIB / messages, 8, 3)} |"
            f"{number(share, 10, 1)}{'%' if share else ' '}{number(100 * ours_mib / heap_mib, 8)}%"
        )
    print(
        "\nours: resident growth when a ledger has just ended. nbytes: by its own account, at that moment; at"
    )
    print(
        "most: just before, with the column that messages are added to at its longest. What follows is from"
    )
    print("the larger of the first two: small growth may find room in pools that are there already.")
    if messages != MESSAGES:
        print(f"The article's columns are for {MESSAGES:,} messages.")


def draw_chart(path: Path, rows: list[dict[str, Any]], heap_mib: float, java_versions: list[str]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    series: list[tuple[str, str, list[float | None]]] = [
        ("heap of triples (24 B each)", "#8c8c8c", [heap_mib] * len(rows)),
        ("article, measured", "#c9a227", [row["article_mib"] for row in rows]),
        *[
            (f"Pulsar {version}, measured here", color, [row["java"].get(version) for row in rows])
            for version, color in zip(java_versions, ("#b5651d", "#d98e4a", "#e8b88a"), strict=False)
        ],
        ("dict/roaring, measured here", "#5b8db8", [row["dict/roaring"]["mib"] for row in rows]),
        ("Geminga", "#2a7f4f", [larger_mib(row["ours"]) for row in rows]),
        ("Geminga, just before a ledger ends", "#8fc5a5", [row["ours"]["full_mib"] for row in rows]),
    ]
    figure, axes = pyplot.subplots(figsize=(12, 6))
    width = 0.85 / len(series)
    for place, (label, color, values) in enumerate(series):
        for group, value in enumerate(values):
            if value is None:
                continue
            left = group + (place - (len(series) - 1) / 2) * width
            axes.bar(left, value, width * 0.94, color=color, label=label if label else None)
            axes.text(left, value * 1.07, f"{value:.3g}", ha="center", va="bottom", fontsize=7.5, rotation=90)
            label = ""
    for group, row in enumerate(rows):
        if row["theory_mib"] is not None:
            axes.plot(
                [group - 0.44, group + 0.44],
                [row["theory_mib"]] * 2,
                color="black",
                linewidth=1.1,
                linestyle="--",
                label="theory of the article" if group == 0 else None,
            )
    axes.set_yscale("log")
    axes.set_ylim(0.02, 6000)
    axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.axhline(
        rows[0]["messages"] / 8 / MIB,
        color="#b02020",
        linewidth=0.9,
        linestyle=":",
        label="one bit a message",
    )
    orders = {"fixed": "in order", "random": "random"}
    ticks = [f"{orders[row['delays']]}\n{row['per_ms']} msg/ms, {1 << row['bits']:,} ms" for row in rows]
    axes.set_xticks(range(len(rows)), ticks)
    axes.set_ylabel("MiB (logarithmic)")
    axes.set_xlabel("order of delivery times; rate; precision")
    axes.set_title(f"Memory of the index of {rows[0]['messages']:,} delayed messages")
    axes.legend(fontsize=8, ncols=3, loc="upper center", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=MESSAGES, help="a multiple of 50,000")
    parser.add_argument("--png", type=Path, help="draw the chart into this file")
    parser.add_argument("--json", type=Path, help="write all figures here too")
    parser.add_argument("--from-json", type=Path, help="print and draw what was measured before")
    add_options(parser)
    options = parser.parse_args()
    stored = json.loads(options.from_json.read_text()) if options.from_json else measure(options)
    if options.json:
        options.json.write_text(json.dumps(stored, indent=1))
    rows, heap_mib = stored["rows"], stored["heap"]["mib"]
    java_versions = sorted({version for row in rows for version in row["java"]})
    print_table(rows, heap_mib, java_versions, rows[0]["messages"])
    if options.png:
        draw_chart(options.png, rows, heap_mib, java_versions)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    messages = options.messages - options.messages % ENTRIES_PER_LEDGER
    heap = weigh_apart("heap", CASES[0], messages)
    print(f"heap {'':<14}{'':<20}{heap['mib']:8.2f}", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    for case in CASES:
        row = asdict(case) | {"messages": messages, "theory_mib": theory_mib(case, messages), "java": {}}
        for structure in ("dict/roaring", "ours"):
            row[structure] = weigh_apart(structure, case, messages)
            print(f"{structure:<19}{case.name:<20}{row[structure]['mib']:8.2f}", file=sys.stderr)
        rows.append(row)
    for (version, name), mib in java_mib(options).items():
        next(row for row, case in zip(rows, CASES, strict=True) if case.name == name)["java"][version] = mib
    return {"heap": heap, "rows": rows}


if __name__ == "__main__":
    main()
