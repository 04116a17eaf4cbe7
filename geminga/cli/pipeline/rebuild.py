"""`geminga pipeline rebuild`: rebuild the buckets of a delayed index, or check and repair them.
docs/rebuild.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from geminga.cli.arguments.options import DEFAULT_URL, URL_VARIABLE
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.pipeline.export import add_options
from geminga.cli.pipeline.spark import PLAIN, add_master, session, tell
from geminga.clock import RealClock

if TYPE_CHECKING:
    from geminga.pipeline.buckets.backlog import Backlog, Source
    from geminga.pipeline.buckets.buckets import Encoded, Fault
    from geminga.tracker.buckets.bucket_store import BucketOwner
    from geminga.tracker.format.stored_bucket import KeyRange


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
    add_options(parser, "for a running broker, such as pulsar.client.authParams=token:...")
    parser.add_argument("--topic", required=True, help="one topic; a partition by its own name")
    parser.add_argument("--subscription", required=True, metavar="NAME")
    parser.add_argument(
        "--shared",
        action="store_true",
        help="the index that all subscriptions share (a running broker knows)",
    )
    parser.add_argument("--verify", action="store_true", help="only check every bucket against the backlog")
    parser.add_argument("--repair", action="store_true", help="check, and rebuild only the wrong ones")
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
    from geminga.pipeline.buckets.buckets import apart
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
        if checks:
            # What is due is on its way: its bucket may be gone by now, and nothing is wrong.
            rows = rows_due_after(RealClock().now_ms())
            found = jobs.verify([*rows, *served_buckets(index, buckets)], buckets)
            wrong = _tell_faults(still_faults(index, found), buckets)
            if flags.verify or not wrong:
                return EXIT_FAILED if wrong else EXIT_OK
        rows = rows_due_after(0)
        ranges = apart(buckets[ledger_id] for ledger_id in wrong) if checks else jobs.ranges(rows)
        done = Adopted()
        for adopted in index.adopt(jobs.build(rows, ranges), buckets.values()):
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

    from geminga.pipeline.buckets.buckets import apart

    old: Collection[int] = backlog.buckets
    if flags.verify or flags.repair:
        old = _tell_faults(jobs.verify(sources, backlog.buckets), backlog.buckets)
        if flags.verify or not old:
            return EXIT_FAILED if old else EXIT_OK
        ranges = apart(backlog.buckets[ledger_id] for ledger_id in old)
    else:
        ranges = jobs.ranges(sources)
    unread: list[int] = []
    count, rows = trio.run(_load, flags, jobs.build(sources, ranges), old, unread)
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
        places.append(f"{unknown:,} at least in logs without a footer, of unknown ledgers")
    return f"{len(codes):,} messages left out, as their records are damaged: {'; '.join(places)}"


def _tell_faults(faults: Sequence[Fault], buckets: Mapping[int, KeyRange]) -> list[int]:
    """The ledgers of the buckets that are wrong."""
    for fault in sorted(faults, key=lambda fault: (buckets[fault.bucket], fault)):
        print(_text(fault, buckets[fault.bucket]))
    wrong = sorted({fault.bucket for fault in faults if not fault.is_harmless})
    if buckets:
        print(f"{len(buckets)} buckets, {len(wrong)} of them wrong")
    else:
        # "0 of them wrong" was taken for a check that went well.
        print(
            "nothing was checked: this index has no bucket on disk; its delayed messages, if any, are in"
            " memory"
        )
    return wrong


def _text(fault: Fault, covered: KeyRange) -> str:
    from geminga.pipeline.buckets.buckets import text_of

    place = f", the first {fault.ledger_id}:{fault.entry_id}" if fault.entry_id >= 0 else ""
    bucket = f"bucket {text_of(covered)} in ledger {fault.bucket}"
    return f"{bucket}: {fault.fault}, {fault.positions:,} messages{place}"


def _owner(flags: argparse.Namespace, opened: Any) -> BucketOwner:
    from geminga.tracker.buckets.bucket_store import CursorOwner, TopicOwner

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
    flags: argparse.Namespace, buckets: Iterator[Encoded], old: Collection[int], unread: list[int]
) -> tuple[int, int]:
    """Load them, and take away what they replace: the buckets in these ledgers. Adds to `unread` what they
    could not have.
    """
    from geminga.cli.pipeline.stopped_topic import opened_topic
    from geminga.pipeline.buckets.store import load, unname

    rows = 0

    def counted() -> Iterator[Encoded]:
        nonlocal rows
        for bucket in buckets:
            rows += bucket.rows
            unread.extend(bucket.unread)
            yield bucket

    async with opened_topic(flags.data_dir, flags.topic, flags.subscription) as opened:
        owner = _owner(flags, opened)
        loaded = await load(opened.topic, owner, counted(), old)
        await unname(opened.topic, owner, old)
    return loaded, rows


class _Here:
    """The jobs in this process."""

    def verify(self, sources: list[Source], buckets: Mapping[int, KeyRange]) -> list[Fault]:
        from geminga.pipeline.buckets.here import verify

        return verify(sources, buckets)

    def ranges(self, sources: list[Source]) -> list[KeyRange]:
        from geminga.pipeline.buckets.here import ranges_of
        from geminga.tracker.buckets.bucket_settings import BucketSettings

        return ranges_of(sources, BucketSettings())

    def build(self, sources: list[Source], ranges: Sequence[KeyRange]) -> Iterator[Encoded]:
        from geminga.pipeline.buckets.here import build
        from geminga.tracker.buckets.bucket_settings import BucketSettings

        return build(sources, ranges, BucketSettings())

    def close(self) -> None:
        pass


class _OnSpark:
    """The jobs on Spark."""

    def __init__(self, master: str) -> None:
        self._spark = session(master)

    def verify(self, sources: list[Source], buckets: Mapping[int, KeyRange]) -> list[Fault]:
        from geminga.pipeline.spark.buckets import verify

        return verify(self._spark, sources, buckets)

    def ranges(self, sources: list[Source]) -> list[KeyRange]:
        from geminga.pipeline.spark.buckets import ranges_of
        from geminga.tracker.buckets.bucket_settings import BucketSettings

        return ranges_of(self._spark, sources, BucketSettings())

    def build(self, sources: list[Source], ranges: Sequence[KeyRange]) -> Iterator[Encoded]:
        from geminga.pipeline.spark.buckets import build
        from geminga.tracker.buckets.bucket_settings import BucketSettings

        return build(self._spark, sources, ranges, BucketSettings())

    def close(self) -> None:
        self._spark.stop()
