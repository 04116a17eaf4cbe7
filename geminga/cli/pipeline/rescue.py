"""`geminga pipeline rescue`: every entry that a broken data directory still holds. docs/rescue.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
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
        help="a data directory, or any directory with journals or entry logs below it; may be repeated",
    )
    parser.add_argument("--out", metavar="DIR", help="write the entries there as Parquet")
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
    from geminga.storage.disk import DirectoryInUse, RealDisk

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
    import pyarrow as pa

    from geminga.pipeline.buckets.rescue import all_topics, ledgers_in, owned, rescued_batches, take_inventory
    from geminga.pipeline.buckets.rescue_columns import ENTRIES
    from geminga.pipeline.buckets.rescue_files import plan
    from geminga.storage.disk import RealDisk

    known = plan(RealDisk(), flags.data_dir)
    tell(f"{len(known.slices)} slices of files")
    inventories = [take_inventory(RealDisk(), part) for part in known.slices]
    topics = all_topics(known, inventories)
    if flags.out:
        with WholeDirectory(flags.out) as directory:
            for number, (part, own) in enumerate(zip(known.slices, owned(inventories), strict=True)):
                batches = list(rescued_batches(RealDisk(), part, own, topics))
                if batches:
                    directory.write(f"part-{number:05d}", pa.Table.from_batches(batches, ENTRIES))
    holes = known.holes + [hole for inventory in inventories for hole in inventory.holes]
    return ledgers_in(inventories, topics), holes


def _spark(flags: argparse.Namespace) -> tuple[list[Held], list[Hole]]:
    from geminga.pipeline.spark.rescue import rescue

    spark = session(flags.master)
    try:
        found = rescue(spark, *flags.data_dir, progress=tell)
        if flags.out:
            with WholeDirectory(flags.out) as directory:
                found.entries.write.mode("append").parquet(f"file://{directory.path}")
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
