"""What an acknowledged message costs over many topics: this checkout beside another one, in turns.

    git worktree add --detach ../before SOME_COMMIT
    python bench/many_subscriptions.py ../before --topics 100
    python bench/many_subscriptions.py ../before --topics 1000 --turns 15
    python bench/many_subscriptions.py ../before --topics 1 --connections 1000

Each topic has a producer and a consumer. With more connections than topics, each connection has a producer of
its own. Messages go to one topic after the other at a given rate, and each
is acknowledged when it comes. Both brokers run all the time and are loaded in turns. Then each topic gets one
message, and nothing more is published: the groups of the journal in the seconds after it are those of the
cursors. CPU is that of all threads of the broker. Linux.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pulsar

from bench.two_checkouts import Broker, both, cpu_s

GROUPS = re.compile(r'^bookie_journal_JOURNAL_SYNC_count\{[^}]*success="true"[^}]*\} ([0-9.e+]+)', re.M)


class Used(NamedTuple):
    cpu_us: float
    groups_per_s: float


class Load:
    """The clients of one broker."""

    def __init__(self, broker: Broker, web_port: int, topics: int, connections: int) -> None:
        self._broker = broker
        self._web_port = web_port
        self._clients = [
            pulsar.Client(broker.url, io_threads=1, message_listener_threads=1, logger=_quiet())
            for _ in range(connections)
        ]
        self._acknowledged = 0
        self._all = threading.Event()
        self._wanted = 0
        names = [f"persistent://public/default/many-{number}" for number in range(topics)]
        self._consumers = [
            self._clients[0].subscribe(name, "s", receiver_queue_size=100, message_listener=self._acknowledge)
            for name in names
        ]
        self._producers = [
            self._clients[number % connections].create_producer(
                names[number % topics], batching_enabled=False
            )
            for number in range(max(topics, connections))
        ]

    def _acknowledge(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)
        self._acknowledged += 1
        if self._acknowledged == self._wanted:
            self._all.set()

    def _groups(self) -> float:
        with urllib.request.urlopen(f"http://localhost:{self._web_port}/metrics") as answer:
            return sum(map(float, GROUPS.findall(answer.read().decode())))

    def run(self, rate: int, seconds: float) -> Used:
        count = int(rate * seconds)
        self._acknowledged, self._wanted = 0, count
        self._all.clear()
        groups, used_s, began_s = self._groups(), cpu_s(self._broker.process.pid), time.monotonic()
        for number in range(count):
            due_s = began_s + number / rate
            if (left_s := due_s - time.monotonic()) > 0.001:
                time.sleep(left_s)
            self._producers[number % len(self._producers)].send_async(b"x" * 1024, _sent)
        if not self._all.wait(60):
            sys.exit(f"{self._acknowledged} of {count} messages came back")
        ended_s = time.monotonic()
        used_s = cpu_s(self._broker.process.pid) - used_s
        return Used(used_s / count * 1e6, (self._groups() - groups) / (ended_s - began_s))

    def cursors_alone(self, seconds: float = 3.0) -> float:
        """Journal groups a second after each topic has got a message: the publisher is done before."""
        for producer in self._producers:
            producer.send_async(b"x" * 1024, _sent)
        for producer in self._producers:
            producer.flush()
        groups, began_s = self._groups(), time.monotonic()
        time.sleep(seconds)
        return (self._groups() - groups) / (time.monotonic() - began_s)

    def close(self) -> None:
        for client in self._clients:
            client.close()


def _sent(result: pulsar.Result, _: pulsar.MessageId) -> None:
    if result != pulsar.Result.Ok:
        sys.exit(f"not sent: {result}")


def _quiet() -> pulsar.FileLogger:
    return pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--connections", type=int, default=1, help="of publishers")
    parser.add_argument("--rate", type=int, default=1000, help="messages a second over all topics")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: list[list[Used]] = [[], []]
    with (
        tempfile.TemporaryDirectory(prefix="many-subscriptions-") as directory,
        both(options.other, Path(directory)) as brokers,
    ):
        loads = [
            Load(broker, 8000 + number, options.topics, options.connections)
            for number, broker in enumerate(brokers)
        ]
        for load in loads:
            load.run(options.rate, 1.0)
        for turn in range(options.turns):
            for number in (0, 1) if turn % 2 else (1, 0):
                found[number].append(loads[number].run(options.rate, options.seconds))
        alone = [load.cursors_alone() for load in loads]
        for load in loads:
            load.close()
    here, there = found
    figures = {
        "topics": options.topics,
        "connections": options.connections,
        "here_us": statistics.median(used.cpu_us for used in here),
        "there_us": statistics.median(used.cpu_us for used in there),
        "ratio": statistics.median(a.cpu_us / b.cpu_us for a, b in zip(here, there, strict=True)),
        "here_groups_per_s": statistics.median(used.groups_per_s for used in here),
        "there_groups_per_s": statistics.median(used.groups_per_s for used in there),
        "here_groups_alone": alone[0],
        "there_groups_alone": alone[1],
    }
    print(json.dumps({key: round(value, 3) for key, value in figures.items()}))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
