"""`geminga pipeline replay`: an export back into topics, of any broker. docs/pipeline-export.md."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from geminga.cli.arguments.options import count, duration_ms, pair, rate
from geminga.cli.arguments.parser import EXIT_OK, Parser
from geminga.cli.pipeline.export import add_broker, broker_options
from geminga.cli.pipeline.spark import PLAIN, tell

if TYPE_CHECKING:
    from geminga.pipeline.export.replay import Replayed

DELIVERIES = ("auto", "exactly-once", "at-least-once")


def run(parser: Parser, arguments: Sequence[str]) -> int:
    """0 once every message is stored, 1 if one is not; running it again goes on where it can."""
    _add_flags(parser)
    flags = parser.parse_strictly(arguments)
    options = broker_options(flags) | {"compression": flags.compression}
    choices = {
        "rename": dict(flags.rename),
        "only": flags.topic,
        "namespace": flags.namespace,
        "subscriptions": flags.subscription,
        "delivery": flags.delivery,
        "shift_ms": flags.shift,
        "batch_rows": flags.batch_rows,
        "rate": flags.rate,
        "by_key": flags.by_key,
        "append": flags.append,
        "schemas": not flags.no_schemas,
        "name": flags.name,
        "progress": tell,
    }
    _show(_replay(flags, options, choices), flags)
    return EXIT_OK


def _replay(flags: argparse.Namespace, options: dict[str, str], choices: dict[str, Any]) -> Replayed:
    if flags.master == PLAIN:
        from geminga.pipeline.export.replay import replay as replay_here

        return replay_here(flags.directory, options, **choices)
    from geminga.pipeline.spark.jobs import session
    from geminga.pipeline.spark.replay import replay

    with session(flags.master) as spark:
        return replay(spark, flags.directory, options, **choices)


def _add_flags(parser: Parser) -> None:
    add = parser.add_argument
    add("directory", metavar="DIR", help="or URL that an export was written to")
    add_broker(parser)
    add("--topic", action="append", default=[], help="only this one of the export; may be repeated")
    add(
        "--rename", action="append", type=pair, default=[], metavar="OLD=NEW", help="a topic; may be repeated"
    )
    add("--namespace", metavar="TENANT/NAMESPACE", help="instead of that of the source")
    add(
        "--subscription",
        action="append",
        default=[],
        metavar="NAME",
        help="make it before the first message, so that it holds them all; may be repeated",
    )
    add(
        "--delivery",
        choices=DELIVERIES,
        default="auto",
        help="whether a retry may store twice (auto)",
    )
    add(
        "--shift",
        type=_shift,
        default=0,
        metavar="TIME",
        help="move delivery times, such as 2h or =-30m (0: keep them; overdue ones come at once)",
    )
    add("--rate", type=rate, default=0, metavar="N", help="messages a second, all together (0: no limit)")
    add(
        "--batch-rows",
        type=count,
        default=0,
        metavar="N",
        help="make new batches of at most N messages (0: keep the batches as they were)",
    )
    add("--compression", choices=("none", "lz4", "zlib", "zstd", "snappy"), default="none", help="(none)")
    add("--by-key", action="store_true", help="choose partitions by key instead of keeping them")
    add("--append", action="store_true", help="also write to topics that hold messages already")
    add("--no-schemas", action="store_true", help="register no schemas")
    add("--name", help="name of this replay: with deduplication, the same name resumes it")
    add("--json", action="store_true", help="print one JSON object for each partition")


def _shift(text: str) -> int:
    if text.startswith("-"):
        return -duration_ms(text[1:])
    return duration_ms(text)


def _show(done: Replayed, flags: argparse.Namespace) -> None:
    for row in done.table.to_pylist():
        if flags.json:
            print(json.dumps(row))
            continue
        skipped = f", {row['skipped']:,} were there" if row["skipped"] else ""
        print(f"{row['rows']:>12,} messages in {row['entries']:,} entries{skipped}  {row['target']}")
    if flags.json:
        return
    if done.table.num_rows:
        tell(
            "exactly once: the broker deduplicates, so that what is tried again is stored once"
            if done.exactly_once
            else "at least once: the broker does not deduplicate, so what was tried again may be there twice"
        )
    if not flags.subscription:
        tell("no --subscription was made: a broker may delete messages that no subscription holds")
