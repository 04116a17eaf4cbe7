"""`geminga pipeline export`: topics to Parquet with all their metadata. docs/pipeline-export.md."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from geminga.cli.arguments.options import add_url, pair
from geminga.cli.arguments.parser import EXIT_OK, Parser
from geminga.cli.pipeline.spark import PLAIN, add_master, tell

if TYPE_CHECKING:
    from geminga.pipeline.export.exporting import Exported


def run(parser: Parser, arguments: Sequence[str]) -> int:
    """0 once everything that is stored now is in the directory, 1 if it is not; then nothing was added."""
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="partitioned ones with all partitions")
    parser.add_argument("--topics-pattern", metavar="REGEX", help="all topics whose names match instead")
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="a directory that is not there yet, or a URL such as s3a://BUCKET/PATH",
    )
    parser.add_argument(
        "--continue", dest="resume", action="store_true", help="add to DIR what has been stored since"
    )
    parser.add_argument(
        "--allow-loss",
        action="store_true",
        help="continue even if messages since the last export were trimmed",
    )
    add_broker(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    flags = parser.parse_strictly(arguments)
    if flags.topics and flags.topics_pattern:
        parser.error("name topics or a pattern, not both")
    if not (flags.topics or flags.topics_pattern or flags.resume):
        parser.error("name at least one topic, or a pattern")
    options = broker_options(flags) | {"failOnDataLoss": "false" if flags.allow_loss else "true"}
    if flags.topics:
        options["topics"] = ",".join(flags.topics)
    if flags.topics_pattern:
        options["topicsPattern"] = flags.topics_pattern
    done = _export(flags, options)
    if flags.json:
        print(json.dumps({"messages": done.rows, "files": done.files, "by_topic": done.by_topic}))
    else:
        for topic, rows in sorted(done.by_topic.items()):
            print(f"{rows:>12,} messages  {topic}")
        print(f"{done.rows:>12,} messages in {done.files} files below {flags.out}")
    return EXIT_OK


def _export(flags: argparse.Namespace, options: dict[str, str]) -> Exported:
    if flags.master == PLAIN:
        from geminga.pipeline.export.exporting import export

        return export(flags.out, options, resume=flags.resume, progress=tell)
    from geminga.pipeline.spark.export import export_topics
    from geminga.pipeline.spark.jobs import session

    with session(flags.master) as spark:
        return export_topics(spark, flags.out, options, resume=flags.resume, progress=tell)


def add_broker(parser: Parser) -> None:
    """Flags that name a broker, and Spark's master."""
    add_connection(parser)
    add_master(parser)


def add_connection(parser: Parser) -> None:
    """Flags that name a broker."""
    add_url(parser)
    parser.add_argument("--admin-url", metavar="URL", help="its admin API, such as http://127.0.0.1:8080")
    add_options(
        parser,
        "of the data source, such as pulsar.client.authParams=token:..., "
        "or of a file system, such as fs.s3a.endpoint=URL",
    )


def add_options(parser: Parser, whose: str) -> None:
    """The flag for whatever has none of its own."""
    parser.add_argument(
        "--option",
        action="append",
        type=pair,
        default=[],
        metavar="NAME=VALUE",
        help=f"{whose}; may be repeated",
    )


def broker_options(flags: argparse.Namespace) -> dict[str, str]:
    options = {"service.url": flags.url} | dict(flags.option)
    if flags.admin_url:
        options["admin.url"] = flags.admin_url
    return options
