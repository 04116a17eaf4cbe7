"""Run every query of our boards in a real Prometheus that has scraped a workload.

    python -m tests.docker.boards [--prometheus PROGRAM] [--scrape-interval SECONDS]

Prints the queries that return nothing; exit code 1 if there are any. Takes 80 s with the usual interval of
2 s, or two and a half intervals. The boards' window for rates is the one that they have at first. The alert
rules have tests of their own: `python -m tests.docker.alerts`.
"""

from __future__ import annotations

import argparse
import json
import re
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
WINDOW = "4m"
"""What Grafana puts for `$__rate_interval` while the boards' field "Scraped every" is left as it is."""


def play(url: str, seconds: float) -> None:
    """Plain and delayed messages, some of them not acknowledged."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for topic in ("orders", "reminders"):
        client.subscribe(topic, "idle", pulsar.ConsumerType.Shared)
    consumer = client.subscribe("reminders", "s", pulsar.ConsumerType.Shared)
    orders, reminders = client.create_producer("orders"), client.create_producer("reminders")
    until_ms = now_ms() + seconds * 1000
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
    plain = re.sub(r'=~?"\$\w+"', '=~".*"', query).replace("$__rate_interval", WINDOW)
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': plain})}"
    with urllib.request.urlopen(url) as answer:
        return len(json.load(answer)["data"]["result"])


def _broker(directory: str) -> BrokerProcess:
    return BrokerProcess(Path(directory) / "data", settings=SETTINGS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--scrape-interval", type=int, default=2, metavar="SECONDS")
    options = parser.parse_args()
    interval_s = options.scrape_interval
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
            f"global: {{scrape_interval: {interval_s}s}}\n"
            "scrape_configs:\n"
            "  - job_name: broker\n"
            "    metrics_path: /metrics/\n"
            f"    static_configs: [{{targets: ['{target}']}}]\n"
        )
        words = [options.prometheus, f"--config.file={config}", f"--storage.tsdb.path={name}/tsdb"]
        words += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        with subprocess.Popen(words) as process:
            try:
                play(endpoints.service_url, max(SECONDS, 2.5 * interval_s))
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
