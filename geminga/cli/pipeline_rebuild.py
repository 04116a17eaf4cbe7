"""`geminga pipeline rebuild`: the buckets of a delayed index made anew, or checked and repaired.
docs/rebuild.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from geminga.cli.main import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.pipeline_spark import PLAIN, add_master, session, tell

if TYPE_CHECKING:
    from geminga.pipeline.buckets import Encoded, Fault, Range
    from geminga.pipeline.buckets_backlog import Backlog, Source
    from geminga.tracker.bucket_owner import BucketOwner


def run(parser: Parser, arguments: Sequence[str]) -> int:
    """0 if all buckets are right in the end, 1 if `--verify` found one that is not."""
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="a stopped broker's")
    parser.add_argument("--topic", required=True, help="one topic; a partition by its own name")
    parser.add_argument("--subscription", required=True, metavar="NAME")
    parser.add_argument("--shared", action="store_true", help="the index that all subscriptions share")
    parser.add_argument("--verify", action="store_true", help="only check every bucket against the backlog")
    parser.add_argument("--repair", action="store_true", help="check, and make anew only what is wrong")
    parser.add_argument(
        "--backlog",
        action="append",
        metavar="FILE",
        help="Parquet with ledger_id, entry_id, deliver_at_ms, instead of stored messages; may be repeated",
    )
    add_master(parser)
    flags = parser.parse_strictly(arguments)
    import trio

    backlog, directories = trio.run(_look, flags)
    tell(f"{len(backlog.buckets)} buckets")
    jobs: _Here | _OnSpark = _Here() if flags.master == PLAIN else _OnSpark(flags.master)
    try:
        return _rebuild(flags, jobs, backlog, _sources(flags, backlog, directories))
    finally:
        jobs.close()


def _rebuild(
    flags: argparse.Namespace, jobs: _Here | _OnSpark, backlog: Backlog, sources: list[Source]
) -> int:
    import trio

    if flags.verify or flags.repair:
        ranges = sorted(set(backlog.buckets.values()))
        faults = jobs.verify(sources, ranges)
        for fault in faults:
            print(_text(fault, ranges))
        wrong = sorted({fault.range for fault in faults if not fault.is_harmless})
        print(f"{len(ranges)} buckets, {len(wrong)} of them wrong")
        if flags.verify or not wrong:
            return EXIT_FAILED if wrong else EXIT_OK
        ranges = [ranges[number] for number in wrong]
    else:
        ranges = jobs.ranges(sources)
    count, rows = trio.run(_load, flags, jobs.build(sources, ranges), ranges)
    print(f"{count} buckets made, of {rows:,} delayed messages")
    return EXIT_OK


def _text(fault: Fault, ranges: Sequence[Range]) -> str:
    one = ranges[fault.range]
    place = f", the first {fault.ledger_id}:{fault.entry_id}" if fault.entry_id >= 0 else ""
    return f"ledgers {one.first} to {one.last}: {fault.fault}, {fault.positions:,} messages{place}"


def _owner(flags: argparse.Namespace, opened: Any) -> BucketOwner:
    from geminga.tracker.bucket_owner import CursorOwner, TopicOwner

    return TopicOwner(opened.topic) if flags.shared else CursorOwner(opened.cursor)


async def _look(flags: argparse.Namespace) -> tuple[Backlog, list[str]]:
    from geminga.cli.stopped_topic import opened_topic
    from geminga.clock import RealClock
    from geminga.pipeline.buckets_store import backlog_of

    async with opened_topic(flags.data_dir, flags.topic, flags.subscription) as opened:
        owner = _owner(flags, opened)
        return backlog_of(opened.topic, opened.cursor, owner, RealClock().now_ms()), opened.directories


def _sources(flags: argparse.Namespace, backlog: Backlog, directories: list[str]) -> list[Source]:
    from geminga.pipeline.buckets_backlog import parquet_sources, stored_sources

    if not flags.backlog:
        return list(stored_sources(directories, backlog))
    only_buckets = backlog._replace(ledgers=frozenset())
    checks = flags.verify or flags.repair
    stored = stored_sources(directories, only_buckets) if checks else []
    return [*parquet_sources(flags.backlog), *stored]


async def _load(
    flags: argparse.Namespace, buckets: Iterator[Encoded], ranges: Sequence[Range]
) -> tuple[int, int]:
    """Load them, and take away what they replace: every other bucket, or with `--repair` those of the same
    ranges.
    """
    from geminga.cli.stopped_topic import opened_topic
    from geminga.pipeline.buckets_store import load, named_buckets, unname

    rows = 0

    def counted() -> Iterator[Encoded]:
        nonlocal rows
        for bucket in buckets:
            rows += bucket.rows
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
        from geminga.pipeline.buckets_here import verify

        return verify(sources, ranges)

    def ranges(self, sources: list[Source]) -> list[Range]:
        from geminga.pipeline.buckets_here import ranges_of
        from geminga.tracker.bucket_settings import BucketSettings

        return ranges_of(sources, BucketSettings())

    def build(self, sources: list[Source], ranges: Sequence[Range]) -> Iterator[Encoded]:
        from geminga.pipeline.buckets_here import build
        from geminga.tracker.bucket_settings import BucketSettings

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

    def ranges(self, sources: list[Source]) -> list[Range]:
        from geminga.pipeline.spark.buckets import ranges_of
        from geminga.tracker.bucket_settings import BucketSettings

        return ranges_of(self._spark, sources, BucketSettings())

    def build(self, sources: list[Source], ranges: Sequence[Range]) -> Iterator[Encoded]:
        from geminga.pipeline.spark.buckets import build
        from geminga.tracker.bucket_settings import BucketSettings

        return build(self._spark, sources, ranges, BucketSettings())

    def close(self) -> None:
        self._spark.stop()
