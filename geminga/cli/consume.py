"""`geminga consume`: print messages as they come, and acknowledge them."""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
from collections.abc import Sequence

import trio

from geminga.cli.arguments.options import add_url, count, counted, duration_ms, run_until_done
from geminga.cli.arguments.parser import Parser
from geminga.cli.client.client import SUBSCRIPTION_TYPES, Client, open_client
from geminga.cli.client.consumer import Consumer, Message, messages, position
from geminga.wire.decoder import Delivery

QUEUE_MESSAGES = 100


def parser(kind: type[Parser]) -> Parser:
    made = kind(prog="geminga consume", description="Receive messages from a subscription and print them.")
    add = made.add_argument
    add("topic", help="persistent://tenant/namespace/name, or a name in public/default")
    add("--subscription", "-s", required=True, help="name of the subscription; made if it does not exist")
    add(
        "--type",
        "-t",
        type=lambda text: text.lower().replace("-", "_"),
        choices=sorted(SUBSCRIPTION_TYPES),
        default="exclusive",
        help="type of the subscription (default: exclusive)",
    )
    add("--count", "-n", type=count, default=0, help="end after so many messages (default: never)")
    add(
        "--from",
        choices=("earliest", "latest"),
        default="latest",
        dest="start",
        help="where a new subscription begins (default: latest)",
    )
    add("--timeout", type=duration_ms, metavar="TIME", help="end after this long without a message: 5s, 1m")
    add("--no-ack", action="store_true", help="do not acknowledge: the messages will be redelivered")
    add("--json", action="store_true", help="print each message as a line of JSON, with all its metadata")
    add_url(made)
    return made


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """The whole command; returns its exit code."""
    flags = parser(kind).parse_strictly(arguments)
    printer = Printer(as_json=flags.json)
    return run_until_done(
        "consume", lambda: _consume(flags, printer), lambda: counted(printer.printed, "message")
    )


class Printer:
    """Writes messages to standard output: to a terminal without its control characters, else as they are."""

    def __init__(self, *, as_json: bool) -> None:
        self.printed = 0
        self._as_json = as_json
        self._terminal = sys.stdout.isatty()

    def print(self, message: Message) -> None:
        if self._as_json:
            text = _as_json(message)
            line = (_CONTROLS.sub(_escape_json, text) if self._terminal else text).encode()
        elif message.compression != "NONE":
            line = f"({len(message.payload)} bytes, compressed with {message.compression})".encode()
        elif self._terminal:
            line = _CONTROLS.sub(_escape, message.payload.decode(errors="backslashreplace")).encode()
        else:
            line = message.payload
        self.printed += 1  # before the write, so that a line on the output is always counted
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()


# What moves the cursor, changes colours or answers in the user's name. A tab and a line feed are text.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _escape(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}"


def _escape_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


async def _consume(flags: argparse.Namespace, printer: Printer) -> None:
    async with open_client(flags.url) as client:
        consumers = await _subscribe(client, flags)
        send, receive = trio.open_memory_channel[tuple[Consumer, Delivery]](0)
        async with trio.open_nursery() as nursery:
            for consumer in consumers:
                nursery.start_soon(_forward, consumer, send)
            await _print_all(flags, printer, receive)
            nursery.cancel_scope.cancel()
        for consumer in consumers:
            await consumer.close()


async def _subscribe(client: Client, flags: argparse.Namespace) -> list[Consumer]:
    # Not more in the queue than will be printed: on a shared subscription others are to get the rest.
    wanted = min(QUEUE_MESSAGES, flags.count or QUEUE_MESSAGES)
    return [
        await client.consumer(
            name,
            flags.subscription,
            kind=flags.type,
            earliest=flags.start == "earliest",
            queue_messages=wanted,
        )
        for name in await client.partitions(flags.topic)
    ]


async def _forward(consumer: Consumer, send: trio.MemorySendChannel[tuple[Consumer, Delivery]]) -> None:
    while True:
        await send.send((consumer, await consumer.receive()))


async def _print_all(
    flags: argparse.Namespace,
    printer: Printer,
    receive: trio.MemoryReceiveChannel[tuple[Consumer, Delivery]],
) -> None:
    while not flags.count or printer.printed < flags.count:
        seconds = flags.timeout / 1000 if flags.timeout is not None else float("inf")
        with trio.move_on_after(seconds) as silence:
            consumer, delivery = await receive.receive()
        if silence.cancelled_caught:
            break
        for message in messages(delivery):
            printer.print(message)
        if not flags.no_ack:
            consumer.acknowledge([position(delivery)])


def _as_json(message: Message) -> str:
    absent = {"batch_index": -1, "partition": -1, "key": "", "properties": {}, "deliver_at_ms": 0}
    values = message._asdict()
    shown = {"id": message.id, **{k: v for k, v in values.items() if k not in absent or v != absent[k]}}
    try:
        shown["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        del shown["payload"]
        shown["payload_base64"] = base64.b64encode(message.payload).decode()
    if message.compression == "NONE":
        del shown["compression"]
    return json.dumps(shown, ensure_ascii=False)
