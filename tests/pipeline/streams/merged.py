"""The recipe of docs/pipeline-recipes.md, its driver killed with SIGKILL, against a plain client."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pulsar

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess
from tests.pipeline.exactness.killing import below
from tests.pipeline.streams.away import TOO_LATE

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "pipeline-recipes.md"
TOPIC = "persistent://public/default/customers"
KEYS = 500
SETTINGS = {"brokerDeleteInactiveTopicsEnabled": "false"}
RUN_SECONDS = 300.0
SHOW = """
for row in customers.collect():
    print("row", row.key, row.value)
"""


def recipe(service_url: str, directory: Path) -> str:
    """The page's program, with these places instead of its own."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    program = (found[1] + SHOW).replace("pulsar://localhost:6650", service_url)
    return program.replace("/warehouse", str(directory / "warehouse"))


class Writer:
    """Changes of random keys by the official client; every fifth is a tombstone."""

    def __init__(self, client: pulsar.Client, seed: int) -> None:
        self._producer = client.create_producer(TOPIC, batching_enabled=True)
        self._random = random.Random(seed)
        self._number = 0

    def write(self, changes: int) -> None:
        for _ in range(changes):
            key = f"k{self._random.randrange(KEYS)}"
            self._number += 1
            if self._random.random() < 0.2:
                self._producer.send_async(None, None, partition_key=key)
            else:
                self._producer.send_async(b"%d" % self._number, None, partition_key=key)
        self._producer.flush()


def truth(client: pulsar.Client) -> dict[str, str]:
    """What is left of each key, by a plain client."""
    found: dict[str, str] = {}
    for partition in client.get_topic_partitions(TOPIC):
        reader = client.create_reader(partition, pulsar.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next()
            found.pop(message.partition_key(), None)
            if message.data():
                found[message.partition_key()] = message.data().decode()
        reader.close()
    return found


def killed_at(moment: str, warehouse: Path, before: str | None) -> bool:
    """Whether the program is `within` a micro-batch, or has `stored` what Spark does not know yet."""
    current = pointer(warehouse)
    if moment == "within":
        new = [path.name for path in (warehouse / "customers").glob("*-*")]
        return current == before and any(name != before for name in new)
    return current != before


def pointer(warehouse: Path) -> str | None:
    try:
        return (warehouse / "customers" / "current").read_text()
    except FileNotFoundError:
        return None


def run(program: str, moment: str | None, directory: Path) -> dict[str, str]:
    """What the table holds then, unless the driver is killed at that moment."""
    warehouse, log = directory / "warehouse", directory / "driver.log"
    before = pointer(warehouse)
    with log.open("ab") as errors, (directory / "out").open("w+b") as out:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program], cwd=ROOT, stdout=out, stderr=errors
        )
        until = time.monotonic() + RUN_SECONDS
        while process.poll() is None:
            assert time.monotonic() < until, f"the recipe does not end: {log.read_text()[-2000:]}"
            if moment is not None and killed_at(moment, warehouse, before):
                for pid in [process.pid, *below(process.pid)]:
                    os.kill(pid, signal.SIGKILL)
                process.wait()
                batch = max(
                    int(path.name) for path in (warehouse / "checkpoints/customers/offsets").glob("?")
                )
                done = (warehouse / "checkpoints/customers/commits" / str(batch)).exists()
                print(f"  killed {moment}; micro-batch {batch} {'is' if done else 'not'} done", flush=True)
                return {}
            threading.Event().wait(0.002)
        if process.returncode != 0:
            said = log.read_text()
            assert TOO_LATE in said.rpartition("Traceback")[2], said[-3000:]
            print(f"  {TOO_LATE}; started again", flush=True)
            return run(program, moment, directory)
        assert moment is None, f"the driver has ended and was not killed {moment}"
        out.seek(0)
        lines = [line.decode().split() for line in out if line.startswith(b"row ")]
    return {key: value for _, key, value in lines}


def merged(directory: Path, *, changes: int = 5000) -> None:
    moments = ("within", "stored", "within", None)
    (directory / "warehouse").mkdir()
    with BrokerProcess(directory / "data", settings=SETTINGS) as process:
        Admin(process.endpoints.web_url).create_partitions(TOPIC, 2)
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(process.endpoints.service_url, logger=quiet)
        writer, program = Writer(client, 7), recipe(process.endpoints.service_url, directory)
        for moment in moments:
            writer.write(changes)
            found = run(program, moment, directory)
        expected = truth(client)
        client.close()
    wrong = {key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)}
    assert not wrong, f"{len(wrong)} keys differ: {sorted(wrong)[:10]}"
    print(
        f"  {len(moments) * changes} changes, {len(found)} of {KEYS} keys left, as a plain client says",
        flush=True,
    )
