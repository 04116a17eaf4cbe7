"""What a scrape of many topics costs, and what it does to all else.

    python bench/scrape.py                                       10,000 topics with a subscription each
    python bench/scrape.py --topics 2000 --scrapers 4 --seconds 60      four scrapers every 5 s

Prints, each for a broker of its own process: CPU seconds and bytes of a scrape, plain and with gzip; how
long health requests and publishes take beside scrapes (p50, p99, longest) and without them; CPU seconds and
memory of scrapes that are given up after 0.1 s; and what scrapers at a fixed pace meet. Exits with 1 if a
scraper met its time limit of 4 s. Linux.
"""

from __future__ import annotations

import argparse
import http.client
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.broker_process import resident_bytes
from bench.two_checkouts import cpu_s
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess

EVERY_S, LIMIT_S = 5.0, 4.0
GIVEN_UP = 20
MIB = 1 << 20


class Rig:
    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        url = urlsplit(broker.endpoints.web_url)
        self.address = (url.hostname or "", url.port or 0)

    def fill(self, topics: int) -> None:
        admin = Admin(self.broker.endpoints.web_url)

        def make(number: int) -> None:
            name = f"persistent://public/default/some-service.events-{number}"
            answer = admin.put(f"/admin/v2/{topic_path(name)}/subscription/worker")
            assert answer.status == 204, answer

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(make, range(topics)))

    def scrape(self, *, gzip: bool, limit_s: float = 60) -> int:
        connection = http.client.HTTPConnection(*self.address, timeout=limit_s)
        connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"} if gzip else {})
        size_bytes = len(connection.getresponse().read())
        connection.close()
        return size_bytes

    def give_up(self) -> None:
        with socket.create_connection(self.address) as given_up:
            given_up.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n")
            time.sleep(0.1)

    def cpu_of(self, work: Callable[[], object]) -> float:
        before_s = cpu_s(self.broker.pid)
        work()
        return cpu_s(self.broker.pid) - before_s


def beside(rig: Rig, work: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Milliseconds of health requests and of publishes while `work` runs, one in flight of each."""
    done, health_ms, publish_ms = threading.Event(), list[float](), list[float]()
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(rig.broker.endpoints.service_url, logger=logger)
    producer = client.create_producer("paced", batching_enabled=False)

    def ask() -> None:
        connection = http.client.HTTPConnection(*rig.address)
        while not done.is_set():
            began_s = time.perf_counter()
            connection.request("GET", "/admin/v2/brokers/health")
            connection.getresponse().read()
            health_ms.append((time.perf_counter() - began_s) * 1000)
            time.sleep(0.005)

    def publish() -> None:
        while not done.is_set():
            began_s = time.perf_counter()
            producer.send(b"x" * 100)
            publish_ms.append((time.perf_counter() - began_s) * 1000)
            time.sleep(0.005)

    threads = [threading.Thread(target=ask), threading.Thread(target=publish)]
    for thread in threads:
        thread.start()
    work()
    done.set()
    for thread in threads:
        thread.join()
    client.close()
    return health_ms, publish_ms


def told(name: str, took_ms: list[float]) -> str:
    cuts = statistics.quantiles(took_ms, n=100)
    return f"{name} p50 {cuts[49]:.1f}, p99 {cuts[98]:.1f}, longest {max(took_ms):.1f} ms ({len(took_ms)})"


def pace(rig: Rig, scrapers: int, seconds: float) -> int:
    """How many scrapes were not answered in time."""
    end_s, late = time.monotonic() + seconds, [0] * scrapers

    def run(number: int) -> None:
        while (began_s := time.monotonic()) < end_s:
            try:
                rig.scrape(gzip=True, limit_s=LIMIT_S)
            except OSError:
                late[number] += 1
            late[number] += time.monotonic() - began_s > LIMIT_S
            time.sleep(max(0.0, EVERY_S - (time.monotonic() - began_s)))

    with ThreadPoolExecutor(scrapers) as pool:
        list(pool.map(run, range(scrapers)))
    return sum(late)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scrapers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, BrokerProcess(Path(name) / "data") as broker:
        rig = Rig(broker)
        rig.fill(flags.topics)
        rig.scrape(gzip=True)
        for gzip in (False, True):
            sizes: list[int] = []
            used = [rig.cpu_of(lambda: sizes.append(rig.scrape(gzip=gzip))) for _ in range(flags.rounds)]  # noqa: B023
            kind = "gzip " if gzip else "plain"
            print(f"{kind} {sizes[-1] / MIB:.2f} MiB, CPU s {[round(each, 2) for each in used]}", flush=True)
        quiet = beside(rig, lambda: time.sleep(2))
        busy = beside(rig, lambda: [rig.scrape(gzip=True) for _ in range(flags.rounds)])
        for kind, (health_ms, publish_ms) in (("quiet", quiet), ("beside scrapes", busy)):
            print(f"{kind}: {told('health', health_ms)}; {told('publish', publish_ms)}", flush=True)
        before_bytes = resident_bytes(broker.pid)

        def give_up_and_wait() -> None:
            for _ in range(GIVEN_UP):
                rig.give_up()
            time.sleep(1)

        used_s = rig.cpu_of(give_up_and_wait)
        after_bytes = resident_bytes(broker.pid)
        held = f"resident {before_bytes / MIB:.0f} -> {after_bytes / MIB:.0f} MiB"
        print(f"{GIVEN_UP} given up: {used_s:.2f} CPU s, {held}", flush=True)
        if flags.scrapers:
            late = pace(rig, flags.scrapers, flags.seconds)
            held = f"resident {resident_bytes(broker.pid) / MIB:.0f} MiB"
            print(f"{flags.scrapers} scrapers every {EVERY_S:.0f} s: {late} late, {held}")
            return int(late > 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
