"""What one ordinary publisher notices of clients that flood the broker, or stop in the middle of a message.

    python bench/bystander.py flood                            LOOKUP, ACK, FLOW, PING, SEND: one flooder each
    python bench/bystander.py flood --kinds PING --flooders 50
    python bench/bystander.py half-frames                      10 to 1000 of them; 10 bytes and 2.5 MiB sent
    python bench/bystander.py senders                          200 of 5 MiB at 1 MB/s each

The broker is this checkout's (`--checkout`: another's), with the default budget. The bystander publishes
1 KiB, waits for its receipt, and pauses for 20 ms; told are quantiles of its round trips, in ms. Flooders,
half frames and senders are processes of their own: where broker, bystander and they share fewer than three
processors, the figures are upper bounds.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import shlex
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.broker_process import CHECKOUT, BrokerProcess, Ports, die_with_parent, enter_own_network
from bench.figures import add_options, measured, show
from geminga.cli.client.connection import Connection
from geminga.cli.client.producer import Producer
from geminga.limits import KIB, MIB
from geminga.wire import client_commands, encoder

KINDS = ("LOOKUP", "ACK", "FLOW", "PING", "SEND")
COUNTS = (10, 50, 200, 1000)
SENT_BYTES = (10, 5 * MIB // 2)
FRAME_BODY_BYTES = 5 * MIB - 2 * KIB
TOPIC = "persistent://public/default/{}"
SENDER_BYTES_PER_S = 1_000_000
PIECES_PER_S = 10
PAUSE_S = 0.02
SETTLE_S = 0.5
FILES_MAX = 4096


# -- the others: processes of their own --------------------------------------------------------------------


def opened(topic: str, *, consumes: bool = False) -> socket.socket:
    """A connection with a producer, or a consumer, under the id 1."""
    sock = socket.create_connection(("localhost", Ports().broker))
    attach = (
        client_commands.subscribe(1, 1, topic, "s") if consumes else client_commands.producer(1, 1, topic)
    )
    for command in (client_commands.connect("bystander-bench"), attach):
        sock.sendall(command)
        sock.recv(4 * KIB)
    return sock


FLOODER_NICE = 10


def burst_of(kind: str) -> bytes:
    """A thousand commands."""
    if kind == "LOOKUP":
        return b"".join(client_commands.lookup(number, TOPIC.format("t")) for number in range(1000))
    if kind == "ACK":
        return b"".join(client_commands.ack(1, [(1, number)]) for number in range(1000))
    if kind == "FLOW":
        return client_commands.flow(1, 1) * 1000
    if kind == "PING":
        return encoder.ping() * 1000
    return send_of(b"x" * 100) * 1000


def send_of(body: bytes) -> bytes:
    metadata = client_commands.metadata("bystander-bench", 0, 1)
    return client_commands.send(1, 0, client_commands.entry(metadata, body))


def flood(kind: str, flooders: int) -> None:
    """Until killed. What the broker answers is read and dropped. At a low priority: it stands for another
    machine, and must not take the bystander's and the broker's processors.
    """
    os.nice(FLOODER_NICE)
    burst = burst_of(kind)
    sockets = [opened(TOPIC.format(f"{kind}-{n}"), consumes=kind in ("ACK", "FLOW")) for n in range(flooders)]

    def drain(sock: socket.socket) -> None:
        while sock.recv(MIB):
            pass

    def send(sock: socket.socket) -> None:
        while True:
            sock.sendall(burst)

    for sock in sockets:
        threading.Thread(target=drain, args=(sock,)).start()
        threading.Thread(target=send, args=(sock,)).start()
    print("ready", flush=True)


def be_silent(count: int, sent_bytes: int) -> None:
    """Begin a large message on each of so many connections, go no further, and stay until killed."""
    begun = send_of(bytes(FRAME_BODY_BYTES))[:sent_bytes]

    async def send(stream: trio.SocketStream) -> None:
        await stream.send_all(begun)

    async def send_all() -> None:
        streams = [
            trio.SocketStream(trio.socket.from_stdlib_socket(opened(TOPIC.format(f"half-{number}"))))
            for number in range(count)
        ]
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(send, stream)
            print("ready", flush=True)
            await trio.sleep_forever()

    trio.run(send_all)


def send_slowly(count: int) -> None:
    """One large message from each of so many connections; tells how many receipts came, and how long the last
    one took.
    """
    message = send_of(bytes(FRAME_BODY_BYTES))
    piece_bytes = SENDER_BYTES_PER_S // PIECES_PER_S
    receipts = 0

    async def send(stream: trio.SocketStream) -> None:
        nonlocal receipts
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_pieces, stream)
            if await stream.receive_some(4 * KIB):
                receipts += 1
            nursery.cancel_scope.cancel()

    async def send_pieces(stream: trio.SocketStream) -> None:
        due_s = trio.current_time()
        for at in range(0, len(message), piece_bytes):
            await stream.send_all(message[at : at + piece_bytes])
            due_s = max(due_s + 1 / PIECES_PER_S, trio.current_time())
            await trio.sleep_until(due_s)

    async def send_all() -> None:
        streams = [
            trio.SocketStream(trio.socket.from_stdlib_socket(opened(TOPIC.format(f"slow-{number}"))))
            for number in range(count)
        ]
        print("ready", flush=True)
        since_s = time.monotonic()
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(send, stream)
        print(receipts, time.monotonic() - since_s, flush=True)

    trio.run(send_all)


# -- the bystander -----------------------------------------------------------------------------------------


async def round_trips_ms(url: str, until_s: float, ended: subprocess.Popen[str] | None = None) -> list[float]:
    """Of one publisher, from now until that time, or until a process has ended."""
    found: list[float] = []
    connection = await Connection.open(url)
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run)
        producer = await Producer.open(connection, TOPIC.format("bystander"), 1)
        while not found or (time.monotonic() < until_s and (ended is None or ended.poll() is None)):
            since_s = time.monotonic()
            await producer.send(bytes(KIB))
            await producer.flush()
            found.append((time.monotonic() - since_s) * 1000)
            await trio.sleep(PAUSE_S)
        nursery.cancel_scope.cancel()
    return found


def quantiles(name: str, found: list[float]) -> dict[str, float]:
    found = sorted(found)
    return {
        f"{name}_p50_ms": found[len(found) // 2],
        f"{name}_p99_ms": found[min(len(found) - 1, math.ceil(len(found) * 0.99) - 1)],
        f"{name}_longest_ms": found[-1],
    }


def beside(options: argparse.Namespace, words: list[str], *, to_the_end: bool = False) -> dict[str, float]:
    """A new broker, the others, and beside them the bystander."""
    ports = Ports()
    name = "_".join(word for word in words if not word.startswith("--"))
    command = (
        f"env PYTHONPATH={shlex.quote(str(options.checkout))} {shlex.quote(sys.executable)} -P -m geminga"
    )
    with BrokerProcess(command + " standalone --data-dir {data_dir}", ports, options.work_dir) as broker:
        others = subprocess.Popen(
            [sys.executable, __file__, *words, "--as-other"],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        try:
            assert others.stdout is not None
            others.stdout.readline()
            time.sleep(SETTLE_S)
            since_s, cpu_s = time.monotonic(), broker.cpu_seconds()
            until_s = math.inf if to_the_end else since_s + options.seconds
            found = trio.run(round_trips_ms, ports.url, until_s, others if to_the_end else None)
            figures = quantiles(name, found)
            figures[f"{name}_round_trips"] = len(found)
            figures[f"{name}_broker_cpu"] = (broker.cpu_seconds() - cpu_s) / (time.monotonic() - since_s)
            figures[f"{name}_resident_mib"] = broker.resident_bytes() / MIB
            if to_the_end:
                receipts, took_s = others.stdout.readline().split()
                figures |= {f"{name}_receipts": float(receipts), f"{name}_took_s": float(took_s)}
        finally:
            others.kill()
            others.wait()
    show(figures)
    return figures


def measure(options: argparse.Namespace) -> dict[str, float]:
    figures: dict[str, float] = {}
    if options.what == "flood":
        for kind in options.kinds:
            figures |= beside(options, ["flood", "--kinds", kind, "--flooders", str(options.flooders)])
    elif options.what == "half-frames":
        for sent_bytes in options.sent:
            for count in options.counts:
                words = ["half-frames", "--counts", str(count), "--sent", str(sent_bytes)]
                figures |= beside(options, words)
    else:
        words = ["senders", "--senders", str(options.senders)]
        figures |= beside(options, words, to_the_end=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("flood", "half-frames", "senders"))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--flooders", type=int, default=1)
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS)
    parser.add_argument("--sent", nargs="+", type=int, default=SENT_BYTES, help="bytes of each half frame")
    parser.add_argument("--senders", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10, help="of each case")
    parser.add_argument("--checkout", type=Path, default=CHECKOUT, help="whose broker")
    parser.add_argument("--as-other", action="store_true", help=argparse.SUPPRESS)
    add_options(parser)
    options = parser.parse_args()
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES_MAX, files_max), files_max))
    if not options.as_other:
        if not enter_own_network():
            sys.exit("needs a network namespace of its own")
        measured("bystander", options, lambda _: measure(options))
    elif options.what == "flood":
        flood(options.kinds[0], options.flooders)
    elif options.what == "half-frames":
        be_silent(options.counts[0], options.sent[0])
    else:
        send_slowly(options.senders)


if __name__ == "__main__":
    main()
