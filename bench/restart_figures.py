"""How long after a restart all surfaces say what they said before it: topics, backlogs, delayed messages.

    python bench/restart_figures.py              10,000 topics, 2,000 with a backlog, 500 of these delayed
    python bench/restart_figures.py --topics 300 --backlog 100 --delayed 30

A broker is filled, stopped by SIGTERM and started again, then killed and started again. After each start its
page of metrics is scraped every five seconds, until it agrees with what was read before the first restart,
and then `geminga status --json` and the page at `/`. A page of 10,000 topics takes seconds, so scrapes
without a pause would measure themselves. Given are the milliseconds until both ports answered, the seconds
from then until a page with the same backlogs, and with the same delayed messages, had arrived, and the CPU
that the broker had used by then. Exits with 1 if backlogs take more than 10 seconds, delayed messages
more than 60, or a surface never agrees.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.broker_process import CHECKOUT
from geminga.cli.client.connection import Connection
from geminga.cli.client.producer import Attributes, Producer
from geminga.cli.figures.scrape import parsed
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb

CONNECTIONS = 8
BACKLOG_MESSAGES = 5
DELAYED_MESSAGES = 20
SCRAPE_S = 5.0
BACKLOG_S_MAX = 10.0
DELAYED_S_MAX = 60.0
GIVEN_UP_S = 180.0
DELAY_MS = 86_400_000


class Collector:
    """A consumer that takes what comes and acknowledges nothing."""

    def on_command(self, command: object) -> None:
        pass


async def fill(ready: dict[str, Any], options: argparse.Namespace) -> None:
    """Each topic has a subscription. The first ones get a backlog, and the first of these delayed messages,
    whose consumers stay until the broker has counted them.
    """
    numbers = iter(range(options.topics))
    left, counted = CONNECTIONS, trio.Event()

    async def work() -> None:
        nonlocal left
        connection = await Connection.open(ready["binary"])
        async with trio.open_nursery() as nursery:
            await nursery.start(connection.run)
            for number in numbers:
                await fill_one(connection, f"persistent://public/default/t-{number}", number, options)
            left -= 1
            if not left:
                told_now = functools.partial(trio.to_thread.run_sync, told, ready["web"])
                while delayed_in(await told_now()) < wanted(options):  # noqa: ASYNC110 - of another process
                    await trio.sleep(1)
                counted.set()
            await counted.wait()
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            nursery.start_soon(work)


def wanted(options: argparse.Namespace) -> int:
    return int(options.delayed) * DELAYED_MESSAGES


def delayed_in(found: dict[str, tuple[int, int]]) -> int:
    return sum(delayed for _, delayed in found.values())


async def fill_one(connection: Connection, topic: str, number: int, options: argparse.Namespace) -> None:
    consumer_id = connection.attach(consumer=Collector())
    subscribe = functools.partial(client_commands.subscribe, topic=topic, subscription="sub")
    shared = pb.CommandSubscribe.Shared
    await connection.request(lambda request: subscribe(request, consumer_id, sub_type=shared))
    if number < options.backlog:
        producer = await Producer.open(connection, topic, 100)
        is_delayed = number < options.delayed
        due_ms = time.time_ns() // 1_000_000 + DELAY_MS
        for _ in range(DELAYED_MESSAGES if is_delayed else BACKLOG_MESSAGES):
            await producer.send(b"x" * 100, Attributes(deliver_at_ms=due_ms if is_delayed else None))
        await producer.close()
        if is_delayed:
            connection.write(client_commands.flow(consumer_id, 1000))
            return
    await connection.request(lambda request: client_commands.close_consumer(request, consumer_id))


def start(data_dir: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    command = [sys.executable, "-P", "-m", "geminga", "standalone", "--data-dir", data_dir]
    process = subprocess.Popen(
        [*command, "--port", "0", "--web-port", "0"],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def page_of(web: str) -> bytes:
    with urllib.request.urlopen(web + "/metrics/") as response:
        body: bytes = response.read()
    return body


def told(web: str) -> dict[str, tuple[int, int]]:
    """By topic, its backlog and delayed messages, from the page of metrics."""
    return told_by(page_of(web))


def told_by(page: bytes) -> dict[str, tuple[int, int]]:
    topics, _ = parsed(page.decode().splitlines())
    return {topic: (int(row.get("backlog", 0)), int(row.get("delayed", 0))) for topic, row in topics.items()}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status(url: str) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "geminga", "status", "--json", "--url", url]
    found = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True
    )
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


def until_same(before: dict[str, tuple[int, int]], ready: dict[str, Any], pid: int) -> dict[str, float]:
    began_s = time.monotonic()
    figures = {"ready_ms": float(ready["startup_ms"])}
    backlogs = {topic: backlog for topic, (backlog, _) in before.items()}
    while "delayed_s" not in figures and time.monotonic() - began_s < GIVEN_UP_S:
        time.sleep(SCRAPE_S)
        page = page_of(ready["web"])
        # Before it is parsed, which takes seconds for 10,000 topics.
        after_s, used_s = time.monotonic() - began_s, cpu_s(pid)
        now = told_by(page)
        if "backlog_s" not in figures and {t: b for t, (b, _) in now.items()} == backlogs:
            figures |= {"backlog_s": after_s, "backlog_cpu_s": used_s}
        if now == before:
            figures |= {"delayed_s": after_s, "delayed_cpu_s": used_s}
    found = status(ready["binary"])
    sums = [sum(column) for column in zip(*before.values(), strict=True)]
    figures["status_same"] = (found["topics"], found["backlog"], found["delayed"]) == (len(before), *sums)
    with urllib.request.urlopen(ready["web"] + "/") as response:
        page = re.sub(r"<[^>]+>", " ", response.read().decode())
    figures["page_has_sums"] = all(f"{number:,}" in page or str(number) in page for number in sums)
    figures["resident_mib"] = found["memory_bytes"] / 2**20
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--backlog", type=int, default=2_000, help="topics with a backlog")
    parser.add_argument("--delayed", type=int, default=500, help="those of them with delayed messages")
    options = parser.parse_args()
    is_well = True
    with tempfile.TemporaryDirectory(prefix="restart-figures-") as directory:
        process, ready = start(f"{directory}/data")
        try:
            trio.run(fill, ready, options)
            before = told(ready["web"])
            assert len(before) == options.topics
            backlog = sum(entries for entries, _ in before.values())
            print(f"{len(before)} topics, backlog {backlog}, delayed {delayed_in(before)}", flush=True)
            for number in (signal.SIGTERM, signal.SIGKILL):
                began_s = time.monotonic()
                process.send_signal(number)
                process.wait()
                stopped_s = time.monotonic() - began_s
                process, ready = start(f"{directory}/data")
                figures = until_same(before, ready, process.pid)
                is_well &= figures.get("backlog_s", GIVEN_UP_S) <= BACKLOG_S_MAX
                is_well &= figures.get("delayed_s", GIVEN_UP_S) <= DELAYED_S_MAX
                is_well &= bool(figures["status_same"] and figures["page_has_sums"])
                shown = ", ".join(f"{name} {value:.1f}" for name, value in figures.items())
                print(f"after {number.name} (ended in {stopped_s:.1f} s): {shown}", flush=True)
        finally:
            process.kill()
            process.wait()
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
