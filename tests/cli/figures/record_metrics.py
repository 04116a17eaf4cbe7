"""Record the figures of a few topics of a real Pulsar, as its page of metrics has them.

    python -m tests.cli.figures.record_metrics pulsar://localhost:6650 http://localhost:8080

Writes `pulsar_metrics.txt` beside this file: the lines of the families that commands read, of topics with a
known number of messages, delayed and unacknowledged ones, producers and consumers.
"""

from __future__ import annotations

import datetime
import sys
import urllib.request
from pathlib import Path

import pulsar

from geminga.cli.figures.scrape import OF_BROKER, OF_SUBSCRIPTIONS, OF_TOPICS

WRITTEN = Path(__file__).with_name("pulsar_metrics.txt")


def record(service_url: str, web_url: str) -> None:
    partitions = f"{web_url}/admin/v2/persistent/public/default/parted/partitions"
    request = urllib.request.Request(
        partitions, method="PUT", data=b"3", headers={"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).read()
    client = pulsar.Client(service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
    shared = pulsar.ConsumerType.Shared
    consumers = [
        client.subscribe(name, "s", consumer_type=shared) for name in ("parted", 'odd"{name}', "plain")
    ]
    consumers.append(client.subscribe("plain", "t", consumer_type=shared))
    parted, odd, plain = (
        client.create_producer(name, batching_enabled=False) for name in ("parted", 'odd"{name}', "plain")
    )
    for _ in range(6):
        parted.send(b"x")
    for _ in range(2):
        odd.send(b"x", deliver_after=datetime.timedelta(hours=1))
    for _ in range(5):
        plain.send(b"x")
    for _ in range(5):
        consumers[2].acknowledge(consumers[2].receive(10_000))
    for _ in range(5):
        consumers[3].receive(10_000)
    page = urllib.request.urlopen(f"{web_url}/metrics/").read().decode()
    client.close()
    families = {*OF_TOPICS, *OF_SUBSCRIPTIONS, *OF_BROKER}
    kept = [line for line in page.splitlines() if line.partition("{")[0].partition(" ")[0] in families]
    WRITTEN.write_text("\n".join(kept) + "\n")


if __name__ == "__main__":
    record(*sys.argv[1:])
