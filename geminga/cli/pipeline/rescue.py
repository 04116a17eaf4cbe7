"""`geminga pipeline rescue`: every entry that a broken data directory still holds. docs/rescue.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.pipeline.export import add_options
from geminga.cli.pipeline.spark import PLAIN, WholeDirectory, add_master, session, tell

if TYPE_CHECKING:
    from geminga.pipeline.buckets.rescue import Held
    from geminga.pipeline.buckets.rescue_files import Hole

SHOWN_MAX = 20


def run(parser: Parser, arguments: Sequence[str]) -> int:
    """0 if all that was written is whole, 1 if something is damaged; what can be read is rescued anyway."""
    parser.add_argument(
        "--data-dir",
        action="append",
        required=True,
        metavar="DIR",
        help="a data directory, or a folder above journals or entry logs, also a URL; may be repeated",
    )
    parser.add_argument("--out", metavar="DIR", help="write the entries there as Parquet")
    add_options(parser, "of a file system, such as fs.s3a.endpoint=URL")
    add_master(parser)
    flags = parser.parse_strictly(arguments)
    with _held(flags.data_dir):
        ledgers, holes = (_plain if flags.master == PLAIN else _spark)(flags)
    _show(ledgers, holes)
    return EXIT_FAILED if holes else EXIT_OK


@contextlib.contextmanager
def _held(directories: Sequence[str]) -> Iterator[None]:
    """So that no broker runs meanwhile; a directory that cannot be locked (a read-only copy) is read all the
    same.
    """
    from geminga.errors import StorageError
    from geminga.storage.disk import RealDisk
    from geminga.storage.disk_errors import DirectoryInUse

    with contextlib.ExitStack() as held:
        for directory in directories:
            if not os.path.exists(os.path.join(directory, "lock")):
                continue
            try:
                held.callback(RealDisk().lock(directory).release)
            except DirectoryInUse as error:
                raise StorageError(f"{error}; stop the broker first") from None
            except StorageError as error:
                print(f"not locked: {error}", file=sys.stderr)
        yield


def _plain(flags: argparse.Namespace) -> tuple[list[Held], list[Hole]]:
    from geminga.pipeline.buckets.rescue import all_topics, ledgers_in, owned, take_inventory, write_rescued
    from geminga.pipeline.buckets.rescue_files import plan
    from geminga.pipeline.files.files import Files
    from geminga.pipeline.files.stored_disk import disk_by_url

    files = Files(_settings(flags))
    disk = disk_by_url(files)
    known = plan(disk, flags.data_dir, files)
    tell(f"{len(known.slices)} slices of files")
    inventories = [take_inventory(disk, part) for part in known.slices]
    topics = all_topics(known, inventories)
    if flags.out:
        with WholeDirectory(flags.out, files.settings) as directory:
            for number, (part, own) in enumerate(zip(known.slices, owned(inventories), strict=True)):
                write_rescued(files, directory.path, (number, part, own, topics))
    holes = known.holes + [hole for inventory in inventories for hole in inventory.holes]
    return ledgers_in(inventories, topics), holes


def _settings(flags: argparse.Namespace) -> dict[str, str]:
    """The options of file systems. Raises `BadOption` for any other option."""
    from geminga.pipeline.errors import BadOption
    from geminga.pipeline.files.locations import without_settings

    left, settings = without_settings(dict(flags.option))
    if left:
        raise BadOption(
            f"option {next(iter(left))!r} is unknown; give one of a file system, such as fs.s3a.endpoint"
        )
    return settings


def _spark(flags: argparse.Namespace) -> tuple[list[Held], list[Hole]]:
    from geminga.pipeline.spark.jobs import session_settings
    from geminga.pipeline.spark.rescue import rescue

    spark = session(flags.master)
    try:
        settings = _settings(flags)
        if any("://" in name for name in (*flags.data_dir, flags.out or "")):
            settings = session_settings(spark) | settings
        found = rescue(spark, *flags.data_dir, settings=settings, progress=tell)
        if flags.out:
            with WholeDirectory(flags.out, settings) as directory:
                directory.keep_only(found.write(directory.path))
        return found.ledgers, found.holes
    finally:
        spark.stop()


def _show(ledgers: list[Held], holes: list[Hole]) -> None:
    print(f"{'ledger':>12} {'entries':>12} {'missing':>10}  topic")
    for held in ledgers:
        missing = sum(last - first + 1 for first, last in held.missing)
        print(
            f"{held.ledger_id:>12} {held.entries:>12,} {missing:>10,}  {held.topic or '(no footer names it)'}"
        )
    for hole in holes[:SHOWN_MAX]:
        print(hole)
    if len(holes) > SHOWN_MAX:
        print(f"and {len(holes) - SHOWN_MAX} places more")
