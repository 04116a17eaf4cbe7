"""What many topics cost that nobody uses: a restart, memory for each once it is loaded, the periodic checks.

    python bench/many_topics.py                       10,000 topics with a subscription and 3 messages each
    python bench/many_topics.py --topics 1000 --watch-seconds 20

A broker is filled and killed. Another one starts on its directory: "start" is until the default namespace can
be asked for. Then the statistics of every topic are asked for, which loads them all; their memory is what the
process holds more than before. At last nobody asks for anything, and what CPU it uses is the periodic checks;
they run ten times as often as by default, and the share of a core is given for the default intervals.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shlex
import signal
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.broker_process import OURS, BrokerProcess, Ports, enter_own_network
from bench.figures import add_options, measured
from geminga.cli.client.connection import Connection
from geminga.cli.client.producer import Producer
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb

KIB = 1024
CONNECTIONS = 8
FASTER = 10
INTERVALS_S = {"retentionCheckIntervalInSeconds": 120, "statsUpdateFrequencyInSecs": 60}
BODY = bytes(200)


def topic_name(number: int) -> str:
    return f"persistent://public/default/idle-{number}"


async def fill(ports: Ports, topics: int, messages: int) -> None:
    """Each topic gets a subscription and then so many messages."""
    numbers = iter(range(topics))

    async def work() -> None:
        connection = await Connection.open(ports.url)
        async with trio.open_nursery() as nursery:
            await nursery.start(connection.run)
            for number in numbers:
                await fill_one(connection, topic_name(number), messages)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            nursery.start_soon(work)


class Nobody:
    def on_command(self, command: object) -> None:
        pass


async def fill_one(connection: Connection, topic: str, messages: int) -> None:
    consumer_id = connection.attach(consumer=Nobody())
    subscribe = functools.partial(client_commands.subscribe, topic=topic, subscription="sub")
    shared = pb.CommandSubscribe.Shared
    await connection.request(lambda number: subscribe(number, consumer_id, sub_type=shared))
    await connection.request(lambda number: client_commands.close_consumer(number, consumer_id))
    producer = await Producer.open(connection, topic, 100)
    for _ in range(messages):
        await producer.send(BODY)
    await producer.close()


def load_all(ports: Ports, topics: int) -> None:
    def load(number: int) -> int:
        path = topic_name(number).replace("://", "/")
        with urllib.request.urlopen(f"http://localhost:{ports.admin}/admin/v2/{path}/stats") as answer:
            return int(json.load(answer)["subscriptions"]["sub"]["msgBacklog"])

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        backlogs = list(pool.map(load, range(topics)))
    print(f"backlog of all together      {sum(backlogs)} messages")


def watch(broker: BrokerProcess, seconds: float) -> float:
    """CPU seconds per second while nobody asks for anything."""
    used_s, since = broker.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (broker.cpu_seconds() - used_s) / (time.monotonic() - since)


def measure(options: argparse.Namespace, directory: str) -> dict[str, float]:
    ports = Ports()
    often = "".join(f" --set {key}={interval_s // FASTER}" for key, interval_s in INTERVALS_S.items())
    command = OURS.format(data_dir=shlex.quote(directory)) + often
    figures: dict[str, float] = {}
    began = time.monotonic()
    with BrokerProcess(command, ports) as broker:
        trio.run(fill, ports, options.topics, options.messages)
        figures["fill_s"] = time.monotonic() - began
        os.kill(broker.pid, signal.SIGKILL)
    with BrokerProcess(command, ports) as broker:
        figures["start_s"] = broker.ready_seconds
        time.sleep(2)
        idle_share = watch(broker, 5)
        before = broker.resident_bytes()
        began = time.monotonic()
        load_all(ports, options.topics)
        figures["load_ms_each"] = (time.monotonic() - began) / options.topics * 1000
        time.sleep(2)
        figures["resident_mib"] = broker.resident_bytes() / KIB / KIB
        figures["kib_each"] = (broker.resident_bytes() - before) / options.topics / KIB
        share = watch(broker, options.watch_seconds)
        figures["checks_percent"] = max(0.0, share - idle_share) / FASTER * 100
        os.kill(broker.pid, signal.SIGTERM)
        began = time.monotonic()
        while broker.is_alive():
            time.sleep(0.01)
        figures["stop_s"] = time.monotonic() - began
    with BrokerProcess(command, ports) as broker:
        figures["start_after_stop_s"] = broker.ready_seconds
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=3)
    parser.add_argument("--watch-seconds", type=float, default=36)
    add_options(parser)
    options = parser.parse_args()
    if not enter_own_network():
        sys.exit("needs a network namespace of its own")
    figures = measured("many-topics", options, lambda directory: measure(options, directory))
    print(f"filled in                    {figures['fill_s']:.1f} s")
    print(f"start after a kill           {figures['start_s']:.2f} s")
    print(f"start after an orderly stop  {figures['start_after_stop_s']:.2f} s")
    print(f"stop with all loaded         {figures['stop_s']:.2f} s")
    print(f"load, for each topic         {figures['load_ms_each']:.2f} ms")
    print(f"memory of a loaded topic     {figures['kib_each']:.1f} KiB")
    print(f"resident with all loaded     {figures['resident_mib']:.0f} MiB")
    print(f"periodic checks              {figures['checks_percent']:.2f} % of a core")


if __name__ == "__main__":
    main()
