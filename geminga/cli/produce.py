"""`geminga produce`: publish messages, print the id of each once the broker has confirmed it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Sequence

import trio

from geminga.cli.arguments.options import add_url, counted, duration_ms, pair, positive, rate, run_until_done
from geminga.cli.arguments.pace import Pace
from geminga.cli.arguments.parser import EXIT_USAGE, Parser
from geminga.cli.client.client import open_client
from geminga.cli.client.producer import Producer
from geminga.clock import RealClock

STDIN_BYTES = 64 * 1024


def parser(kind: type[Parser]) -> Parser:
    made = kind(prog="geminga produce", description="Publish messages to a topic.")
    add = made.add_argument
    add("topic", help="persistent://tenant/namespace/name, or a name in public/default")
    add("-m", "--message", action="append", default=[], help="a message; may be repeated")
    add("--stdin", action="store_true", help="a message for each line of standard input")
    add("--count", "-n", type=positive, default=1, help="how often to send it all (default: 1)")
    add("--size", type=positive, metavar="BYTES", help="send messages of this size instead of texts")
    add("--key", "-k", help="key of every message")
    add("--property", "-p", type=pair, action="append", default=[], metavar="KEY=VALUE", help="repeatable")
    add("--delay", type=duration_ms, metavar="TIME", help="deliver this much later: 250ms, 2s, 5m, 1h, 7d")
    add("--rate", "-r", type=rate, default=0, metavar="N", help="messages a second (default: no limit)")
    add("--quiet", "-q", action="store_true", help="print no message ids")
    add_url(made)
    return made


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """The whole command; returns its exit code."""
    flags = parser(kind).parse_strictly(arguments)
    if sum((bool(flags.message), flags.stdin, flags.size is not None)) != 1:
        print("geminga produce: give one of --message, --stdin or --size", file=sys.stderr)
        return EXIT_USAGE
    clock = RealClock()
    tally = _Tally(clock)
    return run_until_done("produce", lambda: _produce(flags, clock, tally), tally.summary)


class _Tally:
    def __init__(self, clock: RealClock) -> None:
        self._clock = clock
        self.confirmed = 0
        self.started_s: float | None = None

    def summary(self) -> str:
        seconds = self._clock.monotonic_s() - self.started_s if self.started_s is not None else 0.0
        return f"{counted(self.confirmed, 'message')} confirmed in {seconds:.2f} s"


async def _produce(flags: argparse.Namespace, clock: RealClock, tally: _Tally) -> None:
    pace = Pace(flags.rate)

    def on_receipt(position: tuple[int, int], partition: int) -> None:
        tally.confirmed += 1
        if not flags.quiet:
            print(f"{position[0]}:{position[1]}" + (f":{partition}" if partition >= 0 else ""))

    async with open_client(flags.url) as client:
        names = await client.partitions(flags.topic)
        producers = [await client.producer(name) for name in names]
        tally.started_s = clock.monotonic_s()
        sent = 0
        async for payload in _payloads(flags):
            await pace.wait()
            index = sent % len(producers)
            partition = index if names != [flags.topic] else -1
            await _send(producers[index], payload, flags, clock, partition, on_receipt)
            sent += 1
        for producer in producers:
            await producer.close()


async def _send(
    producer: Producer,
    payload: bytes,
    flags: argparse.Namespace,
    clock: RealClock,
    partition: int,
    on_receipt: object,
) -> None:
    await producer.send(
        payload,
        key=flags.key,
        properties=dict(flags.property),
        deliver_at_ms=None if flags.delay is None else clock.now_ms() + flags.delay,
        on_receipt=lambda position: on_receipt(position, partition),  # type: ignore[operator]
    )


async def _payloads(flags: argparse.Namespace) -> AsyncIterator[bytes]:
    if flags.stdin:
        # Not through sys.stdin: a read that is abandoned holds its lock, which ends the interpreter badly.
        rest = b""
        while chunk := await trio.to_thread.run_sync(os.read, 0, STDIN_BYTES, abandon_on_cancel=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.rstrip(b"\r")
        if rest:
            yield rest.rstrip(b"\r")
        return
    texts = [text.encode() for text in flags.message] or [b"x" * flags.size]
    for _ in range(flags.count):
        for text in texts:
            yield text
