"""Make every alert true and false again in a real Prometheus, with restarts of the broker between.

    python -m tests.docker.live_alerts [--prometheus PROGRAM] [--only ALERT ...]

Two of them scrape one broker for each alert, every 15 s and every 60 s. A line for each alert gives, for each
interval, the seconds until it fired and until it was gone, and other alerts of its broker. The exit code is 1
if an alert did not fire, did not go, or was not meant. This takes 50 minutes, nearly all of them waiting:
`GemingaNoConsumers` alone stands for half an hour. `python -m tests.docker.alerts` asks the same rules with
written series in a moment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pulsar

from tests.docker.boards import free_port
from tests.docker.test_dashboards import RULES
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.files import log_damage
from tests.e2e.files.log_damage import damaged_log, fill
from tests.e2e.waiting import eventually, now_ms

INTERVALS_S: Final = (15, 60)
WAIT_S: Final = 3000.0
LOG_SETTINGS: Final = {"journalMaxBackups": "0", "journalMaxSizeMB": "1"}
BUCKETS: Final = {
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
    "delayedDeliveryMinIndexCountPerBucket": "50",
}
SUBSCRIPTION: Final = "/admin/v2/persistent/public/default/t/subscription/s"
Step = Iterator[str]
"""A case yields "true" once its alert has to fire, "false" once it has to go, and goes on when it did."""


class Watched:
    """Prometheus processes of both intervals; `alerts` are those that fire, of each interval and address."""

    def __init__(
        self, addresses: list[str], program: str, directory: Path, stack: contextlib.ExitStack
    ) -> None:
        self._urls: dict[int, str] = {}
        shutil.copy(RULES, directory)
        for interval_s in INTERVALS_S:
            config = directory / f"every-{interval_s}.yml"
            config.write_text(
                f"global: {{scrape_interval: {interval_s}s, evaluation_interval: {interval_s}s}}\n"
                f"rule_files: [{RULES.name}]\n"
                "scrape_configs:\n  - job_name: broker\n    metrics_path: /metrics/\n"
                f"    static_configs: [{{targets: {json.dumps(addresses)}}}]\n"
            )
            self._urls[interval_s] = f"http://127.0.0.1:{free_port()}"
            words = [program, f"--config.file={config}", f"--storage.tsdb.path={directory}/tsdb-{interval_s}"]
            words += [f"--web.listen-address={self._urls[interval_s].removeprefix('http://')}"]
            process = stack.enter_context(subprocess.Popen([*words, "--log.level=error"]))
            stack.callback(process.terminate)

    def alerts(self, interval_s: int, address: str) -> set[str]:
        with urllib.request.urlopen(f"{self._urls[interval_s]}/api/v1/alerts") as answer:
            found = json.load(answer)["data"]["alerts"]
        ours = (one["labels"] for one in found if one["state"] == "firing")
        return {labels["alertname"] for labels in ours if labels["instance"] == address}


@dataclass
class Case:
    alert: str
    course: Callable[[Case], Step]
    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    others: set[str] = field(default_factory=set)
    """Alerts of this broker that were not meant."""

    def __post_init__(self) -> None:
        self.ports = (free_port(), free_port())
        self.broker = self.at(self.settings)

    def at(self, settings: dict[str, str]) -> BrokerProcess:
        data_dir = self.directory / "data"
        return BrokerProcess(data_dir, settings=settings, arguments=["--chaos"], ports=self.ports)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    @property
    def admin(self) -> Admin:
        return Admin(self.broker.endpoints.web_url)

    def client(self) -> pulsar.Client:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(self.directory / "client.log"))
        return pulsar.Client(self.broker.endpoints.service_url, logger=logger)

    def restart(self) -> None:
        self.broker.kill()
        self.broker.start()

    def fault(self, **rule: Any) -> None:
        answer = self.admin.post("/geminga/faults", rule)
        assert answer.status < 300, answer.text

    def run(self, watched: Watched) -> bool:
        """Whether the alert fired and went in both intervals; what happened is in `log`."""
        try:
            for step in self.course(self):
                began_s, left = time.monotonic(), set(INTERVALS_S)
                while left:
                    for interval_s in sorted(left):
                        fired = watched.alerts(interval_s, self.address)
                        self.others |= fired - {self.alert}
                        if (self.alert in fired) == (step == "true"):
                            left.remove(interval_s)
                            self.log.append(f"{step} {interval_s} s: {time.monotonic() - began_s:.0f}")
                    if time.monotonic() - began_s > WAIT_S:
                        self.log.append(f"NOT {step} after {WAIT_S:.0f} s with scrapes of {left} s")
                        return False
                    threading.Event().wait(1)
        except Exception as error:
            self.log.append(f"FAILED: {error!r}")
            return False
        finally:
            if self.broker.is_running():
                self.broker.kill()
        return not self.others


def scraped_twice() -> None:
    threading.Event().wait(2 * max(INTERVALS_S))


@contextlib.contextmanager
def repeated(action: Callable[[], object], pause_s: float) -> Iterator[None]:
    """`action` is called again and again until the end of the block."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(pause_s):
            # A broker that is restarted, or full, answers with an error.
            with contextlib.suppress(Exception):
                action()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def down(case: Case) -> Step:
    case.broker.start()
    eventually(lambda: case.admin.get("/metrics/").status == 200)
    yield "false"
    scraped_twice()
    case.broker.kill()
    yield "true"
    case.broker.start()
    yield "false"


def read_only(case: Case) -> Step:
    case.broker.start()
    client = case.client()
    producer = client.create_producer("t", send_timeout_millis=2000)
    with repeated(lambda: producer.send(bytes(100_000)), 0.1):
        for _ in range(2):
            case.fault(place="journal", kind="enospc", id="full")
            yield "true"
            case.restart()
            yield "false"
    client.close()


def entries_lost(case: Case) -> Step:
    case.broker.start()
    client = case.client()
    client.subscribe("t", "s")
    producer = client.create_producer("t", batching_enabled=False)
    for _ in range(5):
        producer.send(bytes(1_000_000))
    client.close()
    assert case.broker.stop() == 0
    bookie = case.directory / "data" / "bookie"
    for path in [*(bookie / "entry-logs").iterdir(), *sorted((bookie / "journal").iterdir())[:-1]]:
        path.unlink()
    case.broker.start()
    yield "true"
    case.restart()
    scraped_twice()
    yield "true"
    assert case.admin.request("DELETE", "/admin/v2/persistent/public/default/t?force=true").status == 204
    case.restart()
    yield "false"


def damaged_entries(case: Case) -> Step:
    data_dir = case.directory / "data"
    fill(data_dir, keep_journals=False)
    damaged_log(data_dir, "bit flipped in the middle")
    case.broker.start()
    client = case.client()
    reader = client.create_reader(log_damage.TOPIC, pulsar.MessageId.earliest)
    with contextlib.suppress(pulsar.PulsarException):
        while True:
            reader.read_next(2000)
    yield "true"
    case.restart()
    scraped_twice()  # the scrub finds it again after each restart, until the topic is deleted
    yield "true"
    client.close()
    path = f"/admin/v2/{log_damage.TOPIC.replace('://', '/')}?force=true"
    assert case.admin.request("DELETE", path).status == 204
    case.restart()
    yield "false"


def buckets_lost(case: Case) -> Step:
    case.broker.start()
    client = case.client()
    client.subscribe("t", "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer("t")
    for number in range(400):
        producer.send_async(b"x", lambda *_: None, deliver_at=now_ms() + 86_400_000 + number)
    producer.flush()
    case.restart()
    path = "/geminga/delayed/persistent/public/default/t/subscription/s"
    found = eventually(lambda: [one for one in case.admin.get(f"{path}/buckets").json() if one["ledgerId"]])
    scraped_twice()  # an increase needs a figure from before
    assert case.admin.post(f"{path}/lose-bucket", {"ledgerId": found[0]["ledgerId"]}).status == 200
    yield "true"
    case.restart()
    yield "false"
    client.close()


def delayed_late(case: Case) -> Step:
    case.broker.start()
    client = case.client()
    consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared, receiver_queue_size=1)
    producer = client.create_producer("t")

    def late() -> None:
        producer.send(b"x", deliver_at=now_ms() + 500)
        producer.send(b"x", deliver_at=now_ms() + 500)
        consumer.acknowledge(consumer.receive(1000))

    with repeated(late, 2):
        threading.Event().wait(60)
        case.restart()
        yield "true"
    client.close()
    yield "false"


def no_consumers(case: Case) -> Step:
    case.broker.start()
    client = case.client()
    client.subscribe("t", "s").close()
    client.create_producer("t").send(b"x")
    client.close()
    for _ in range(2):
        threading.Event().wait(600)
        case.restart()
    yield "true"
    case.restart()
    scraped_twice()
    yield "true"
    client = case.client()
    client.subscribe("t", "s")
    yield "false"
    client.close()


def memory(case: Case) -> Step:
    enough = case.broker
    case.broker = case.at({"memoryMb": "160"})
    case.broker.start()
    clients, resident = [], "geminga_memory_resident_bytes"
    while log_damage.metric(case.broker, resident) < 1.3 * (160 << 20):
        clients.append(case.client())  # a connection has at most 10,000 producers
        for number in range(2000):
            clients[-1].create_producer(f"many-{len(clients)}-{number}")
    yield "true"
    for client in clients:
        client.close()
    case.broker.kill()
    case.broker = enough
    case.broker.start()
    yield "false"


def loop_blocked(case: Case) -> Step:
    case.broker.start()
    with repeated(lambda: case.fault(place="process", kind="pause", latencyMs=700), 10):
        yield "true"
    case.restart()
    yield "false"


COURSES: Final = {
    "GemingaDown": down,
    "GemingaReadOnly": read_only,
    "GemingaEntriesLost": entries_lost,
    "GemingaDamagedEntries": damaged_entries,
    "GemingaBucketsLost": buckets_lost,
    "GemingaDelayedLate": delayed_late,
    "GemingaNoConsumers": no_consumers,
    "GemingaMemory": memory,
    "GemingaLoopBlocked": loop_blocked,
}
SETTINGS: Final = {
    "GemingaEntriesLost": LOG_SETTINGS,
    "GemingaDamagedEntries": log_damage.SETTINGS | {"gemingaScrubRateByBytes": "1000000000"},
    "GemingaBucketsLost": BUCKETS,
    "GemingaMemory": {"memoryMb": "1024"},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--only", nargs="*", choices=COURSES, default=list(COURSES), metavar="ALERT")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        cases = []
        for alert in options.only:
            (directory := Path(name) / alert).mkdir()
            cases.append(Case(alert, COURSES[alert], directory, SETTINGS.get(alert, {})))
        watched = Watched([case.address for case in cases], options.prometheus, Path(name), stack)
        failed = 0
        with ThreadPoolExecutor(len(cases)) as threads:
            for case, is_well in zip(cases, threads.map(lambda one: one.run(watched), cases), strict=True):
                others = f"; NOT MEANT: {', '.join(sorted(case.others))}" if case.others else ""
                print(f"{case.alert:22} {'; '.join(case.log)}{others}", flush=True)
                failed += not is_well
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
