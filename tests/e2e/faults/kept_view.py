"""What is left of an application whose database is a compacted topic, after all that a broker does to it.

    python -m tests.e2e.faults.kept_view pulsar://127.0.0.1:6650 http://127.0.0.1:8080 --broker COMMAND

COMMAND starts a broker at these addresses in the foreground, on a directory that it finds again; it is
stopped and killed on the way. Any Pulsar broker will do. It has to delete unused topics within seconds:

    brokerDeleteInactiveTopicsFrequencySeconds=2
    brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=2

Its ledgers have to be larger than what is written before compaction is asked for: a topic that nothing keeps
may lose each ledger as soon as that is full, on any broker.

The program prints after each step how many keys a table view has, and how many messages a reader gets of all
that are stored. The exit code is 1 if a key is missing, or has an old value.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pulsar

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.waiting import eventually

KEYS = 50
ROUNDS = 3
"""How often each key gets a new value before compaction is asked for; half of the keys get one more then."""
TOPIC = "persistent://public/default/kept-view"
READY_SECONDS_MAX = 120.0
STEP_SECONDS_MAX = 60.0
NAMESPACE = "/admin/v2/namespaces/public/default"


class Left(NamedTuple):
    keys: int
    """Keys with the value that was written last."""
    messages: int
    """Messages that a compacted reader gets."""


class KeptView:
    """The topic of one application, which connects for each look and leaves again."""

    def __init__(self, service_url: str, web_url: str, topic: str = TOPIC, keys: int = KEYS) -> None:
        self._service_url = service_url
        self._admin = Admin(web_url)
        self._topic = topic
        self._path = f"/admin/v2/{topic_path(topic)}"
        self._wanted = {f"key-{n}": f"{ROUNDS + (n % 2)}-{n}".encode() for n in range(keys)}
        self._unused = 0

    def _client(self) -> pulsar.Client:
        return pulsar.Client(self._service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    def write(self) -> None:
        """Give each key its values. Ask for compaction before the last ones; where it runs, wait for it."""
        client = self._client()
        producer = client.create_producer(self._topic)
        for number in range(1, ROUNDS + 1):
            for key in self._wanted:
                producer.send(f"{number}-{key.removeprefix('key-')}".encode(), partition_key=key)
        answer = self._admin.put(f"{self._path}/compaction")
        assert answer.status == 204, answer
        eventually(self._is_compacted, STEP_SECONDS_MAX)
        for key, value in self._wanted.items():
            if value.startswith(str(ROUNDS + 1).encode()):
                producer.send(value, partition_key=key)
        client.close()

    def _is_compacted(self) -> bool:
        return self._admin.get(f"{self._path}/compaction").json()["status"] != "RUNNING"

    def left(self) -> Left:
        """What a table view and a compacted reader find. Nobody is connected before and after."""
        client = self._client()
        try:
            view = client.create_table_view(self._topic)
            keys = sum(view.get(key) == value for key, value in self._wanted.items())
            view.close()
            reader = client.create_reader(self._topic, pulsar.MessageId.earliest, is_read_compacted=True)
            messages = 0
            while reader.has_message_available():
                reader.read_next(10_000)
                messages += 1
        finally:
            client.close()
        return Left(keys, messages)

    def unload(self) -> None:
        assert self._admin.put(f"{self._path}/unload").status == 204

    def trim(self) -> None:
        answer = self._admin.post(f"{self._path}/trim")
        assert answer.status in (200, 204), answer

    def outlast(self) -> None:
        """Wait until the broker has deleted a topic that was unused for less time than this one."""
        self._admin.get(f"{self._path}/stats")  # loads it: only loaded topics are looked at
        self._unused += 1
        other = f"/admin/v2/{topic_path(self._topic)}-unused-{self._unused}"
        answer = self._admin.put(other)
        assert answer.status == 204, answer
        eventually(lambda: self._admin.get(f"{other}/stats").status == 404, STEP_SECONDS_MAX)

    def wait_until_served(self) -> None:
        eventually(self._is_served, READY_SECONDS_MAX)

    def _is_served(self) -> bool:
        try:
            return self._admin.get(NAMESPACE).status == 200
        except OSError:
            return False

    def has_all(self, left: Left) -> bool:
        return left.keys == len(self._wanted)


def steps(view: KeptView, restart: Callable[[signal.Signals], None]) -> list[tuple[str, Callable[[], None]]]:
    """What is done to the broker, in order."""
    return [
        ("written", view.write),
        ("unload", view.unload),
        ("trim", view.trim),
        ("inactivity", view.outlast),
        ("restart", lambda: restart(signal.SIGTERM)),
        ("trim", view.trim),
        ("inactivity", view.outlast),
        ("kill -9", lambda: restart(signal.SIGKILL)),
        ("trim", view.trim),
        ("inactivity", view.outlast),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("service_url")
    parser.add_argument("web_url")
    parser.add_argument("--broker", required=True, metavar="COMMAND")
    parser.add_argument("--keys", type=int, default=KEYS)
    flags = parser.parse_args()
    view = KeptView(flags.service_url, flags.web_url, keys=flags.keys)
    process = subprocess.Popen(shlex.split(flags.broker), stdout=sys.stderr)

    def restart(number: signal.Signals) -> None:
        nonlocal process
        process.send_signal(number)
        process.wait()
        process = subprocess.Popen(shlex.split(flags.broker), stdout=sys.stderr)
        view.wait_until_served()

    is_whole = True
    try:
        view.wait_until_served()
        for name, do in steps(view, restart):
            do()
            left = view.left()
            is_whole = is_whole and view.has_all(left)
            print(f"{name:<12} {left.keys:>4} of {flags.keys} keys {left.messages:>6} messages", flush=True)
    finally:
        process.terminate()
        process.wait()
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
