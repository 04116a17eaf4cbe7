"""Run every query of our boards in a real Prometheus that has scraped a workload.

    python -m tests.docker.boards [--prometheus PROGRAM]

Prints the queries that return nothing; exit code 1 if there are any. Takes about 80 s. The alert rules have
tests of their own: `promtool test rules docker/prometheus/rules_test.yml`.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

import pulsar

from tests.docker.test_dashboards import BOARDS, queries_of
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.waiting import now_ms

SETTINGS = {
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
    "delayedDeliveryMinIndexCountPerBucket": "100",
    "statsUpdateFrequencyInSecs": "1",
}
SECONDS = 70


def play(url: str) -> None:
    """Plain and delayed messages for `SECONDS`, some of them not acknowledged."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for topic in ("orders", "reminders"):
        client.subscribe(topic, "idle", pulsar.ConsumerType.Shared)
    consumer = client.subscribe("reminders", "s", pulsar.ConsumerType.Shared)
    orders, reminders = client.create_producer("orders"), client.create_producer("reminders")
    until_ms = now_ms() + SECONDS * 1000
    while now_ms() < until_ms:
        for number in range(50):
            orders.send_async(b"x" * 500, lambda *_: None)
            reminders.send_async(b"x", lambda *_: None, deliver_at=now_ms() + 300 + 200 * number)
        try:
            while True:
                consumer.acknowledge(consumer.receive(200))
        except pulsar.Timeout:
            pass
    client.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


def ask(prometheus: str, query: str) -> int:
    """How many series it returns."""
    plain = query.replace('"$topic"', '".*"').replace("$__rate_interval", "30s")
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': plain})}"
    with urllib.request.urlopen(url) as answer:
        return len(json.load(answer)["data"]["result"])


def _broker(directory: str) -> BrokerProcess:
    return BrokerProcess(Path(directory) / "data", settings=SETTINGS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prometheus", default="prometheus")
    options = parser.parse_args()
    empty = []
    with (
        tempfile.TemporaryDirectory() as name,
        BrokerProcess(Path(name) / "data", settings=SETTINGS) as broker,
    ):
        endpoints = broker.endpoints
        port = free_port()
        target = endpoints.web_url.removeprefix("http://")
        config = Path(name) / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 2s}\n"
            "scrape_configs:\n"
            "  - job_name: broker\n"
            "    metrics_path: /metrics/\n"
            f"    static_configs: [{{targets: ['{target}']}}]\n"
        )
        words = [options.prometheus, f"--config.file={config}", f"--storage.tsdb.path={name}/tsdb"]
        words += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        with subprocess.Popen(words) as process:
            try:
                play(endpoints.service_url)
                for path in BOARDS:
                    for query in queries_of(json.loads(path.read_text())):
                        count = ask(f"http://127.0.0.1:{port}", query)
                        print(f"{count:5} {path.stem}: {query}")
                        empty += [query] * (count == 0)
            finally:
                process.terminate()
    print(f"{len(empty)} queries without data")
    sys.exit(bool(empty))


if __name__ == "__main__":
    main()
