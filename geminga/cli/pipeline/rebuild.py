"""`geminga pipeline rebuild`: the buckets of a delayed index made anew, or checked and repaired.
docs/rebuild.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from geminga.cli.arguments.options import DEFAULT_URL, URL_VARIABLE
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.pipeline.export import add_options
from geminga.cli.pipeline.spark import PLAIN, add_master, session, tell
from geminga.clock import RealClock

if TYPE_CHECKING:
    from geminga.pipeline.buckets.backlog import Backlog, Source
    from geminga.pipeline.buckets.buckets import Encoded, Fault, Range
    from geminga.tracker.buckets.bucket_owner import BucketOwner


def run(parser: Parser, arguments: Sequence[str]) -> int:
    """0 if all buckets are right in the end, 1 if `--verify` found one that is not, or messages were left out
    because they cannot be read.
    """
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--data-dir", metavar="DIR", help="a stopped broker's")
    where.add_argument("--admin-url", metavar="URL", help="a running broker's admin API")
    parser.add_argument(
        "--service-url",
        "--url",
        default=os.environ.get(URL_VARIABLE, DEFAULT_URL),
        help=f"where a running broker's messages are read (default: ${URL_VARIABLE} or {DEFAULT_URL})",
    )
    add_options(parser, "for a running broker")
    parser.add_argument("--topic", required=True, help="one topic; a partition by its own name")
    parser.add_argument("--subscription", required=True, metavar="NAME")
    parser.add_argument(
        "--shared",
        action="store_true",
        help="the index that all subscriptions share (a running broker knows)",
    )
    parser.add_argument("--verify", action="store_true", help="only check every bucket against the backlog")
    parser.add_argument("--repair", action="store_true", help="check, and make anew only what is wrong")
    parser.add_argument(
        "--allow-damaged",
        action="store_true",
        help="exit with 0 also if messages are left out because their records are damaged",
    )
    parser.add_argument(
        "--backlog",
        action="append",
        metavar="FILE",
        help="Parquet with ledger_id, entry_id, deliver_at_ms, instead of stored messages; may be repeated",
    )
    add_master(parser)
    flags = parser.parse_strictly(arguments)
    if flags.admin_url is not None:
        return _rebuild_served(flags)
    import trio

    backlog, directories = trio.run(_look, flags)
    tell(f"{len(backlog.buckets)} buckets")
    jobs: _Here | _OnSpark = _Here() if flags.master == PLAIN else _OnSpark(flags.master)
    try:
        return _rebuild(flags, jobs, backlog, _sources(flags, backlog, directories))
    finally:
        jobs.close()


# -- a running broker ---------------------------------------------------------------------------------------


def _rebuild_served(flags: argparse.Namespace) -> int:
    from geminga.pipeline.buckets.backlog import parquet_sources
    from geminga.pipeline.buckets.served import (
        Adopted,
        ServedIndex,
        served_buckets,
        served_rows,
        still_faults,
    )
    from geminga.pipeline.topics.options import parse_options

    given = {"service.url": flags.service_url, "topic": flags.topic, "admin.url": flags.admin_url}
    options = parse_options(given | dict(flags.option))
    assert options.admin_url is not None
    index = ServedIndex(options.access, options.admin_url, flags.topic, flags.subscription)
    checks = flags.verify or flags.repair
    buckets = index.buckets()
    tell(f"{len(buckets)} buckets")

    def rows_due_after(due_ms: int) -> list[Source]:
        return [*(parquet_sources(flags.backlog) if flags.backlog else served_rows(index, options, due_ms))]

    jobs: _Here | _OnSpark = _Here() if flags.master == PLAIN else _OnSpark(flags.master)
    try:
        ranges: Sequence[Range] = sorted(set(buckets.values()))
        if checks:
            # What is due is on its way: its bucket may be gone by now, and nothing is wrong.
            rows = rows_due_after(RealClock().now_ms())
            found = jobs.verify([*rows, *served_buckets(index, buckets)], ranges)
            faults = still_faults(index, found, ranges)
            wrong = _tell_faults(faults, ranges)
            if flags.verify or not wrong:
                return EXIT_FAILED if wrong else EXIT_OK
            ranges = [ranges[number] for number in wrong]
        rows = rows_due_after(0)
        if not checks:
            ranges = jobs.ranges(rows, ranges)
        done = Adopted()
        for adopted in index.adopt(jobs.build(rows, ranges)):
            done = done.plus(adopted)
            tell(f"{done.buckets} of {len(ranges)} buckets taken in")
    finally:
        jobs.close()
    for text in done.refused:
        print(f"refused: {text}")
    print(
        f"{done.buckets} buckets taken in instead of {done.replaced}, of {done.messages:,} delayed messages, "
        f"{done.indexed:,} of them new to the index; {done.read_again:,} others are read again"
    )
    return EXIT_FAILED if done.refused else EXIT_OK


# -- a stopped one ------------------------------------------------------------------------------------------


def _rebuild(
    flags: argparse.Namespace, jobs: _Here | _OnSpark, backlog: Backlog, sources: list[Source]
) -> int:
    import trio

    if flags.verify or flags.repair:
        ranges = sorted(set(backlog.buckets.values()))
        wrong = _tell_faults(jobs.verify(sources, ranges), ranges)
        if flags.verify or not wrong:
            return EXIT_FAILED if wrong else EXIT_OK
        ranges = [ranges[number] for number in wrong]
    else:
        ranges = jobs.ranges(sources)
    unread: list[int] = []
    count, rows = trio.run(_load, flags, jobs.build(sources, ranges), ranges, unread)
    print(f"{count} buckets made, of {rows:,} delayed messages")
    if unread:
        print(_text_of_unread(unread))
    return EXIT_FAILED if unread and not flags.allow_damaged else EXIT_OK


def _text_of_unread(codes: Sequence[int], shown_max: int = 20) -> str:
    from geminga.tracker.format.rows import ENTRY_BITS

    ledgers = sorted({code >> ENTRY_BITS for code in codes if code >= 0})
    names = ", ".join(map(str, ledgers[:shown_max]))
    more = f" and {len(ledgers) - shown_max:,} more" if len(ledgers) > shown_max else ""
    places = [f"of ledgers {names}{more}"] if ledgers else []
    if unknown := sum(code < 0 for code in codes):
        places.append(f"{unknown:,} at least in logs without a footer, of ledgers that nobody knows")
    return f"{len(codes):,} messages left out, as their records are damaged: {'; '.join(places)}"


def _tell_faults(faults: Sequence[Fault], ranges: Sequence[Range]) -> list[int]:
    """The numbers of the ranges whose buckets are wrong."""
    for fault in faults:
        print(_text(fault, ranges))
    wrong = sorted({fault.range for fault in faults if not fault.is_harmless})
    print(f"{len(ranges)} buckets, {len(wrong)} of them wrong")
    return wrong


def _text(fault: Fault, ranges: Sequence[Range]) -> str:
    one = ranges[fault.range]
    place = f", the first {fault.ledger_id}:{fault.entry_id}" if fault.entry_id >= 0 else ""
    return f"ledgers {one.first} to {one.last}: {fault.fault}, {fault.positions:,} messages{place}"


def _owner(flags: argparse.Namespace, opened: Any) -> BucketOwner:
    from geminga.tracker.buckets.bucket_owner import CursorOwner, TopicOwner

    return TopicOwner(opened.topic) if flags.shared else CursorOwner(opened.cursor)


async def _look(flags: argparse.Namespace) -> tuple[Backlog, list[str]]:
    from geminga.cli.pipeline.stopped_topic import opened_topic
    from geminga.clock import RealClock
    from geminga.pipeline.buckets.store import backlog_of

    async with opened_topic(flags.data_dir, flags.topic, flags.subscription) as opened:
        owner = _owner(flags, opened)
        return backlog_of(opened.topic, opened.cursor, owner, RealClock().now_ms()), opened.directories


def _sources(flags: argparse.Namespace, backlog: Backlog, directories: list[str]) -> list[Source]:
    from geminga.pipeline.buckets.backlog import parquet_sources, stored_sources

    if not flags.backlog:
        return list(stored_sources(directories, backlog))
    only_buckets = backlog._replace(ledgers=frozenset())
    checks = flags.verify or flags.repair
    stored = stored_sources(directories, only_buckets) if checks else []
    return [*parquet_sources(flags.backlog), *stored]


async def _load(
    flags: argparse.Namespace, buckets: Iterator[Encoded], ranges: Sequence[Range], unread: list[int]
) -> tuple[int, int]:
    """Load them, and take away what they replace: every other bucket, or with `--repair` those of the same
    ranges. Adds to `unread` what they could not have.
    """
    from geminga.cli.pipeline.stopped_topic import opened_topic
    from geminga.pipeline.buckets.store import load, named_buckets, unname

    rows = 0

    def counted() -> Iterator[Encoded]:
        nonlocal rows
        for bucket in buckets:
            rows += bucket.rows
            unread.extend(bucket.unread)
            yield bucket

    async with opened_topic(flags.data_dir, flags.topic, flags.subscription) as opened:
        owner = _owner(flags, opened)
        old = named_buckets(owner)
        loaded = await load(opened.topic, owner, counted())
        left = {id_: one for id_, one in old.items() if not flags.repair or one in ranges}
        await unname(opened.topic, owner, left)
    return loaded, rows


class _Here:
    """The jobs in this process."""

    def verify(self, sources: list[Source], ranges: Sequence[Range]) -> list[Fault]:
        from geminga.pipeline.buckets.here import verify

        return verify(sources, ranges)

    def ranges(self, sources: list[Source], together: Sequence[Range] = ()) -> list[Range]:
        from geminga.pipeline.buckets.here import ranges_of
        from geminga.tracker.buckets.bucket_settings import BucketSettings

        return ranges_of(sources, BucketSettings(), together)

    def build(self, sources: list[Source], ranges: Sequence[Range]) -> Iterator[Encoded]:
        from geminga.pipeline.buckets.here import build
        from geminga.tracker.buckets.bucket_settings import BucketSettings

        return build(sources, ranges, BucketSettings())

    def close(self) -> None:
        pass


class _OnSpark:
    """The jobs on Spark."""

    def __init__(self, master: str) -> None:
        self._spark = session(master)

    def verify(self, sources: list[Source], ranges: Sequence[Range]) -> list[Fault]:
        from geminga.pipeline.spark.buckets import verify

        return verify(self._spark, sources, ranges)

    def ranges(self, sources: list[Source], together: Sequence[Range] = ()) -> list[Range]:
        from geminga.pipeline.spark.buckets import ranges_of
        from geminga.tracker.buckets.bucket_settings import BucketSettings

        return ranges_of(self._spark, sources, BucketSettings(), together)

    def build(self, sources: list[Source], ranges: Sequence[Range]) -> Iterator[Encoded]:
        from geminga.pipeline.spark.buckets import build
        from geminga.tracker.buckets.bucket_settings import BucketSettings

        return build(self._spark, sources, ranges, BucketSettings())

    def close(self) -> None:
        self._spark.stop()
