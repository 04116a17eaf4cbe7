"""This broker beside Pulsar, NATS JetStream and Redis streams: rates, CPU and latency, in turns.

    python bench/peers.py --redis redis-server --nats nats-server
    python bench/peers.py --redis redis-server --nats nats-server --pulsar 'COMMAND with {data_dir}'

Messages have 1 KiB. `publish`: 1,000 are on their way at a time, and each has its receipt in the end.
`consume`: the same messages are received and acknowledged one by one. `alone`: the next message leaves when
the receipt of the last one has come. Redis runs with `appendfsync always`, and NATS both with
`sync_interval: always` and as it is by default, where a receipt does not mean that the message is on the
disk.

The client is this process, and speaks each protocol by itself: so all brokers meet the same one. All of them
run all the time and are loaded in turns. CPU is that of all threads of a broker, for each message. The table
has medians, as Markdown. Linux.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.broker_process import OURS, die_with_parent, enter_own_network
from bench.one_at_a_time import Client, timed
from bench.two_checkouts import cpu_s
from geminga.limits import KIB

PAYLOAD = bytes(KIB)
WINDOW = 1000
READY_S = 120.0


class Peer:
    """One broker and its client."""

    def __init__(self, name: str, command: list[str], port: int, directory: Path) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        self.port = port
        until_s = time.monotonic() + READY_S
        while True:
            try:
                self.connect()
                return
            except (OSError, SystemExit):  # not there yet, or not ready
                if self.process.poll() is not None or time.monotonic() > until_s:
                    sys.exit(f"{name} did not start")
                time.sleep(0.1)

    def connect(self) -> None:
        self.sock = socket.create_connection(("127.0.0.1", self.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes, until: bytes) -> bytes:
        self.sock.sendall(request)
        answer = b""
        while until not in answer:
            answer += self.sock.recv(64 * KIB)
        return answer

    def pump(self, message: bytes, receipt: bytes, count: int) -> None:
        """Publish, `WINDOW` at a time; `receipt` is in each receipt once."""
        sent = got = 0
        rest = b""
        while got < count:
            if (more := min(count, got + WINDOW) - sent) > 0:
                self.sock.sendall(message * more)
                sent += more
            data = rest + self.sock.recv(256 * KIB)
            got += data.count(receipt)
            rest = (
                data[data.rfind(receipt) + len(receipt) :][-len(receipt) + 1 :] if receipt in data else data
            )

    def publish(self, count: int) -> None:
        raise NotImplementedError

    def consume(self, count: int) -> None:
        raise NotImplementedError

    def publish_one(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.process.kill()  # nothing of its data is needed
        self.process.wait()


class Redis(Peer):
    _ADD = b"*5\r\n$4\r\nXADD\r\n$1\r\nm\r\n$1\r\n*\r\n$1\r\nd\r\n$1024\r\n" + PAYLOAD + b"\r\n"

    def connect(self) -> None:
        super().connect()
        self.ask(b"XGROUP CREATE m g 0 MKSTREAM\r\n", b"\r\n")

    def publish(self, count: int) -> None:
        self.pump(self._ADD, b"-", count)  # each id has one
        self.ask(b"PING\r\n", b"PONG")

    def publish_one(self) -> None:
        self.ask(self._ADD, b"-")

    def consume(self, count: int) -> None:
        while count > 0:
            wanted = min(count, 500)
            answer = self.ask(b"XREADGROUP GROUP g c COUNT %d STREAMS m >\r\nPING\r\n" % wanted, b"+PONG")
            ids = re.findall(rb"\$\d+\r\n(\d{10,}-\d+)\r\n", answer)
            if not ids:
                sys.exit("Redis has no more messages")
            # Each alone, as clients acknowledge what they have handled.
            self.ask(b"".join(b"XACK m g %s\r\n" % one for one in ids) + b"PING\r\n", b"+PONG")
            count -= len(ids)


class Nats(Peer):
    _PUBLISH = b"PUB m _INBOX.p 1024\r\n" + PAYLOAD + b"\r\n"

    def connect(self) -> None:
        super().connect()
        self.ask(b'CONNECT {"verbose":false}\r\nPING\r\n', b"PONG")
        self.sock.sendall(b"SUB _INBOX.> 1\r\n")
        self._api("STREAM.CREATE.m", {"name": "m", "subjects": ["m"], "storage": "file"})
        consumer = {"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": 10_000}
        self._api("CONSUMER.DURABLE.CREATE.m.c", {"stream_name": "m", "config": consumer})

    def _api(self, name: str, request: dict[str, object]) -> None:
        body = json.dumps(request).encode()
        head = f"PUB $JS.API.{name} _INBOX.api {len(body)}\r\n".encode()
        answer = self.ask(head + body + b"\r\n", b"}\r\n")
        if b'"error"' in answer:
            sys.exit(answer.decode())

    def publish(self, count: int) -> None:
        self.pump(self._PUBLISH, b'"seq":', count)
        self.ask(b"PING\r\n", b"PONG")

    def publish_one(self) -> None:
        self.ask(self._PUBLISH, b"}\r\n")

    def consume(self, count: int) -> None:
        while count > 0:
            request = b'{"batch":%d,"no_wait":true}' % min(count, 500)
            head = b"PUB $JS.API.CONSUMER.MSG.NEXT.m.c _INBOX.n %d\r\n" % len(request)
            answer = self.ask(head + request + b"\r\n", b"MSG m 1 ")
            acks = re.findall(rb"MSG m 1 (\$JS\.ACK\.\S+) 1024\r\n", answer)
            while len(acks) < min(count, 500):
                answer += self.sock.recv(256 * KIB)
                acks = re.findall(rb"MSG m 1 (\$JS\.ACK\.\S+) 1024\r\n", answer)
            self.ask(b"".join(b"PUB %s 4\r\n+ACK\r\n" % one for one in acks) + b"PING\r\n", b"PONG")
            count -= len(acks)


class Pulsar(Peer):
    """Geminga, or Pulsar itself."""

    _TOPIC = "persistent://public/default/peers"

    def connect(self) -> None:
        url = f"pulsar://127.0.0.1:{self.port}"
        self._producer = Client(url, self._TOPIC, consumes=False)
        self._consumer = Client(url, self._TOPIC, consumes=True)

    def publish(self, count: int) -> None:
        self._producer.publish_all(count, WINDOW)

    def publish_one(self) -> None:
        self._producer.publish()

    def consume(self, count: int) -> None:
        self._consumer.consume_all(count)


class Burst(NamedTuple):
    cpu_us: float
    per_s: float
    took_s: list[float]


def burst(peer: Peer, step: Callable[[], None], count: int, *, singly: bool = False) -> Burst:
    used_s, began_s = cpu_s(peer.process.pid), time.perf_counter()
    took_s = timed(step, count) if singly else timed(step, 1)
    elapsed_s = time.perf_counter() - began_s
    return Burst((cpu_s(peer.process.pid) - used_s) / count * 1e6, count / elapsed_s, took_s)


def row(name: str, publish: list[Burst], consume: list[Burst], alone: list[Burst]) -> str:
    def median(bursts: list[Burst], field: str) -> float:
        return statistics.median(getattr(one, field) for one in bursts)

    took_ms = sorted(took_s * 1000 for one in alone for took_s in one.took_s)
    cells = [
        f"{median(publish, 'cpu_us'):.1f}",
        f"{median(publish, 'per_s') / 1000:.0f}",
        f"{median(consume, 'cpu_us'):.1f}",
        f"{median(consume, 'per_s') / 1000:.0f}",
        f"{median(alone, 'cpu_us'):.0f}",
        f"{took_ms[len(took_ms) // 2]:.2f}",
        f"{took_ms[len(took_ms) * 99 // 100]:.2f}",
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--redis", help="the program redis-server")
    parser.add_argument("--nats", help="the program nats-server")
    parser.add_argument("--pulsar", help="the command that becomes Pulsar on port 6650, with {data_dir}")
    parser.add_argument(
        "--messages", type=int, default=20_000, help="in each burst; a tenth with NATS in sync"
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if not enter_own_network():
        sys.exit("needs a network namespace of its own")
    directory = Path(tempfile.mkdtemp(prefix="peers-"))
    peers: list[Peer] = []
    try:
        ours = shlex.split(f"{OURS} --port 6651 --web-port 8081".format(data_dir=directory / "ours"))
        peers.append(Pulsar("Geminga", ours, 6651, Path(__file__).resolve().parents[1]))
        if options.pulsar:
            command = shlex.split(options.pulsar.format(data_dir=directory / "pulsar"))
            peers.append(Pulsar("Pulsar", command, 6650, directory))
        if options.redis:
            command = [options.redis, "--port", "6379", "--save", "", "--appendonly", "yes"]
            peers.append(Redis("Redis, fsync always", [*command, "--appendfsync", "always"], 6379, directory))
        for number, sync in enumerate(("always", "2m")) if options.nats else ():
            settings = directory / f"nats-{number}.conf"
            settings.write_text(
                f"port: {4222 + number}\n"
                f'jetstream {{ store_dir: "{directory}/nats-{number}", sync_interval: {sync} }}\n'
            )
            name = "NATS, sync always" if sync == "always" else "NATS, by default (not durable)"
            peers.append(Nats(name, [options.nats, "-c", str(settings)], 4222 + number, directory))
        found: dict[str, tuple[list[Burst], ...]] = {peer.name: ([], [], []) for peer in peers}
        for turn in range(options.rounds + 1):
            for peer in peers:
                count = options.messages // (10 if peer.name == "NATS, sync always" else 1)
                bursts = (
                    burst(peer, lambda: peer.publish(count), count),  # noqa: B023
                    burst(peer, lambda: peer.consume(count), count),  # noqa: B023
                    burst(peer, peer.publish_one, 300, singly=True),
                )
                peer.consume(300)
                for kept, one in zip(found[peer.name], bursts, strict=True):
                    if turn:  # the first one warms up
                        kept.append(one)
    finally:
        for peer in peers:
            peer.stop()
        shutil.rmtree(directory, ignore_errors=True)
    print("| broker | publish CPU us | k/s | consume CPU us | k/s | alone CPU us | p50 ms | p99 ms |")
    print("|---|---|---|---|---|---|---|---|")
    for peer in peers:
        print(row(peer.name, *found[peer.name]))


if __name__ == "__main__":
    main()
