"""Consumers that never read, and clients with megabytes of metadata: memory, and whether others are served.

    python bench/stuck_consumers.py                            50, 100 and 200 of them, 100 kB messages
    python bench/stuck_consumers.py --consumers 200 --bytes 5000000 --messages 200
    python bench/stuck_consumers.py --checkout ../before       another checkout's broker

A broker with the default budget has a backlog on two topics. Two consumers read both of it, alone; then again
beside consumers that subscribe to the first topic, ask for all of it, and never read their sockets: five of
them on one Shared subscription, which a third consumer that reads is on too, the others with one each.
At the end 100 producers and 50 consumers come with 5 MB of metadata each.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.broker_process import BrokerProcess, Ports, enter_own_network, resident_bytes
from bench.figures import add_options, measured, show
from geminga.cli.client.connection import Connection
from geminga.cli.client.consumer import Consumer
from geminga.cli.client.errors import ClientError
from geminga.cli.client.message import position
from geminga.cli.client.producer import Producer
from geminga.wire import client_commands, encoder
from geminga.wire import pulsar_pb2 as pb

MIB = 1024 * 1024
WATCH_S = 0.05
QUEUE = 100
TOPICS = ("persistent://public/default/crowded", "persistent://public/default/beside")
SHARED = "shared"
SHARING = 5
"""More would take all messages of the subscription into the buffers of their sockets."""
METADATA_BYTES = 5_000_000
TYPE = pb.BaseCommand.Type


class Served(NamedTuple):
    rate: float
    """MB/s of the slower of the consumers of whole topics."""
    seconds: float


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    connection = await Connection.open(url)
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run)
        yield connection
        nursery.cancel_scope.cancel()


async def fill(url: str, options: argparse.Namespace) -> None:
    body = os.urandom(options.bytes)
    for topic in TOPICS:
        async with connected(url) as connection:
            producer = await Producer.open(connection, topic, 20)
            for _ in range(options.messages):
                await producer.send(body)
            await producer.flush()


async def read(
    url: str, topic: str, subscription: str, sub_type: pb.CommandSubscribe.SubType, count: int
) -> float:
    """Receive and acknowledge so many; how long that took, in seconds."""
    began_s = trio.current_time()
    async with connected(url) as connection:
        consumer = await Consumer.open(
            connection, topic, subscription, sub_type=sub_type, earliest=True, start=None,
            queue_messages=QUEUE,
        )  # fmt: skip
        for _ in range(count):
            delivery = await consumer.receive()
            consumer.acknowledge([position(delivery)])
    return trio.current_time() - began_s


async def read_all(ports: Ports, options: argparse.Namespace, name: str, shared: int) -> Served:
    """Both topics with subscriptions of that name, beside `shared` messages of the shared subscription."""
    took_s: list[float] = []

    async def one(topic: str) -> None:
        took_s.append(await read(ports.url, topic, name, pb.CommandSubscribe.Exclusive, options.messages))

    with trio.fail_after(options.seconds):
        async with trio.open_nursery() as nursery:
            for topic in TOPICS:
                nursery.start_soon(one, topic)
            if shared:
                nursery.start_soon(
                    read, ports.url, TOPICS[0], SHARED, pb.CommandSubscribe.Shared, shared
                )  # fmt: skip
    return Served(options.messages * options.bytes / 1e6 / max(took_s), max(took_s))


def never_reads(ports: Ports, count: int, number: int, options: argparse.Namespace) -> socket.socket:
    """A consumer's socket: subscribed, with permits for everything."""
    shares = number < SHARING
    sock = socket.create_connection(("localhost", ports.broker))
    sock.sendall(client_commands.connect("never-reads"))
    sock.sendall(
        client_commands.subscribe(
            1, 1, TOPICS[0], SHARED if shares else f"stuck-{count}-{number}",
            sub_type=pb.CommandSubscribe.Shared if shares else pb.CommandSubscribe.Exclusive,
            earliest=True,
        )
    )  # fmt: skip
    # Permits count once the subscription is there: until its answer has come.
    sock.settimeout(60)
    seen = b""
    while b"\x08" + bytes([TYPE.Value("SUCCESS")]) not in seen:
        seen += sock.recv(4096)
    sock.sendall(client_commands.flow(1, options.messages))
    return sock


async def watch(pid: int, largest: list[int]) -> None:
    while True:
        largest[0] = max(largest[0], resident_bytes(pid))
        await trio.sleep(WATCH_S)


async def stuck(ports: Ports, pid: int, count: int, options: argparse.Namespace) -> dict[str, float]:
    largest = [0]
    socks: list[socket.socket] = []
    figures: dict[str, float] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, pid, largest)
        began_s = trio.current_time()
        for number in range(count):
            sock = await trio.to_thread.run_sync(never_reads, ports, count, number, options)
            socks.append(sock)
        print(f"{count} subscribed in {trio.current_time() - began_s:.1f} s")
        shared = min(100, options.messages // 4) if count else 0
        served = await read_all(ports, options, f"live-{count}", shared)
        figures[f"{count}_stuck_mb_per_s"] = served.rate
        figures[f"{count}_stuck_seconds"] = served.seconds
        figures[f"{count}_stuck_resident_mib"] = largest[0] / MIB
        nursery.cancel_scope.cancel()
    for sock in socks:
        sock.close()
    return figures


async def metadata(ports: Ports, pid: int) -> dict[str, float]:
    before, largest, refused = resident_bytes(pid), [0], 0
    pairs = [pb.KeyValue(key="k", value="v" * METADATA_BYTES)]
    async with trio.open_nursery() as nursery, connected(ports.url) as connection:
        nursery.start_soon(watch, pid, largest)
        for number in range(150):

            def build(request_id: int, number: int = number) -> bytes:
                if number < 100:
                    producer = pb.CommandProducer(
                        topic=TOPICS[1], producer_id=number, request_id=request_id, metadata=pairs
                    )
                    return encoder.frame(pb.BaseCommand(type=TYPE.PRODUCER, producer=producer))
                subscribe = pb.CommandSubscribe(
                    topic=TOPICS[1], subscription="m", subType=pb.CommandSubscribe.Shared,
                    consumer_id=number, request_id=request_id, metadata=pairs,
                )  # fmt: skip
                return encoder.frame(pb.BaseCommand(type=TYPE.SUBSCRIBE, subscribe=subscribe))

            try:
                await connection.request(build)
            except ClientError as error:
                refused += 1
                if number in (0, 100):
                    print(error)
        nursery.cancel_scope.cancel()
    return {
        "metadata_refused": refused,
        "before_metadata_resident_mib": before / MIB,
        "metadata_resident_mib": largest[0] / MIB,
    }


def measure(options: argparse.Namespace, directory: str) -> dict[str, float]:
    ports = Ports()
    checkout = Path(options.checkout).resolve()
    command = (
        f"env PYTHONPATH={shlex.quote(str(checkout))} {shlex.quote(sys.executable)} -P -m geminga"
        f" standalone --data-dir {shlex.quote(directory)}"
    )
    figures: dict[str, float] = {}
    with BrokerProcess(command, ports) as broker:
        figures["at_start_mib"] = broker.resident_bytes() / MIB
        trio.run(fill, ports.url, options)
        figures["filled_mib"] = broker.resident_bytes() / MIB
        for count in (0, *options.consumers):
            figures |= trio.run(stuck, ports, broker.pid, count, options)
        print(broker.last_lines(10))
    with BrokerProcess(command, ports) as broker:
        figures |= trio.run(metadata, ports, broker.pid)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--consumers", type=int, nargs="*", default=[50, 100, 200])
    parser.add_argument("--bytes", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=1500, help="of each topic")
    parser.add_argument("--seconds", type=float, default=120, help="the longest that reading may take")
    parser.add_argument("--checkout", default=str(Path(__file__).resolve().parents[1]))
    add_options(parser)
    options = parser.parse_args()
    if not enter_own_network():
        sys.exit("needs a network namespace of its own")
    show(measured("stuck-consumers", options, lambda directory: measure(options, directory)))


if __name__ == "__main__":
    main()
