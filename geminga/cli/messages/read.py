"""`geminga read`: print messages of a topic without a subscription."""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Sequence

import trio

from geminga.cli.arguments.options import add_url, run_until_done
from geminga.cli.arguments.parser import EXIT_USAGE, Parser
from geminga.cli.arguments.positions import EARLIEST, LATEST, start_position
from geminga.cli.client.client import Client, open_client
from geminga.cli.client.message import Position
from geminga.cli.messages.consume import add_receiving, limits_of, printer_of, received_enough, summary
from geminga.cli.messages.dialect import GEMINGA, Dialect
from geminga.cli.messages.printing import Printer
from geminga.cli.messages.receiving import Opened, Receiving
from geminga.cli.messages.values import Decoded, Values


def parser(kind: type[Parser], dialect: Dialect = GEMINGA) -> Parser:
    made = kind(prog=f"{dialect.prog} read", description="Print messages of a topic, without a subscription.")
    add = made.add_argument
    add("topic", help="persistent://tenant/namespace/name, or a name in public/default")
    add(
        "-m",
        "--from",
        "--start-message-id",
        type=start_position,
        default=start_position(dialect.start),
        dest="start",
        metavar="POSITION",
        help=f"earliest, latest or ledger:entry (default: {dialect.start})",
    )
    add(
        "-i",
        "--start-message-id-inclusive",
        dest="inclusive",
        action="store_true",
        help="that message as well",
    )
    add(
        "-rc",
        "--readCompacted",
        "--read-compacted",
        dest="read_compacted",
        action="store_true",
        help="of each key only the last message that compaction kept",
    )
    if dialect is GEMINGA:
        add("-F", "--follow", action="store_true", help="go on at the end: wait for what will be published")
    add_receiving(made, dialect)
    add_url(made)
    return made


def run(kind: type[Parser], arguments: Sequence[str], dialect: Dialect = GEMINGA) -> int:
    """The whole command; returns its exit code."""
    flags = parser(kind, dialect).parse_strictly(arguments)
    if flags.encryption_key_value:
        print(f"{dialect.prog} read: this command does not decrypt; a client library does", file=sys.stderr)
        return EXIT_USAGE
    printer = printer_of(flags)
    follows = dialect is not GEMINGA or flags.follow or flags.start == LATEST

    async def read() -> int:
        await _read(flags, printer, follows=follows)
        return received_enough(flags, printer.printed)

    return run_until_done(
        "read",
        read,
        lambda: summary(dialect, printer.printed, "read"),
        dialect=dialect.prog,
        summary_on_stdout=dialect.counts_on_stdout,
    )


async def _read(flags: argparse.Namespace, printer: Printer, *, follows: bool) -> None:
    def accept(decoded: Decoded) -> bool:
        printer.print(decoded)
        return True

    async with open_client(flags.url) as client, trio.open_nursery() as nursery:
        receiving = Receiving(
            nursery, limits_of(flags), Values(client, is_raw=flags.schema_type == "bytes"), accept
        )
        for name in await client.partitions(flags.topic, create=follows):
            receiving.add(
                await open_reader(
                    client,
                    name,
                    flags.start,
                    inclusive=flags.inclusive,
                    follows=follows,
                    queue_messages=min(
                        flags.queue_size or receiving.queue_messages, receiving.queue_messages
                    ),
                    read_compacted=flags.read_compacted,
                )
            )
        await receiving.run(acknowledges=False)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await receiving.close()


async def open_reader(
    client: Client,
    name: str,
    start: Position,
    *,
    inclusive: bool,
    follows: bool,
    queue_messages: int,
    read_compacted: bool = False,
) -> Opened:
    """A reader of one topic or partition; unless it follows, it ends at the message that is now the last."""
    consumer = await client.consumer(
        name,
        f"reader-{uuid.uuid4().hex[:10]}",
        start=start,
        queue_messages=queue_messages,
        read_compacted=read_compacted,
        create_topic=follows,
    )
    is_message = start not in (EARLIEST, LATEST)
    return Opened(
        name,
        consumer,
        first=start if is_message and not inclusive else None,
        last=None if follows else await consumer.last_position(),
    )
