"""`geminga pipeline audit`: what logs say of deliveries. docs/pipeline-audit.md."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from geminga.cli.arguments.options import duration_ms
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.pipeline.export import add_connection, broker_options
from geminga.cli.pipeline.pictures import check_picture
from geminga.cli.pipeline.spark import PLAIN, WholeDirectory, add_master, session, tell

if TYPE_CHECKING:
    from geminga.pipeline.audit.report import Report

_PARTITION = re.compile(r"-partition-\d+$")
KIND_FLAGS = {"published": "published", "delivered": "dispatched", "acked": "acked"}


def run(parser: Parser, arguments: Sequence[str]) -> int:
    """0 if nothing is wrong, 1 if anything is, also late deliveries unless `--late` allows them."""
    _add_flags(parser)
    flags = parser.parse_strictly(arguments)
    logs = [(path, "") for path in flags.logs]
    for flag, kind in KIND_FLAGS.items():
        logs += [(path, kind) for path in getattr(flags, flag)]
    if not logs:
        parser.error("name at least one log")
    if flags.png:
        check_picture(flags.png)
    report = _chosen(_audit(flags, logs), flags)
    if flags.png:
        from geminga.pipeline.audit.plot import png_of
        from geminga.storage.disk import RealDisk

        RealDisk(for_owner=False).replace_file(os.path.abspath(flags.png), png_of(report))
    if flags.out:
        with WholeDirectory(flags.out) as directory:
            directory.write("minutes", report.minutes)
            directory.write("totals", report.totals)
            directory.write("findings", report.findings())
    _show(report, flags)
    return EXIT_FAILED if report.wrong else EXIT_OK


def _add_flags(parser: Parser) -> None:
    parser.add_argument(
        "logs",
        nargs="*",
        metavar="LOG",
        help="a Parquet file, a delivery log, a directory, or a topic, such as persistent://public/default/log",
    )
    for flag in KIND_FLAGS:
        parser.add_argument(
            f"--{flag}",
            action="append",
            default=[],
            metavar="LOG",
            help=f"a log of which every row is {flag}",
        )
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="T",
        help="report only this topic, with all its partitions; may be repeated",
    )
    parser.add_argument(
        "--subscription",
        action="append",
        default=[],
        metavar="S",
        help="report only this subscription; may be repeated",
    )
    parser.add_argument(
        "--early",
        type=duration_ms,
        metavar="TIME",
        help="how much earlier counts as early (default: as the broker's log allows, else 0)",
    )
    parser.add_argument(
        "--late", type=duration_ms, default=1000, metavar="TIME", help="how much later counts as late (1s)"
    )
    parser.add_argument(
        "--settle",
        type=duration_ms,
        default=5000,
        metavar="TIME",
        help="messages due so shortly before the end are pending, not lost (5s)",
    )
    parser.add_argument(
        "--order",
        choices=("client", "key", "subscription", "none"),
        default="client",
        help="within what messages must be in order",
    )
    parser.add_argument(
        "--level", choices=("auto", "message", "entry"), default="auto", help="what a position is"
    )
    parser.add_argument(
        "--start",
        choices=("all", "first"),
        default="all",
        help="what a subscription should receive: everything, or everything from its first message on",
    )
    parser.add_argument(
        "--leave-out-malformed",
        action="store_true",
        help="leave out events that cannot be audited, and say how many",
    )
    parser.add_argument("--out", metavar="DIR", help="write minutes, totals and findings there as Parquet")
    parser.add_argument(
        "--png", metavar="FILE", help="draw deliveries, findings and lateness by minute there"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for each subscription")
    add_connection(parser)
    add_master(parser)


def _audit(flags: argparse.Namespace, logs: list[tuple[str, str]]) -> Report:
    from geminga.pipeline.audit.logs import Log
    from geminga.pipeline.audit.settings import AuditSettings
    from geminga.pipeline.audit.topics import TopicLog

    settings = AuditSettings(
        settle_ms=flags.settle,
        early_ms=flags.early,
        late_ms=flags.late,
        order=flags.order,
        level=flags.level,
        start=flags.start,
    )
    options = broker_options(flags)
    named = [
        TopicLog(options | {"topic": name}, kind, flags.leave_out_malformed)
        if "://" in name
        else Log(name, kind, flags.leave_out_malformed)
        for name, kind in logs
    ]
    if flags.master == PLAIN:
        from geminga.pipeline.audit.audit import audit_logs

        return audit_logs(named, settings)
    from geminga.pipeline.spark.audit import audit

    spark = session(flags.master)
    try:
        return audit(spark, named, settings, progress=tell)
    finally:
        spark.stop()


def _chosen(report: Report, flags: argparse.Namespace) -> Report:
    """What it says of the topics and subscriptions that were named. Raises `WrongLog` if that is nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from geminga.pipeline.audit.events import WrongLog
    from geminga.pipeline.client.topics import full_name

    if not flags.topic and not flags.subscription:
        return report
    names = {*flags.topic, *(str(full_name(name)) for name in flags.topic)}
    known = {*report.totals["topic"].to_pylist()}
    topics = {
        topic for topic in known if not names or {topic, str(full_name(topic).partitioned_name)} & names
    }
    subscriptions = {*(flags.subscription or report.totals["subscription"].to_pylist())}

    def only(table: Any) -> Any:
        has_topic, has_subscription = (
            pc.is_in(table[name], pa.array(sorted(allowed), pa.string()))
            for name, allowed in (("topic", topics), ("subscription", subscriptions))
        )
        return table.filter(pc.and_(has_topic, has_subscription))

    totals = only(report.totals)
    if not totals.num_rows:
        raise WrongLog(
            f"the logs say nothing of {' and '.join([*flags.topic, *flags.subscription])}; they have the "
            f"topics {', '.join(sorted(known))}"
        )
    found = [one for one in report.found if one.topic in topics and one.subscription in subscriptions]
    return report._replace(minutes=only(report.minutes), totals=totals, found=found)


def _show(report: Report, flags: argparse.Namespace) -> None:
    """A line for a subscription with nothing wrong, all figures of any other."""
    from geminga.pipeline.audit.report import WRONG

    for reason in report.incomplete:
        tell(f"the log is not complete: {reason}")
    for row in report.totals.to_pylist():
        if flags.json:
            print(json.dumps(row))
            continue
        name = f"{row['topic']}, {row['subscription'] or 'no subscription'}"
        if not any(row[what] for what in WRONG):
            more = ("dispatched", "pending", "skipped", "repeated", "redelivered")
            counts = ", ".join(f"{row[what]:,} {what}" for what in ("published", *more) if row[what])
            print(f"{name}: nothing is wrong; {counts or 'no message'}")
            continue
        print(name)
        for name, value in row.items():
            if value is not None and name not in ("topic", "subscription"):
                print(f"  {name:16}{value:>16,}")
        _show_places(report, row)


def _show_places(report: Report, row: dict[str, Any], shown_max: int = 5) -> None:
    from geminga.pipeline.audit.report import WRONG

    for what in WRONG:
        places = [
            place[2:] for place in report.positions(what) if place[:2] == (row["topic"], row["subscription"])
        ]
        if places:
            texts = [":".join(map(str, place[: 2 if place[2] < 0 else 3])) for place in places[:shown_max]]
            more = f" and {len(places) - shown_max:,} more" if len(places) > shown_max else ""
            print(f"  {what}: {', '.join(texts)}{more}")
