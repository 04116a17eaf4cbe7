"""Answers about delayed messages as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from geminga.limits import DUE_MS_MAX

BAR_WIDTH: Final = 50
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NO_BUCKET: Final = (
    "no bucket yet: one is written when delayedDeliveryMinIndexCountPerBucket messages wait (default: 50000)"
)
AT_ONCE: Final = "Exclusive and Failover consumers get every message at once, whatever its time."


def summary_lines(answer: Any) -> Iterator[str]:
    due = f", {answer['due']} of them due" if answer["due"] else ""
    yield f"messages that wait  {answer['messages']}{due}"
    yield f"not acknowledged    {answer['backlog']}, these included"
    if answer["pending"] or answer["toBeSentAgain"]:
        yield f"with consumers      {answer['pending']}, and {answer['toBeSentAgain']} to be sent again"
    if held_up := answer.get("heldUpBy"):  # an older broker does not say
        yield f"held up             {held_up}"
    reasons = answer["notRead"]
    if answer["unread"]:
        yield f"not read yet        {answer['unread']}"
        yield from _reason_lines(reasons)
    if answer["isBeingRead"] and not reasons:
        yield "the index is being read back from the buckets on disk"
    at = due_text(answer["nextDueMs"])
    # Not the first of what is due: the index no longer has all of their times.
    yield f"next due            {f'now, since {at} or before' if answer['due'] else at}"
    yield f"index in memory     {answer['indexBytes']} bytes{' (shared)' if answer['isShared'] else ''}"
    if answer["keepsBuckets"]:
        yield f"buckets on disk     {answer['buckets']}, {answer['bucketBytes']} bytes"
    if answer["partitions"]:
        yield f"partitions          {answer['partitions']}, of which this is the sum"
    if not answer["holdsBack"]:
        yield AT_ONCE


def histogram_lines(answer: Any, asked_ms: int) -> Iterator[str]:
    classes, width_ms = answer["classes"], answer["widthMs"]
    if not classes:
        yield from nothing_lines(answer)
        return
    most = max(row["messages"] for row in classes)
    asked = "" if width_ms == asked_ms else f" ({width_text(asked_ms)} would be too many lines)"
    yield f"each line is {width_text(width_ms)}{asked}"
    for row in classes:
        bar = "#" * max(1, round(BAR_WIDTH * row["messages"] / most))
        about = "~" if row.get("isEstimated") else ""
        yield f"{due_text(row['fromMs']):24}  {about + str(row['messages']):>11}  {bar}"
    yield from more_lines(answer["notRead"])


def list_lines(answer: Any, start: str) -> Iterator[str]:
    for message in answer["messages"]:
        place = f"{message['ledgerId']}:{message['entryId']}"
        yield f"{place:20} {due_text(message['dueMs'])}"
    if answer["next"] is not None:
        yield f"more: --from {answer['next']}"
    if not answer["messages"]:
        yield from nothing_lines(answer, "" if start == "0:0" else f" from {start} on")
    else:
        yield from more_lines(answer["notRead"])


def precision_lines(answer: Any) -> Iterator[str]:
    if (by_partition := answer.get("byPartition")) is None:
        yield _precision_text(answer["precisionMs"])
    else:
        for partition, precision_ms in by_partition.items():
            yield f"partition {partition}: {_precision_text(precision_ms)}"
        yield "partitions differ: --set gives all of them one precision"
    if not answer["holdsBack"]:
        yield f"without effect now: {AT_ONCE}"


def _precision_text(precision_ms: int | None) -> str:
    if precision_ms is None:
        return "no precision of its own: the broker's setting holds, by default each message at its time"
    if precision_ms <= 1:
        return "each message is delivered at its time"
    width = width_text(precision_ms)
    return f"messages are delivered together every {width}, each less than {width} before its time"


def nothing_lines(answer: Any, where: str = "") -> Iterator[str]:
    """Nothing is known to wait; that nothing does is said only if all has been read."""
    reasons = answer["notRead"]
    if not reasons:
        yield f"no message waits{where}"
        return
    yield f"no message is known to wait{where}; entries not read yet: {_entries(reasons)}"
    yield from _reason_lines(reasons)


def more_lines(reasons: Sequence[Any]) -> Iterator[str]:
    if reasons:
        yield f"entries not read yet, which may have to wait too: {_entries(reasons)}"
        yield from _reason_lines(reasons)


def _reason_lines(reasons: Sequence[Any]) -> Iterator[str]:
    anywhere: dict[str, int] = {}
    for one in reasons:
        if one["startLedger"] is None:
            anywhere[one["text"]] = anywhere.get(one["text"], 0) + one["entries"]
        else:
            where = f"ledgers {one['startLedger']}-{one['endLedger']}"
            if one["partition"] is not None:
                where = f"partition {one['partition']}, {where}"
            yield f"  {one['entries']} ({where}): {one['text']}"
    for text, entries in anywhere.items():
        yield f"  {entries}: {text}"


def _entries(reasons: Sequence[Any]) -> int:
    return sum(one["entries"] for one in reasons)


# -- parts of an index -----------------------------------------------------------------------------------

_COLUMNS: Final = (
    ("STATE", "<"),
    ("PARTITION", ">"),
    ("RANGE", "<"),
    ("IN LEDGER", ">"),
    ("WAIT", ">"),
    ("NOT READ", ">"),
    ("ON DISK", ">"),
    ("IN MEMORY", ">"),
    ("BYTES", ">"),
    ("SEGMENTS", ">"),
    ("DUE", "<"),
)


def bucket_lines(parts: Sequence[Any], *, keeps_buckets: bool, holds_back: bool) -> Iterator[str]:
    """`keeps_buckets`: whether any could be on disk; `holds_back`: as in the summary."""
    day = _only_day(parts)
    rows = [_bucket_row(part, day) for part in parts]
    if rows:
        hidden = set() if any(part["partition"] is not None for part in parts) else {"PARTITION"}
        if not any(part["notRead"] for part in parts):
            hidden.add("NOT READ")
        columns = [*_COLUMNS[:-1], (f"DUE ON {day}" if day else "DUE", "<")]
        yield from _table(columns, rows, hidden)
    waiting, unread = (sum(part[key] for part in parts) for key in ("messages", "notRead"))
    yield f"messages that wait: {waiting}" + (f"; entries not read yet: {unread}" if unread else "")
    reasons = {(part["state"], part["why"]) for part in parts if part["notRead"]}
    yield from (f"  {state}: {why}" for state, why in sorted(reasons))
    if not holds_back:
        yield AT_ONCE
    elif not keeps_buckets:
        yield "the index is in memory, without buckets (see docs/delayed-delivery.md)"
    elif not unread and {part["state"] for part in parts} <= {"growing", "memory"}:
        yield NO_BUCKET


def _only_day(parts: Sequence[Any]) -> str:
    """The date that all due times share, printed once to keep rows short; empty: several or none."""
    times = [part[key] for part in parts for key in ("firstDueMs", "lastDueMs") if part[key] is not None]
    if not times or max(times) > DUE_MS_MAX:
        return ""
    first, last = (due_text(time_ms).partition(" ")[0] for time_ms in (min(times), max(times)))
    return first if first == last else ""


def _bucket_row(part: Any, day: str) -> list[str]:
    """`day` is left out of the due times."""
    segments = part["segments"]
    loaded = (
        f"{sum(segment['isLoaded'] for segment in segments)} of {len(segments)} loaded" if segments else "-"
    )
    about = "~" if part["isEstimated"] else ""
    is_there = not part["notRead"]
    first, last = part["firstDueMs"], part["lastDueMs"]
    due = "-" if first is None else f"{due_text(first)} to {due_text(last)}"
    return [
        part["state"],
        "" if part["partition"] is None else str(part["partition"]),
        part["range"] or "-",
        "-" if part["ledgerId"] is None else str(part["ledgerId"]),
        f"{about}{part['messages']}" if is_there else "-",
        str(part["notRead"] or "-"),
        str(part["rowsOnDisk"]) if is_there else "-",
        str(part["rowsInMemory"]) if is_there else "-",
        str(part["bytes"]) if part["ledgerId"] is not None else "-",
        loaded,
        due.replace(f"{day} ", "") if day else due,
    ]


def content_lines(answer: Any) -> Iterator[str]:
    waiting = sum(one["waiting"] for one in answer["ledgers"])
    yield f"bucket {answer['range']} of {answer['topic']}"
    yield f"property            {answer['property']}={answer['ledgerId']}"
    yield f"in ledger           {answer['ledgerId']}, {answer['bytes']} bytes"
    yield f"messages            {answer['messages']} when it was sealed, {waiting} of them wait"
    yield ""
    columns = (("SEGMENT", ">"), ("ENTRY", ">"), ("MESSAGES", ">"), ("BYTES", ">"), ("", "<"), ("DUE", "<"))
    segments = [
        [
            str(one["number"]),
            f"{answer['ledgerId']}:{one['number']}",
            str(one["messages"]),
            str(one["bytes"]),
            "in memory" if one["isLoaded"] else "on disk",
            f"{due_text(one['firstDueMs'])} to {due_text(one['lastDueMs'])}",
        ]
        for one in answer["segments"]
    ]
    yield from _table(columns, segments, set())
    yield ""
    by_ledger = (("LEDGER", ">"), ("MESSAGES", ">"), ("WAIT", ">"), ("ENTRIES", "<"))
    ledgers = [
        [
            str(one["ledgerId"]),
            str(one["messages"]),
            str(one["waiting"]),
            f"{one['firstEntry']} to {one['lastEntry']}",
        ]
        for one in answer["ledgers"]
    ]
    yield from _table(by_ledger, ledgers, set())


def content_message_lines(answer: Any) -> Iterator[str]:
    for one in answer["messages"]:
        place = f"{one['ledgerId']}:{one['entryId']}"
        over = "" if one["waits"] else "  does not wait any more"
        yield f"{place:20} {due_text(one['dueMs'])}{over}"
    if answer["next"] is not None:
        yield f"more: --from {answer['next']}"
    if not answer["messages"]:
        yield "it has no more messages"


def _table(
    columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], hidden: set[str]
) -> Iterator[str]:
    """The last column is as wide as it comes."""
    shown = [place for place, (name, _) in enumerate(columns) if name not in hidden]
    cells = [[name for name, _ in columns], *rows]
    widths = {place: max(len(row[place]) for row in cells) for place in shown}
    for row in cells:
        yield "  ".join(f"{row[place]:{columns[place][1]}{widths[place]}}" for place in shown).rstrip()


# -- times -----------------------------------------------------------------------------------------------


def width_text(width_ms: int) -> str:
    """Such as `17h 4m`: exact, without the units of which there are none."""
    parts, left = [], width_ms
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts)


def due_text(time_ms: int | None) -> str:
    """`2026-11-22 12:00:00.000Z`, for tables; "-": no time is known."""
    if time_ms is None:
        return "-"
    if time_ms > DUE_MS_MAX:
        return "after the year 9999"
    try:
        return (EPOCH + timedelta(milliseconds=time_ms)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except OverflowError:
        return f"{time_ms} ms"
