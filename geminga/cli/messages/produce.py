"""`geminga produce`: publish messages, print the id of each once the broker has confirmed it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Sequence

import trio

from geminga.cli.arguments.options import (
    add_url,
    counted,
    duration_ms,
    positive,
    positive_bytes,
    property_text,
    rate,
    run_until_done,
    time_ms,
)
from geminga.cli.arguments.pace import Pace
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_USAGE, Parser
from geminga.cli.client.client import open_client
from geminga.cli.client.errors import ClientError
from geminga.cli.client.message import Position
from geminga.cli.client.producer import Attributes, OnReceipt, Producer
from geminga.cli.messages import bodies
from geminga.cli.messages.bodies import Bodies, Body
from geminga.cli.messages.dialect import GEMINGA, Dialect
from geminga.cli.payloads import schemas
from geminga.cli.payloads.compression import COMPRESSIONS
from geminga.cli.payloads.errors import CannotEncode
from geminga.cli.show.progress import Progress
from geminga.clock import RealClock

STDIN_BYTES = 64 * 1024


def parser(kind: type[Parser], dialect: Dialect = GEMINGA) -> Parser:
    made = kind(prog=f"{dialect.prog} produce", description="Publish messages to a topic.")
    add = made.add_argument
    add("topic", help="persistent://tenant/namespace/name, or a name in public/default")
    if dialect is GEMINGA:
        add("text", nargs="?", metavar="MESSAGE", help="a message, as with --message")
    add("-m", "--message", "--messages", action="append", default=[], help="a message; may be repeated")
    add(
        "-f",
        "--file",
        "--files",
        action="append",
        default=[],
        metavar="FILE",
        help="its content is a message",
    )
    add("--stdin", action="store_true", help="a message for each line of standard input")
    add(
        "--size", type=positive_bytes, metavar="SIZE", help="send messages of this size, such as 4k, no texts"
    )
    add(
        "-n",
        "--count",
        "--num-produce",
        type=positive,
        default=1,
        help="how often to send it all (default: 1)",
    )
    add(
        "-s",
        "--separator",
        default=dialect.separator,
        help=f"cut each --message here (default: {dialect.separator or 'nowhere'})",
    )
    add("-k", "--key", help="key of every message")
    add(
        "--key-separator",
        metavar="TEXT",
        help="of each line of standard input what stands before it is the key",
    )
    add(
        "-p",
        "--property",
        "--properties",
        type=property_text,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="may be repeated; several at once: a=1,b=2",
    )
    add("-r", "--rate", type=rate, default=0, metavar="N", help="messages a second (default: no limit)")
    add("--delay", type=duration_ms, metavar="TIME", help="deliver this much later: 250ms, 2s, 5m, 1h, 7d")
    add(
        "--deliver-at", type=time_ms, metavar="TIME", help="deliver then: 2026-12-24T18:00Z, or ms since 1970"
    )
    add(
        "--event-time",
        type=time_ms,
        metavar="TIME",
        help="when it happened: 2026-12-24T18:00Z, or ms since 1970",
    )
    add("--ordering-key", help="orders messages on Key_Shared subscriptions in place of the key")
    add("--producer-name", help="name of the producer (default: the broker chooses one)")
    _add_packing(made)
    _add_schemas(made)
    add("-q", "--quiet", action="store_true", help="print no message ids")
    add_url(made)
    return made


def _add_packing(made: Parser) -> None:
    add = made.add_argument
    add("--compression", choices=COMPRESSIONS, default="none", help="how to pack payloads (default: none)")
    add("--batch", type=positive, default=1, metavar="N", help="so many messages in an entry (default: 1)")
    add(
        "-db",
        "--disable-batching",
        action="store_true",
        help="an entry for each message, whatever --batch says",
    )
    add("-c", "--chunking", action="store_true", help="cut messages that are larger than the broker takes")
    add("-dr", "--disable-replication", action="store_true", help="accepted; nothing is replicated here")
    add("-ekn", "--encryption-key-name", help=argparse.SUPPRESS)
    add("-ekv", "--encryption-key-value", help=argparse.SUPPRESS)


def _add_schemas(made: Parser) -> None:
    add = made.add_argument
    known = f"bytes, {', '.join(schemas.NAMED)}, avro:DEFINITION, json:DEFINITION, avro:@FILE, json:@FILE"
    add(
        "-vs",
        "--value-schema",
        "--schema",
        default="bytes",
        metavar="SCHEMA",
        help=f"{known} (default: bytes)",
    )
    add(
        "-ks",
        "--key-schema",
        default="string",
        metavar="SCHEMA",
        help="of a key and a value (default: string)",
    )
    add(
        "-kvet",
        "--key-value-encoding-type",
        dest="key_value_encoding",
        choices=("separated", "inline"),
        help="send a key and a value: the key as the message's key, or in the payload",
    )
    add("-kvk", "--key-value-key", metavar="KEY", help="that key, as JSON for AVRO and JSON (default: --key)")
    add("-kvkf", "--key-value-key-file", metavar="FILE", help="that key, as its bytes")


def run(kind: type[Parser], arguments: Sequence[str], dialect: Dialect = GEMINGA) -> int:
    """The whole command; returns its exit code."""
    flags = parser(kind, dialect).parse_strictly(arguments)
    name = f"{dialect.prog} produce"
    if dialect is GEMINGA and flags.text is not None:
        flags.message.append(flags.text)
    has_texts = bool(flags.message or flags.file)
    if sum((has_texts, flags.stdin, flags.size is not None)) != 1:
        print(
            f"{name}: give one of --message TEXT, --file FILE, --stdin (a message for each line) or "
            "--size SIZE",
            file=sys.stderr,
        )
        return EXIT_USAGE
    if flags.key_separator and not flags.stdin:
        print(f"{name}: --key-separator is of the lines of --stdin", file=sys.stderr)
        return EXIT_USAGE
    if flags.encryption_key_name or flags.encryption_key_value:
        print(f"{name}: this command does not encrypt; a client library does", file=sys.stderr)
        return EXIT_USAGE
    try:
        made = Bodies(flags)
        ready = [made.of_text(text) for text in bodies.texts(flags)]
    except (CannotEncode, ClientError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_FAILED
    sending = _Sending(flags, dialect, made, ready)
    return run_until_done(
        "produce",
        sending.run,
        sending.summary,
        dialect=dialect.prog,
        summary_on_stdout=dialect.counts_on_stdout,
    )


class _Sending:
    """One run of the command."""

    def __init__(self, flags: argparse.Namespace, dialect: Dialect, made: Bodies, ready: list[Body]) -> None:
        self._flags = flags
        self._tells_ids = not flags.quiet and not dialect.counts_on_stdout
        self._dialect = dialect
        self._bodies = made
        self._ready = ready
        self._clock = RealClock()
        self._confirmed = 0
        self._started_s: float | None = None
        properties = bodies.properties(flags.property)
        ordering_key = None if flags.ordering_key is None else flags.ordering_key.encode()
        self._attributes = Attributes(
            properties=properties,
            deliver_at_ms=flags.deliver_at,
            event_time_ms=flags.event_time,
            ordering_key=ordering_key,
            compression=flags.compression,
        )

    def summary(self) -> str:
        if self._dialect.counts_on_stdout:
            return f"{self._confirmed} messages successfully produced"
        seconds = self._clock.monotonic_s() - self._started_s if self._started_s is not None else 0.0
        return f"{counted(self._confirmed, 'message')} confirmed in {seconds:.2f} s"

    async def run(self) -> None:
        flags = self._flags
        schema = None if self._bodies.schema is None else schemas.to_wire(self._bodies.schema)
        async with open_client(flags.url) as client, contextlib.aclosing(self._batches()) as batches:
            names = await client.partitions(flags.topic)
            producers = [
                await client.producer(name, name=_producer_name(flags, number), schema=schema)
                for number, name in enumerate(names)
            ]
            self._started_s = self._clock.monotonic_s()
            is_partitioned = names != [flags.topic]
            turn = 0
            with Progress("confirmed") as progress:
                async for batch in batches:
                    # Messages with a key go where the key leads, as with other clients.
                    number = _partition(batch[0], len(producers), turn)
                    on_receipt = self._on_receipt(number if is_partitioned else -1, len(batch), progress)
                    await self._send(producers[number], batch, on_receipt)
                    turn += 1
                for producer in producers:
                    await producer.close()

    async def _batches(self) -> AsyncGenerator[list[Body]]:
        """What goes into one entry each; messages of a batch have the same key."""
        flags = self._flags
        pace = Pace(flags.rate)
        size = 1 if flags.disable_batching or flags.chunking else flags.batch
        batch: list[Body] = []
        async with contextlib.aclosing(self._all()) as all_bodies:
            async for body in all_bodies:
                await pace.wait()
                if batch and (len(batch) >= size or body[1:] != batch[0][1:]):
                    yield batch
                    batch = []
                batch.append(body)
                if size == 1:
                    yield batch
                    batch = []
        if batch:
            yield batch

    async def _send(self, producer: Producer, batch: list[Body], on_receipt: OnReceipt) -> None:
        first = batch[0]
        attributes = self._attributes._replace(key=first.key, is_key_base64=first.is_key_base64)
        if self._flags.delay is not None:
            attributes = attributes._replace(deliver_at_ms=self._clock.now_ms() + self._flags.delay)
        if self._flags.chunking:
            await producer.send_chunks(first.payload, attributes, on_receipt=on_receipt)
        elif len(batch) == 1:
            await producer.send(first.payload, attributes, on_receipt=on_receipt)
        else:
            await producer.send_batch([body.payload for body in batch], attributes, on_receipt=on_receipt)

    def _on_receipt(self, partition: int, count: int, progress: Progress) -> OnReceipt:
        def on_receipt(position: Position) -> None:
            self._confirmed += count
            progress.step(count)
            if self._tells_ids:
                suffix = f":{partition}" if partition >= 0 else ""
                for _ in range(count):
                    print(f"{position[0]}:{position[1]}{suffix}")

        return on_receipt

    async def _all(self) -> AsyncGenerator[Body]:
        flags = self._flags
        if flags.stdin:
            is_text = flags.value_schema != "bytes"
            async with contextlib.aclosing(_lines()) as lines:
                async for line in lines:
                    key, line = bodies.split_key(line, flags.key_separator)
                    body = self._bodies.of_text(line.decode()) if is_text else self._bodies.of_bytes(line)
                    yield body if key is None else body._replace(key=key, is_key_base64=False)
            return
        ready = self._ready
        if flags.size is not None:
            ready = [self._bodies.of_bytes(b"x" * flags.size)]
        ready += [self._bodies.of_bytes(content) for content in bodies.files(flags)]
        for _ in range(flags.count):
            for body in ready:
                yield body


def _producer_name(flags: argparse.Namespace, number: int) -> str | None:
    return (
        flags.producer_name
        if flags.producer_name is None or number == 0
        else f"{flags.producer_name}-{number}"
    )


def _partition(body: Body, partitions: int, turn: int) -> int:
    if partitions == 1:
        return 0
    if body.key is None:
        return turn % partitions
    return java_hash(body.key) % partitions


def java_hash(key: str) -> int:
    """`String.hashCode` without its sign, by which Java clients choose a key's partition by default."""
    code = 0
    raw = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        code = (31 * code + (raw[at] << 8 | raw[at + 1])) & 0xFFFFFFFF
    return code & 0x7FFFFFFF


async def _lines() -> AsyncGenerator[bytes]:
    # Not through sys.stdin: a read that is abandoned holds its lock, which ends the interpreter badly.
    rest = b""
    while chunk := await trio.to_thread.run_sync(os.read, 0, STDIN_BYTES, abandon_on_cancel=True):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
    if rest:
        yield rest.rstrip(b"\r")
