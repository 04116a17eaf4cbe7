"""One message in flight: CPU, latency and system calls of this checkout and of another one, in turns.

    git worktree add --detach ../before SOME_COMMIT
    python bench/one_at_a_time.py ../before
    python bench/one_at_a_time.py ../before --pairs 6 --syscalls        by strace, in bursts of their own

`publish`: the next message leaves when the receipt of the last one has come. `roundtrip`: it leaves when the
last one has been received and acknowledged, too. `connections`: each of `--connections` sends one message,
and the next burst begins when all receipts have come; CPU alone is told of it.

Both brokers run all the time, and each pair of bursts meets the same weather. CPU is that of all threads of
the broker. Before each pair the disk is measured without a broker: 4 KiB by pwrite and fdatasync into
reserved space, as a journal's first files are, and by one pwritev2 with RWF_DSYNC there and in space that
has been written before. `own p50` is the p50 of a publish less the p50 of the first of them. strace stops
the broker at each call, so the calls of a traced burst are worth something and its times are not. Linux;
the client is this process.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.two_checkouts import Broker, both, cpu_s
from geminga.limits import KIB, MIB
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb

PHASES = ("publish", "roundtrip", "connections")
TOPIC = "persistent://public/default/one-{}"
WARM_UP_MESSAGES = 1000
PERMITS = 1000
GROUP_BYTES = 4 * KIB
PUBLISHER, CONSUMER = 1, 1
SEND_RECEIPT, MESSAGE = pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.MESSAGE


class Burst(NamedTuple):
    cpu_us: float
    """Of the broker, for each message."""
    p50_us: float
    calls: dict[str, float]
    """System calls for each message, by name; empty if they were not counted."""


class Client:
    """One connection, with a producer and perhaps a consumer."""

    def __init__(self, url: str, topic: str, *, consumes: bool) -> None:
        host, _, port = url.removeprefix("pulsar://").partition(":")
        self._sock = socket.create_connection((host, int(port)))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._sequence = 0
        self._sock.sendall(client_commands.connect("one-at-a-time"))
        self._await(pb.BaseCommand.CONNECTED)
        self._sock.sendall(client_commands.producer(1, PUBLISHER, topic))
        self._await(pb.BaseCommand.PRODUCER_SUCCESS)
        if consumes:
            self._sock.sendall(client_commands.subscribe(2, CONSUMER, topic, "s"))
            self._await(pb.BaseCommand.SUCCESS)
            self._sock.sendall(client_commands.flow(CONSUMER, PERMITS))
        metadata = client_commands.metadata("one-at-a-time", 0, 1)
        self._entry = client_commands.entry(metadata, bytes(KIB))

    def publish(self) -> None:
        self.send()
        self.await_receipt()

    def send(self) -> None:
        self._sequence += 1
        self._sock.sendall(client_commands.send(PUBLISHER, self._sequence, self._entry))

    def await_receipt(self) -> None:
        self._await(SEND_RECEIPT)

    def roundtrip(self) -> None:
        self.send()
        message: pb.BaseCommand | None = None
        has_receipt = False
        while message is None or not has_receipt:
            command = self._next()
            if command.type == SEND_RECEIPT:
                has_receipt = True
            elif command.type == MESSAGE:
                message = command
        position = message.message.message_id
        self._sock.sendall(client_commands.ack(CONSUMER, [(position.ledgerId, position.entryId)]))
        if self._sequence % (PERMITS // 2) == 0:
            self._sock.sendall(client_commands.flow(CONSUMER, PERMITS // 2))

    def publish_all(self, count: int, window: int) -> None:
        """Publish with so many on their way at a time."""
        received = 0
        while received < count:
            sent = min(count, received + window) - received
            frames = []
            for _ in range(sent):
                self._sequence += 1
                frames.append(client_commands.send(PUBLISHER, self._sequence, self._entry))
            self._sock.sendall(b"".join(frames))
            for _ in range(sent):
                self.await_receipt()
            received += sent

    def consume_all(self, count: int) -> None:
        """Receive messages, and acknowledge each by itself. What came together leaves together."""
        acks: list[bytes] = []
        for number in range(count):
            message = self._next()
            while message.type != MESSAGE:
                message = self._next()
            position = message.message.message_id
            acks.append(client_commands.ack(CONSUMER, [(position.ledgerId, position.entryId)]))
            if number % (PERMITS // 2) == 0:
                acks.append(client_commands.flow(CONSUMER, PERMITS // 2))
            if len(self._received) < KIB or number == count - 1:
                self._sock.sendall(b"".join(acks))
                acks.clear()

    def _await(self, wanted: int) -> None:
        while self._next().type != wanted:
            pass

    def _next(self) -> pb.BaseCommand:
        while True:
            data = self._received
            if len(data) >= 8 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
                self._received = data[end:]
                command = pb.BaseCommand.FromString(data[8 : 8 + int.from_bytes(data[4:8], "big")])
                if command.type == pb.BaseCommand.ERROR:
                    sys.exit(str(command))
                if command.type == pb.BaseCommand.PING:
                    self._sock.sendall(PONG)
                    continue
                return command
            chunk = self._sock.recv(64 * KIB)
            if not chunk:
                sys.exit("the broker has closed the connection")
            self._received += chunk


PONG = client_commands.frame(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))


class Load:
    """The clients of one broker."""

    def __init__(self, broker: Broker, options: argparse.Namespace) -> None:
        self._pid = broker.process.pid
        self._clients = {
            "publish": Client(broker.url, TOPIC.format("publish"), consumes=False),
            "roundtrip": Client(broker.url, TOPIC.format("roundtrip"), consumes=True),
        }
        many = options.connections if "connections" in options.phases else 0
        self._many = [Client(broker.url, TOPIC.format("connections"), consumes=False) for _ in range(many)]

    def run(self, phase: str, count: int, *, counts_calls: bool) -> Burst:
        if phase == "connections":
            count = max(1, count // len(self._many)) * len(self._many)
        tracer = _Tracer(self._pid) if counts_calls else None
        before_s = cpu_s(self._pid)
        if phase == "connections":
            took_s = self._bursts(count // len(self._many))
        else:
            client = self._clients[phase]
            took_s = timed(client.publish if phase == "publish" else client.roundtrip, count)
        cpu_us = (cpu_s(self._pid) - before_s) / count * 1e6
        calls = tracer.calls(count) if tracer is not None else {}
        return Burst(cpu_us, statistics.median(took_s) * 1e6, calls)

    def _bursts(self, bursts: int) -> list[float]:
        took_s = []
        for _ in range(bursts):
            began_s = time.perf_counter()
            for client in self._many:
                client.send()
            for client in self._many:
                client.await_receipt()
            took_s.append(time.perf_counter() - began_s)
        return took_s


def timed(step: Callable[[], None], count: int) -> list[float]:
    took_s = []
    for _ in range(count):
        began_s = time.perf_counter()
        step()
        took_s.append(time.perf_counter() - began_s)
    return took_s


class _Tracer:
    """Counts the system calls of a process from its construction to `calls`."""

    def __init__(self, pid: int) -> None:
        self._process = subprocess.Popen(
            ["strace", "-c", "-f", "-p", str(pid)], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        self._process.stderr.readline()  # "Process ... attached"
        time.sleep(0.2)  # each thread is attached after it

    def calls(self, count: int) -> dict[str, float]:
        self._process.terminate()
        rows = [line.split() for line in self._process.communicate()[1].splitlines()]
        return {
            row[-1]: int(row[3]) / count
            for row in rows
            if len(row) >= 5 and row[3].isdigit() and row[-1] != "total"
        }


class Disk:
    """The disk without a broker: groups of `GROUP_BYTES`, one after the other into reserved space."""

    def __init__(self, path: Path, *, is_written: bool) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._at = self._reserved = 0
        self._is_written = is_written
        self._group = os.urandom(GROUP_BYTES)

    def fdatasync_p50_us(self, count: int) -> float:
        return statistics.median(timed(self._write_and_sync, count)) * 1e6

    def dsync_p50_us(self, count: int) -> float:
        return statistics.median(timed(self._write_synced, count)) * 1e6

    def _next(self) -> int:
        if self._at + GROUP_BYTES > self._reserved:
            if self._is_written:
                os.pwritev(self._descriptor, [bytes(8 * MIB)], self._reserved, os.RWF_DSYNC)
            else:
                os.posix_fallocate(self._descriptor, self._reserved, 8 * MIB)
            self._reserved += 8 * MIB
        self._at += GROUP_BYTES
        return self._at - GROUP_BYTES

    def _write_and_sync(self) -> None:
        os.pwrite(self._descriptor, self._group, self._next())
        os.fdatasync(self._descriptor)

    def _write_synced(self) -> None:
        os.pwritev(self._descriptor, [self._group], self._next(), os.RWF_DSYNC)


def measure(options: argparse.Namespace, brokers: list[Broker], directory: Path) -> dict[str, Any]:
    loads = [Load(broker, options) for broker in brokers]
    disk = Disk(directory / "reserved", is_written=False)
    written = Disk(directory / "written", is_written=True)
    bursts: dict[str, list[tuple[Burst, Burst]]] = {phase: [] for phase in options.phases}
    bare: list[float] = []
    bare_dsync: list[float] = []
    bare_written: list[float] = []
    for load in loads:
        for phase in options.phases:
            load.run(phase, WARM_UP_MESSAGES, counts_calls=False)
    for pair in range(options.pairs):
        bare.append(disk.fdatasync_p50_us(options.messages // 2))
        bare_dsync.append(disk.dsync_p50_us(options.messages // 2))
        bare_written.append(written.dsync_p50_us(options.messages // 2))
        for phase in options.phases:
            found = {
                number: loads[number].run(phase, options.messages, counts_calls=options.syscalls)
                for number in ((0, 1) if pair % 2 else (1, 0))
            }
            bursts[phase].append((found[0], found[1]))
    return {
        "bare_us": statistics.median(bare),
        "bare_dsync_us": statistics.median(bare_dsync),
        "bare_written_us": statistics.median(bare_written),
        "phases": {phase: figures_of(pairs, bare) for phase, pairs in bursts.items()},
    }


def figures_of(pairs: list[tuple[Burst, Burst]], bare_us: list[float]) -> dict[str, Any]:
    """Medians of here and there, and medians of the ratios of each pair."""
    own = [
        (here.p50_us - disk_us, there.p50_us - disk_us)
        for (here, there), disk_us in zip(pairs, bare_us, strict=True)
    ]
    rows = {
        "cpu": [(here.cpu_us, there.cpu_us) for here, there in pairs],
        "p50": [(here.p50_us, there.p50_us) for here, there in pairs],
        "own p50": own,
    }
    names = {name for pair in pairs for burst in pair for name in burst.calls}
    calls = {
        name: [statistics.mean(pair[at].calls.get(name, 0.0) for pair in pairs) for at in (0, 1)]
        for name in names
    }
    return {
        **{name: _compared(values) for name, values in rows.items()},
        "calls": dict(sorted(calls.items(), key=lambda item: -max(item[1]))),
    }


def _compared(values: list[tuple[float, float]]) -> dict[str, float]:
    return {
        "here": statistics.median(here for here, _ in values),
        "there": statistics.median(there for _, there in values),
        "ratio": statistics.median(here / there for here, there in values),
    }


def show(figures: dict[str, Any]) -> None:
    print(
        f"the disk alone, p50: {figures['bare_us']:.0f} us, in one call {figures['bare_dsync_us']:.0f} us,"
        f" to written space {figures['bare_written_us']:.0f} us"
    )
    print(f"{'us for each message':28}{'here':>9}{'there':>9}   here/there, median of the pairs")
    for phase, rows in figures["phases"].items():
        for name in ("cpu",) if phase == "connections" else ("cpu", "p50", "own p50"):
            row = rows[name]
            print(f"{phase + ' ' + name:28}{row['here']:9.1f}{row['there']:9.1f}{row['ratio']:9.3f}")
    for phase, rows in figures["phases"].items():
        if not rows["calls"]:
            continue
        here, there = (sum(pair[at] for pair in rows["calls"].values()) for at in (0, 1))
        print(f"{phase + ': system calls':28}{here:9.2f}{there:9.2f}")
        for name, pair in rows["calls"].items():
            if max(pair) >= 0.05:
                print(f"  {name:26}{pair[0]:9.2f}{pair[1]:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--messages", type=int, default=500, help="in each burst")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES[:2]))
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--syscalls", action="store_true", help="count them; times mean nothing then")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="one-at-a-time-") as name:
        directory = Path(name)
        with both(options.other, directory) as brokers:
            figures = measure(options, brokers, directory)
    show(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
