"""`geminga perf`: how many messages a second, and how long they take.

Publish latency is from the call to the receipt, end-to-end latency from the call to the delivery; the
latter is read from the first bytes of each payload, so that producer and consumer may be different processes
on one machine.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Sequence

import trio

from geminga.cli.arguments.options import (
    add_url,
    count,
    counted,
    duration_ms,
    leave_line,
    positive,
    positive_bytes,
    rate,
    run_until_done,
)
from geminga.cli.arguments.pace import Pace
from geminga.cli.arguments.parser import EXIT_NOTHING, EXIT_OK, EXIT_USAGE, Parser
from geminga.cli.arguments.positions import EARLIEST, LATEST, start_position
from geminga.cli.client.client import SUBSCRIPTION_TYPES, Client, open_client
from geminga.cli.client.consumer import Consumer
from geminga.cli.client.message import messages, position
from geminga.cli.client.producer import Producer
from geminga.cli.perf.course import SCENARIOS
from geminga.cli.perf.latency import Histogram

MAGIC = b"gmg2"
RUN_BYTES = 4
STAMP_BYTES = len(MAGIC) + RUN_BYTES + 8
"""Every payload begins with: whose it is, the run it belongs to, when it was made in nanoseconds."""
REPORT_SECONDS = 1.0


def parser(kind: type[Parser]) -> Parser:
    text = "Measure rates and latencies of a broker; with `tail` and `catch-up`, from where it serves."
    made = kind(prog="geminga perf", description=text)
    add = made.add_argument
    add(
        "what",
        type=lambda text: "produce" if text == "publish" else text,
        choices=("produce", "consume", "read", "both"),
        help="what to do; read: consume without a subscription that stays",
    )
    add("topic", nargs="?", default="geminga-perf", help="the topic (default: geminga-perf)")
    add("--duration", type=duration_ms, default=10_000, metavar="TIME", help="how long (default: 10s)")
    add("--count", "-n", type=count, default=0, help="end after so many messages (default: by time only)")
    add("--rate", "-r", type=rate, default=0, help="messages a second to publish (default: no limit)")
    add("--size", type=positive_bytes, default=1024, metavar="SIZE", help="of a message: 100, 4k (1024)")
    add("--batch", type=positive, default=1, metavar="N", help="messages in an entry (default: 1)")
    add("--pending", type=positive, default=1000, metavar="N", help="entries under way (default: 1000)")
    add("--subscription", "-s", default="geminga-perf", help="subscription (default: geminga-perf)")
    add(
        "--type",
        "-t",
        type=lambda text: text.lower().replace("-", "_"),
        choices=sorted(SUBSCRIPTION_TYPES),
        default="shared",
        help="type of the subscription (default: shared)",
    )
    add("--queue", type=positive, default=1000, metavar="N", help="messages to be sent ahead (default: 1000)")
    add(
        "--from",
        type=start_position,
        default=None,
        dest="start",
        metavar="POSITION",
        help="start of a new one: earliest, latest, and of a reader also ledger:entry",
    )
    add("--json", action="store_true", help="print the summary as JSON on standard output")
    add_url(made)
    return made


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """The whole command; returns its exit code."""
    if any(argument in SCENARIOS for argument in arguments[:1]):
        from geminga.cli.perf import caches as perf_caches

        return perf_caches.run(kind, arguments)
    flags = parser(kind).parse_strictly(arguments)
    if flags.what != "read" and flags.start not in (None, EARLIEST, LATEST):
        print("geminga perf: only read begins at a message", file=sys.stderr)
        return EXIT_USAGE
    return run_until_done("perf", _Run(flags).run)


class _Side:
    """Counts of one direction (published or consumed): in total, and since the last report."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages = 0
        self.bytes = 0
        self.latency = Histogram()
        self._reported = (0, 0)
        self._recent = Histogram()
        self.started_s = 0.0
        self.ended_s = 0.0

    def add(self, messages: int, size_bytes: int, latency_us: int | None) -> None:
        now_s = trio.current_time()
        if not self.started_s:
            self.started_s = now_s
        self.ended_s = now_s
        self.messages += messages
        self.bytes += size_bytes
        if latency_us is not None:
            self._recent.add(latency_us)

    def line(self, seconds: float) -> str:
        """Rates and percentiles since the last call."""
        messages, size = self.messages - self._reported[0], self.bytes - self._reported[1]
        self._reported = self.messages, self.bytes
        recent, self._recent = self._recent, Histogram()
        self.latency.merge(recent)
        text = f"{self.name:7} {messages / seconds:8.0f} msg/s {size / seconds / 1e6:6.1f} MB/s"
        if recent.count:
            shown = " ".join(f"p{p:g} {_short(recent.percentile(p) / 1000)}" for p in (50, 99, 99.9))
            text += f" ms {shown} max {_short(recent.max / 1000)}"
        return text

    def summary(self) -> dict[str, object]:
        seconds = max(self.ended_s - self.started_s, 1e-9)
        values: dict[str, object] = {
            "messages": self.messages,
            "bytes": self.bytes,
            "seconds": round(seconds, 3),
            "messages_per_s": round(self.messages / seconds, 1) if self.messages > 1 else self.messages,
        }
        if self.latency.count:
            percentiles = {f"p{p:g}": self.latency.percentile(p) / 1000 for p in (50, 90, 99, 99.9, 99.99)}
            values["latency_ms"] = {
                "mean": round(self.latency.mean / 1000, 3),
                **percentiles,
                "max": self.latency.max / 1000,
            }
        return values


class _Run:
    def __init__(self, flags: argparse.Namespace) -> None:
        self._flags = flags
        self._produced = _Side("publish")
        self._consumed = _Side("consume")
        self._producing = flags.what in ("produce", "both")
        self._consuming = flags.what in ("consume", "read", "both")
        self._all_consumed = trio.Event()
        self._expected: int | None = None
        self._started = False
        self._run_id = secrets.token_bytes(RUN_BYTES)
        self._strange = 0

    async def run(self) -> int:
        """Exit code: to consume nothing, or less than was asked for, is no success."""
        try:
            async with open_client(self._flags.url) as client:
                await self._measure(client)
        except* KeyboardInterrupt:
            leave_line()
            raise
        finally:
            if self._started:  # else there is nothing to report but the error
                self._report_end()
        enough = self._consumed.messages >= (self._flags.count or 1)
        return EXIT_OK if enough or not self._consuming else EXIT_NOTHING

    async def _measure(self, client: Client) -> None:
        flags = self._flags
        names = await client.partitions(flags.topic)
        consumers = await self._subscribe(client, names) if self._consuming else []
        producers = []
        if self._producing:
            producers = [await client.producer(name, pending_max=flags.pending) for name in names]
        self._started = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report_forever)
            for consumer in consumers:
                nursery.start_soon(self._consume, consumer)
            with trio.move_on_after(flags.duration / 1000):
                if self._producing:
                    await self._produce(producers)
                else:
                    self._expected = flags.count or None
                    await self._all_consumed.wait()
            if self._producing:
                await self._drain(producers)
            nursery.cancel_scope.cancel()
        for consumer in consumers:
            await consumer.close()

    async def _subscribe(self, client: Client, names: list[str]) -> list[Consumer]:
        flags = self._flags
        # Alone, a consumer is to find what is stored; beside a producer, what that one publishes.
        start = flags.start or (LATEST if self._producing else EARLIEST)
        if flags.what == "read":
            name_of_reader = f"reader-{secrets.token_hex(5)}"
            return [
                await client.consumer(name, name_of_reader, start=start, queue_messages=flags.queue)
                for name in names
            ]
        return [
            await client.consumer(
                name,
                flags.subscription,
                kind=flags.type,
                earliest=start == EARLIEST,
                queue_messages=flags.queue,
            )
            for name in names
        ]

    async def _produce(self, producers: list[Producer]) -> None:
        flags = self._flags
        pace = Pace(flags.rate)
        filler = b"x" * max(flags.size - STAMP_BYTES, 0)
        sent = 0
        while not flags.count or sent < flags.count:
            wanted = min(flags.batch, flags.count - sent) if flags.count else flags.batch
            await pace.wait(wanted)
            now_ns = time.time_ns()
            payload = MAGIC + self._run_id + now_ns.to_bytes(8, "big") + filler
            producer = producers[sent // flags.batch % len(producers)]

            def on_receipt(
                _: tuple[int, int], n: int = wanted, size: int = len(payload), at_ns: int = now_ns
            ) -> None:
                self._produced.add(n, n * size, (time.time_ns() - at_ns) // 1000)

            if flags.batch == 1:
                await producer.send(payload, on_receipt=on_receipt)
            else:
                await producer.send_batch([payload] * wanted, on_receipt=on_receipt)
            sent += wanted
            if producer.pending % 64 == 0:
                await trio.lowlevel.checkpoint()

    async def _drain(self, producers: list[Producer]) -> None:
        """Wait for the receipts of what was sent, and for its delivery."""
        with trio.move_on_after(self._flags.duration / 1000 + 10):
            for producer in producers:
                await producer.close()
            if self._consuming:
                self._expected = self._produced.messages
                if self._consumed.messages < self._expected:
                    await self._all_consumed.wait()

    async def _consume(self, consumer: Consumer) -> None:
        while True:
            delivery = await consumer.receive()
            now_ns = time.time_ns()
            for message in messages(delivery):
                if self._producing and not message.payload.startswith(MAGIC + self._run_id):
                    self._strange += 1  # from another producer, or left over from an earlier run
                    continue
                self._consumed.add(1, len(message.payload), _age_us(message.payload, now_ns))
            consumer.acknowledge([position(delivery)])
            if self._expected is not None and self._consumed.messages >= self._expected:
                self._all_consumed.set()
            await trio.lowlevel.checkpoint_if_cancelled()

    # -- reporting -------------------------------------------------------------------------------------------

    def _sides(self) -> list[_Side]:
        return [self._produced] * self._producing + [self._consumed] * self._consuming

    async def _report_forever(self) -> None:
        while True:
            await trio.sleep(REPORT_SECONDS)
            for side in self._sides():
                print(side.line(REPORT_SECONDS), file=sys.stderr, flush=True)

    def _report_end(self) -> None:
        for side in self._sides():
            side.line(REPORT_SECONDS)  # takes what was not reported yet into the whole
        if self._strange:
            passed_over = counted(self._strange, "message")
            print(f"passed over {passed_over} that this run did not publish", file=sys.stderr)
        summary = {side.name: side.summary() for side in self._sides()}
        if self._flags.json:
            print(json.dumps(summary))
            return
        for name, values in summary.items():
            latency = values.pop("latency_ms", None)
            number = values["messages"]
            assert isinstance(number, int)
            print(
                f"{name}: {counted(number, 'message')}, {values['bytes']} bytes in "
                f"{values['seconds']} s, {values['messages_per_s']} msg/s"
            )
            if isinstance(latency, dict):
                print("  ms " + " ".join(f"{key} {_short(value)}" for key, value in latency.items()))


def _short(number: float) -> str:
    """Three digits, or as many as stand before the point: a line is to fit 80 columns."""
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f}"


def _age_us(payload: bytes, now_ns: int) -> int | None:
    """How long ago the payload was made; None if it was not by this program."""
    if not payload.startswith(MAGIC) or len(payload) < STAMP_BYTES:
        return None
    return (now_ns - int.from_bytes(payload[STAMP_BYTES - 8 : STAMP_BYTES], "big")) // 1000
