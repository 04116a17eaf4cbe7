"""`geminga consume`: print messages as they come, and acknowledge them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import trio

from geminga.cli.arguments.options import (
    Choice,
    add_url,
    count,
    counted,
    duration_ms,
    positive,
    rate,
    run_until_done,
    time_ms,
)
from geminga.cli.arguments.parser import EXIT_NOTHING, EXIT_OK, EXIT_USAGE, Parser
from geminga.cli.client.client import SUBSCRIPTION_TYPES, Client, open_client
from geminga.cli.messages.dialect import GEMINGA, Dialect
from geminga.cli.messages.printing import FORMATS, Printer
from geminga.cli.messages.receiving import Limits, Opened, Receiving
from geminga.cli.messages.topics import Pattern
from geminga.cli.messages.values import Decoded, Values
from geminga.cli.payloads.chunks import PENDING_MAX

PATTERN_EVERY_S = 1.0
"""How often a pattern is compared with the topics that exist."""


def parser(kind: type[Parser], dialect: Dialect = GEMINGA) -> Parser:
    made = kind(
        prog=f"{dialect.prog} consume", description="Receive messages from a subscription and print them."
    )
    add = made.add_argument
    add("topic", help="persistent://tenant/namespace/name, or a name in public/default")
    add(
        "-s",
        "--subscription",
        "--subscription-name",
        help="name of the subscription; made if it does not exist",
    )
    add(
        "-t",
        "--type",
        "--subscription-type",
        type=Choice(sorted(SUBSCRIPTION_TYPES)),
        default="exclusive",
        metavar="TYPE",
        help="type of the subscription: exclusive, shared, failover, key_shared (default: exclusive)",
    )
    add(
        "-p",
        "--from",
        "--subscription-position",
        type=Choice(("earliest", "latest")),
        default="latest",
        dest="start",
        metavar="POSITION",
        help="where a new subscription begins: earliest, latest (default: latest)",
    )
    add(
        "-m",
        "--subscription-mode",
        type=Choice(("durable", "nondurable")),
        default="durable",
        metavar="MODE",
        help="durable, nondurable: the subscription ends with the consumer (default: durable)",
    )
    add(
        "--regex", action="store_true", help="the topic is a regular expression: all that match, new ones too"
    )
    add("--no-ack", action="store_true", help="do not acknowledge: the messages will be redelivered")
    add(
        "-etp",
        "--end-timestamp",
        type=time_ms,
        metavar="TIME",
        help="end before a message published after this",
    )
    add_receiving(made, dialect)
    add_url(made)
    return made


def add_receiving(made: Parser, dialect: Dialect) -> None:
    """Flags that `consume` and `read` share."""
    add = made.add_argument
    default = dialect.count_default or "all of them"
    add(
        "-n",
        "--count",
        "--num-messages",
        type=count,
        default=dialect.count_default,
        help=f"end after so many messages, 0: never (default: {default})",
    )
    add("--timeout", type=duration_ms, metavar="TIME", help="end after this long without a message: 5s, 1m")
    add("-r", "--rate", type=rate, default=0, metavar="N", help="messages a second (default: no limit)")
    add(
        "-q",
        "--queue-size",
        type=count,
        default=0,
        metavar="N",
        help="messages that wait here for their turn",
    )
    add("--json", action="store_true", help="print each message as a line of JSON, with all its metadata")
    add("--format", choices=FORMATS, default=dialect.format, help=f"(default: {dialect.format})")
    add("--hex", action="store_true", help="print payloads as bytes and their characters")
    add("--hide-content", action="store_true", help="print only how many messages came")
    add("-mp", "--print-metadata", action="store_true", help="print key, properties, times and ids as well")
    add(
        "-st",
        "--schema-type",
        choices=("auto", "auto_consume", "bytes"),
        default="bytes" if dialect.format == "pulsar" else "auto",
        help="bytes: print payloads as they are; auto: values by the topic's schema",
    )
    add(
        "-mc",
        "--max_chunked_msg",
        type=positive,
        default=PENDING_MAX,
        metavar="N",
        help="incomplete messages kept",
    )
    add(
        "-ac", "--auto_ack_chunk_q_full", action="store_true", help="accepted; incomplete messages come again"
    )
    add("-pm", "--pool-messages", metavar="BOOL", help="accepted, without effect")
    add("-ekv", "--encryption-key-value", help=argparse.SUPPRESS)


def printer_of(flags: argparse.Namespace) -> Printer:
    style = "json" if flags.json else flags.format
    return Printer(style, is_hex=flags.hex, is_hidden=flags.hide_content, with_metadata=flags.print_metadata)


def limits_of(flags: argparse.Namespace) -> Limits:
    return Limits(flags.count, flags.timeout, flags.rate, flags.max_chunked_msg)


def received_enough(flags: argparse.Namespace, printed: int) -> int:
    """The exit code: nothing, or less than was asked for, is no success."""
    return EXIT_OK if printed and printed >= flags.count else EXIT_NOTHING


def run(kind: type[Parser], arguments: Sequence[str], dialect: Dialect = GEMINGA) -> int:
    """The whole command; returns its exit code."""
    flags = parser(kind, dialect).parse_strictly(arguments)
    if flags.subscription is None:
        print(
            f"{dialect.prog} consume: give the name of a subscription with -s; it is made if there is none. "
            f"Without one: {dialect.prog} read {flags.topic}",
            file=sys.stderr,
        )
        return EXIT_USAGE
    if flags.encryption_key_value:
        print(
            f"{dialect.prog} consume: this command does not decrypt; a client library does", file=sys.stderr
        )
        return EXIT_USAGE
    printer = printer_of(flags)

    async def consume() -> int:
        await _consume(flags, printer)
        return received_enough(flags, printer.printed)

    return run_until_done(
        "consume",
        consume,
        lambda: summary(
            dialect,
            printer.printed,
            "consumed",
            begins_late=flags.start == "latest" and flags.timeout is not None,
        ),
        dialect=dialect.prog,
        summary_on_stdout=dialect.counts_on_stdout,
    )


def summary(dialect: Dialect, printed: int, verb: str, *, begins_late: bool = False) -> str:
    """`begins_late`: a subscription that was new began behind all messages."""
    if dialect.counts_on_stdout:
        return f"{printed} messages successfully {verb}"
    hint = "; a new subscription begins at the end, with --from earliest at the start"
    return counted(printed, "message") + (hint if begins_late and not printed else "")


class _PastTheEnd(Exception):
    """A message was published after `--end-timestamp`."""


async def _consume(flags: argparse.Namespace, printer: Printer) -> None:
    def accept(decoded: Decoded) -> bool:
        if flags.end_timestamp is not None and decoded.message.publish_time_ms > flags.end_timestamp:
            raise _PastTheEnd
        printer.print(decoded)
        return True

    async with open_client(flags.url) as client, trio.open_nursery() as nursery:
        values = Values(client, is_raw=flags.schema_type == "bytes")
        receiving = Receiving(nursery, limits_of(flags), values, accept)
        pattern = Pattern(flags.topic) if flags.regex else None
        names = await (pattern.topics(client) if pattern is not None else client.partitions(flags.topic))
        for name in names:
            receiving.add(await _open(client, name, flags, receiving.queue_messages))
        if pattern is not None:
            nursery.start_soon(_add_new, client, pattern, set(names), flags, receiving)
        try:
            await receiving.run(acknowledges=not flags.no_ack)
        except _PastTheEnd:
            pass
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await receiving.close()


async def _open(client: Client, name: str, flags: argparse.Namespace, queue_messages: int) -> Opened:
    consumer = await client.consumer(
        name,
        flags.subscription,
        kind=flags.type,
        earliest=flags.start == "earliest",
        queue_messages=min(flags.queue_size or queue_messages, queue_messages),
        durable=flags.subscription_mode == "durable",
    )
    return Opened(name, consumer)


async def _add_new(
    client: Client, pattern: Pattern, known: set[str], flags: argparse.Namespace, receiving: Receiving
) -> None:
    """Topics that are made later, from their beginning: what came before is new to us as well."""
    while True:
        await trio.sleep(PATTERN_EVERY_S)
        for name in await pattern.topics(client):
            if name not in known:
                known.add(name)
                early = argparse.Namespace(**{**vars(flags), "start": "earliest"})
                receiving.add(await _open(client, name, early, receiving.queue_messages))
