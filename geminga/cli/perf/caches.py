"""`geminga perf tail` and `geminga perf catch-up`: which memory a message passes through on its way.

`tail` publishes and consumes at the same time; `catch-up` publishes first, and then consumes, slower than is
published, what by then is on disk. Each second is a sample: the rates as this client sees them, and from the
broker's metrics where the entries were read. It works with any Pulsar broker; see `metrics.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from geminga.cli.arguments.options import (
    DEFAULT_WEB_URL,
    WEB_URL_VARIABLE,
    add_url,
    duration_ms,
    leave_line,
    positive,
    positive_bytes,
    rate,
    run_until_done,
)
from geminga.cli.arguments.pace import Pace
from geminga.cli.arguments.parser import EXIT_FAILED, Parser
from geminga.cli.client.client import SUBSCRIPTION_TYPES, Client, open_client
from geminga.cli.client.consumer import Consumer
from geminga.cli.client.errors import ClientError
from geminga.cli.client.message import messages, position
from geminga.cli.perf.course import SCENARIOS, Course, Sample
from geminga.cli.perf.metrics import Meter

SAMPLE_S = 1.0


def parser(kind: type[Parser]) -> Parser:
    made = kind(prog="geminga perf", description="Measure which cache serves consumed messages.")
    add = made.add_argument
    add("what", choices=SCENARIOS, help="consume at once, or a backlog")
    add("topic", nargs="?", default="geminga-perf-caches", help="the topic (default: geminga-perf-caches)")
    add("--duration", type=duration_ms, default=30_000, metavar="TIME", help="of consuming (default: 30s)")
    add(
        "--backlog",
        type=duration_ms,
        default=20_000,
        metavar="TIME",
        help="catch-up: publish before for this long (default: 20s)",
    )
    add("--rate", "-r", type=rate, default=10_000, help="messages a second to publish (default: 10000)")
    add(
        "--consume-rate",
        type=rate,
        default=None,
        help="catch-up: messages a second to consume (default: half of --rate)",
    )
    add("--size", type=positive_bytes, default=1024, metavar="SIZE", help="of a message: 100, 4k (1024)")
    add("--batch", type=positive, default=20, metavar="N", help="messages in an entry (default: 20)")
    add("--pending", type=positive, default=1000, metavar="N", help="entries under way (default: 1000)")
    add("--subscription", "-s", default="geminga-perf", help="subscription (default: geminga-perf)")
    add(
        "--type",
        "-t",
        choices=sorted(SUBSCRIPTION_TYPES),
        default="exclusive",
        help="type of the subscription (default: exclusive)",
    )
    add("--queue", type=positive, default=1000, metavar="N", help="messages to be sent ahead (default: 1000)")
    add("--json", action="store_true", help="print samples and summary as JSON on standard output")
    add("--png", type=Path, metavar="FILE", help="draw the samples (needs geminga[plot])")
    add("--title", default="", help="over the drawing")
    add(
        "--web-url",
        default=os.environ.get(WEB_URL_VARIABLE, DEFAULT_WEB_URL),
        help=f"where the metrics are (default: ${WEB_URL_VARIABLE} or {DEFAULT_WEB_URL})",
    )
    add_url(made)
    return made


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """The whole command; returns its exit code."""
    flags = parser(kind).parse_strictly(arguments)
    if flags.png is not None:
        from geminga.cli.perf.plot import missing

        if reason := missing():
            print(f"geminga perf: {reason}", file=sys.stderr)
            return EXIT_FAILED
    return run_until_done("perf", _Run(flags).run)


class _Run:
    def __init__(self, flags: argparse.Namespace) -> None:
        self._flags = flags
        self._backlog_s = flags.backlog / 1000 if flags.what == "catch-up" else 0.0
        self._course = Course(flags.what, consuming_from_s=self._backlog_s)
        self._meter = Meter(flags.web_url)
        self._published = self._published_bytes = 0
        self._consumed = self._consumed_bytes = 0

    async def run(self) -> None:
        await trio.to_thread.run_sync(self._meter.read, 0.0)  # says at once if there are no metrics
        try:
            async with open_client(self._flags.url) as client:
                await self._measure(client)
        except* KeyboardInterrupt:
            leave_line()
            raise
        finally:
            if self._course.samples:
                self._report()

    async def _measure(self, client: Client) -> None:
        backlog_s = self._backlog_s
        consumer = await self._subscribe(client)
        if backlog_s:
            await consumer.close()  # the subscription stays, and so does what it has not consumed
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sample)
            nursery.start_soon(self._publish, client)
            if backlog_s:
                await trio.sleep(backlog_s)
                consumer = await self._subscribe(client)
            nursery.start_soon(self._consume, consumer)
            await trio.sleep(self._flags.duration / 1000)
            nursery.cancel_scope.cancel()

    async def _subscribe(self, client: Client) -> Consumer:
        flags = self._flags
        return await client.consumer(
            flags.topic, flags.subscription, kind=flags.type, earliest=False, queue_messages=flags.queue
        )

    async def _publish(self, client: Client) -> None:
        flags = self._flags
        pace, payload = Pace(flags.rate), b"x" * flags.size
        producer = await client.producer(flags.topic, pending_max=flags.pending)

        def on_receipt(_: tuple[int, int]) -> None:
            self._published += flags.batch
            self._published_bytes += flags.batch * flags.size

        while True:
            await pace.wait(flags.batch)
            if flags.batch == 1:
                await producer.send(payload, on_receipt=on_receipt)
            else:
                await producer.send_batch([payload] * flags.batch, on_receipt=on_receipt)
            await trio.lowlevel.checkpoint()

    async def _consume(self, consumer: Consumer) -> None:
        flags = self._flags
        is_paced = flags.what == "catch-up"
        pace = Pace((flags.consume_rate or max(1, flags.rate // 2)) if is_paced else 0)
        while True:
            delivery = await consumer.receive()
            count = 0
            for message in messages(delivery):
                count += 1
                self._consumed_bytes += len(message.payload)
            self._consumed += count
            await pace.wait(count)
            consumer.acknowledge([position(delivery)])
            await trio.lowlevel.checkpoint_if_cancelled()

    async def _sample(self) -> None:
        started_s = then_s = trio.current_time()
        counts, served = self._counts(), await trio.to_thread.run_sync(self._meter.read, 0.0)
        while True:
            await trio.sleep_until(then_s + SAMPLE_S)
            seconds = trio.current_time() - then_s
            # Counted before the page is read: what was consumed is then among what the page says was read.
            now_counts = self._counts()
            try:
                now_served = await trio.to_thread.run_sync(self._meter.read, seconds)
            except ClientError as error:
                print(f"no sample: {error}", file=sys.stderr)
                continue
            now_s = trio.current_time()
            changes = [now - before for now, before in zip(now_counts, counts, strict=True)]
            sample = Sample(now_s - started_s, now_s - then_s, now_served.since(served), *changes)
            self._course.samples.append(sample)
            print(sample.line(), file=sys.stderr, flush=True)
            then_s, counts, served = now_s, now_counts, now_served

    def _counts(self) -> tuple[int, int, int, int]:
        return self._published, self._published_bytes, self._consumed, self._consumed_bytes

    def _report(self) -> None:
        flags, course = self._flags, self._course
        summary = course.summary()
        if flags.json:
            samples = [
                {
                    "at_s": round(sample.at_s, 3),
                    "seconds": round(sample.seconds, 3),
                    "published_bytes": sample.published_bytes,
                    "consumed_bytes": sample.consumed_bytes,
                    **sample.served._asdict(),
                }
                for sample in course.samples
            ]
            print(json.dumps({"summary": summary, "samples": samples}))
        else:
            for name, value in summary.items():
                print(f"{name.replace('_', ' '):26}{value}")
        if flags.png is not None:
            from geminga.cli.perf.plot import draw

            title = flags.title or f"geminga perf {flags.what}"
            draw(course, flags.png, title, has_places=self._meter.is_geminga)
