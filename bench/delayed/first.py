"""How long the first delayed message of a broker holds its event loop: numpy and the delayed index are
imported for it, in a thread, and each step of an import has the interpreter to itself.

    python bench/delayed/first.py                    five brokers, one after the other
    python bench/delayed/first.py --runs 20 --messages 10000 --set delayedDeliverySharedIndexEnabled=false

A client publishes ordinary messages to a Shared subscription, then messages that are due after two seconds.
A task of the broker ticks each half millisecond. "gap" is the longest time between two ticks. "held" is the
same without what other programs do to this machine: less the time for which the loop's thread was ready to
run and had no processor, and no more than the CPU time that the whole process spent meanwhile. "step" is the
longest CPU time of one task's step on the loop. "usual" is the same before the first delayed message.

Modules are compiled in each run if PYTHONDONTWRITEBYTECODE is set, else in the first. Exits with 1 if the
median of "held" is more than 20 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pulsar
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.config.file import parse
from geminga.config.loading import load
from geminga.server.server import serve

HELD_MS_MAX = 20.0
TICK_S = 0.0005
DELAY_MS = 2000
TOPIC = "persistent://public/default/first"


class Watch(trio.abc.Instrument):
    """The longest of each since `begin`, in ms."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.held_ms = self.gap_ms = self.step_ms = 0.0
        self._began_s = time.thread_time()

    def told(self) -> dict[str, float]:
        return {"held": self.held_ms, "gap": self.gap_ms, "step": self.step_ms}

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.step_ms = max(self.step_ms, (time.thread_time() - self._began_s) * 1000)

    async def tick(self) -> None:
        scheduled = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        before = _times_s(scheduled)
        while True:
            await trio.sleep(TICK_S)
            wall_s, used_s, queued_s = (
                now - then for now, then in zip(_times_s(scheduled), before, strict=True)
            )
            gap_s = wall_s - TICK_S
            self.gap_ms = max(self.gap_ms, gap_s * 1000)
            self.held_ms = max(self.held_ms, min(gap_s - queued_s, used_s) * 1000)
            before = _times_s(scheduled)


def _times_s(scheduled: int) -> tuple[float, float, float]:
    """Of the clock, of the process on processors, of the thread in their queues."""
    return time.perf_counter(), time.process_time(), int(os.pread(scheduled, 100, 0).split()[1]) / 1e9


async def run_broker(data_dir: str, conf: str) -> None:
    """Tells on standard output: the port, then for each line of the input what was watched since the last."""
    watch = Watch()
    lines = os.fdopen(os.dup(0))
    config = load(file=parse("broker.conf", conf.encode()), environment={}).config
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(functools.partial(serve, config, data_dir=data_dir))
        assert "numpy" not in sys.modules
        gc.collect()
        gc.freeze()
        print(addresses.binary_port, flush=True)
        nursery.start_soon(watch.tick)
        trio.lowlevel.add_instrument(watch)
        while await trio.to_thread.run_sync(lines.readline, abandon_on_cancel=True):
            print(json.dumps({**watch.told(), "imported": "numpy" in sys.modules}), flush=True)
            watch.begin()
        nursery.cancel_scope.cancel()


def measure(messages: int, settings: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Before the first delayed message, and from it on."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        conf = "\n".join([*settings, "brokerServicePort=0", "webServicePort=0"])
        command = [sys.executable, __file__, "--serve", f"{directory}/data", "--conf", conf]
        broker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(broker.wait)
        assert broker.stdin is not None
        assert broker.stdout is not None
        stack.callback(broker.stdin.close)
        port = int(broker.stdout.readline())

        def told() -> dict[str, Any]:
            broker.stdin.write("\n")
            broker.stdin.flush()
            found: dict[str, Any] = json.loads(broker.stdout.readline())
            return found

        client = pulsar.Client(
            f"pulsar://127.0.0.1:{port}", logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        )
        stack.callback(client.close)
        consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
        producer = client.create_producer(TOPIC)
        for _ in range(200):
            producer.send(b"x")
            consumer.acknowledge(consumer.receive(10_000))
        told()
        for _ in range(500):
            producer.send(b"x")
            consumer.acknowledge(consumer.receive(10_000))
        usual = told()
        assert not usual["imported"]
        due_ms = int(time.time() * 1000) + DELAY_MS
        for _ in range(messages):
            producer.send_async(b"x", lambda *_: None, deliver_at=due_ms)
        producer.flush()
        for _ in range(messages):
            consumer.acknowledge(consumer.receive(10_000))
        first = told()
        assert first["imported"]
        return usual, first


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=1, help="delayed ones")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--conf", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        trio.run(run_broker, options.serve, options.conf)
        return 0
    held = []
    print(f"{'':7}{'usual: held':>12}{'gap':>8}{'step':>8}{'first: held':>14}{'gap':>8}{'step':>8}  ms")
    for number in range(options.runs):
        usual, first = measure(options.messages, options.set)
        held.append(first["held"])
        figures = [one[key] for one in (usual, first) for key in ("held", "gap", "step")]
        print(
            f"{number + 1:7}{figures[0]:12.1f}{figures[1]:8.1f}{figures[2]:8.1f}"
            f"{figures[3]:14.1f}{figures[4]:8.1f}{figures[5]:8.1f}",
            flush=True,
        )
    return int(statistics.median(held) > HELD_MS_MAX)


if __name__ == "__main__":
    sys.exit(main())
