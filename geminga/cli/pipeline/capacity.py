"""`geminga pipeline capacity`: how large a delayed index gets. docs/capacity.md."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from geminga.cli.arguments.options import positive
from geminga.cli.arguments.parser import EXIT_OK, Parser
from geminga.cli.pipeline.pictures import check_picture
from geminga.cli.pipeline.spark import PLAIN, add_master, session, tell

if TYPE_CHECKING:
    from geminga.pipeline.buckets.capacity import Plan, Row


def run(parser: Parser, arguments: Sequence[str]) -> int:
    parser.add_argument("--messages", type=positive, default=10_000_000, help="in the backlog (10000000)")
    parser.add_argument(
        "--row",
        action="append",
        type=_row,
        metavar="X,Y",
        help="messages in a millisecond, and bits by which due times are cut (1,10 4,10 8,10 8,15)",
    )
    parser.add_argument(
        "--delays",
        action="append",
        metavar="HOW",
        help="fixed, uniform:1d, exponential:1h, normal:1h,10m or choice:10s,1m,1h; may be repeated",
    )
    parser.add_argument("--entries-per-ledger", type=positive, default=50_000, help="(50000)")
    parser.add_argument("--batch", type=positive, default=1, help="messages in an entry (1)")
    parser.add_argument("--png", metavar="FILE", help="draw a plot into this file (needs geminga[plot])")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each row")
    add_master(parser)
    flags = parser.parse_strictly(arguments)
    if flags.png:
        check_picture(flags.png)
    rows = _rows(flags, list(_plans(flags)), lambda row: tell(_done(row)))
    if flags.json:
        for row in rows:
            print(json.dumps(row.as_dict()))
    else:
        from geminga.pipeline.buckets.capacity import text_of

        print(text_of(rows))
    if flags.png:
        from geminga.pipeline.buckets.capacity_plot import png_of
        from geminga.storage.disk import RealDisk

        RealDisk(for_owner=False).replace_file(os.path.abspath(flags.png), png_of(rows))
    return EXIT_OK


def _done(row: Row) -> str:
    plan = row.plan
    return (
        f"{plan.messages:,} messages, {plan.per_ms:g} in a millisecond, cut by {plan.bits} bits, "
        f"{plan.delays}: {row.seconds:.1f} s"
    )


def _row(text: str) -> tuple[float, int]:
    per_ms, _, bits = text.partition(",")
    try:
        return float(per_ms), int(bits)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected two numbers such as 8,10, not {text!r}") from None


def _plans(flags: argparse.Namespace) -> list[Plan]:
    from geminga.pipeline.buckets.capacity import ARTICLE, Plan

    return [
        Plan(flags.messages, per_ms, bits, delays, flags.entries_per_ledger, flags.batch)
        for delays in flags.delays or ["fixed"]
        for per_ms, bits in flags.row or list(ARTICLE)
    ]


def _rows(flags: argparse.Namespace, plans: list[Plan], progress: Callable[[Row], None]) -> list[Row]:
    if flags.master == PLAIN:
        from geminga.pipeline.buckets.capacity import rows_of

        return rows_of(plans, progress)
    from geminga.pipeline.spark.capacity import capacity

    spark = session(flags.master)
    try:
        return capacity(spark, plans, progress=progress)
    finally:
        spark.stop()
