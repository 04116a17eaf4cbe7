"""A year of delayed messages under a virtual clock, advanced a day at a time: how long the jumps take, and
whether every message comes in its day.

    .venv/bin/python -m bench.delayed.year [--messages 1000000] [--days 365]

Prints one line of JSON, in which the CPU seconds are the broker's. The day that a message is due in is told
by its body; the day in which it came, by the jump that was under way or had just ended.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pulsar

from bench.broker_process import cpu_seconds
from tests.e2e.broker_process import BrokerProcess

TOPIC = "persistent://public/default/year"
DAY_MS = 86_400_000


class Counts:
    """What came, by day. Filled by the client's own thread."""

    def __init__(self, days: int) -> None:
        self.day = -1
        self.wrong: list[tuple[int, int]] = []
        self.by_day = [0] * days
        self.total = 0
        self.changed = threading.Condition()

    def came(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        due_day = int(message.data())
        consumer.acknowledge(message)
        with self.changed:
            if due_day != self.day:
                self.wrong.append((due_day, self.day))
            self.by_day[due_day] += 1
            self.total += 1
            self.changed.notify_all()

    def wait_for(self, total: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.total >= total, 60)


def advance(web_url: str, ms: int) -> Any:
    body = json.dumps({"ms": ms}).encode()
    request = urllib.request.Request(f"{web_url}/geminga/clock", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.loads(response.read())


def publish(client: pulsar.Client, messages: int, days: int) -> None:
    producer = client.create_producer(TOPIC, block_if_queue_full=True, max_pending_messages=5000)
    # Spread over the days by a step that is coprime to their number, so that each due time is far from those
    # of its neighbours; within its day a message is due between 0:05 and 23:55.
    per_day = messages // days
    for number in range(per_day * days):
        day = number * 101 % days
        offset_ms = 300_000 + (DAY_MS - 600_000) * (number // days) // per_day
        now_ms = int(time.time() * 1000)
        producer.send_async(
            b"%d" % day, lambda *_: None, deliver_at=now_ms + day * DAY_MS + offset_ms + 60_000
        )
    producer.flush()
    producer.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--advance", type=int, help="only so many of the days")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        settings = {"gemingaClock": "virtual", "isDelayedDeliveryDeliverAtTimeStrict": "true"}
        with BrokerProcess(Path(directory) / "data", settings=settings) as broker:
            client = pulsar.Client(
                broker.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            )
            began_s = time.monotonic()
            publish(client, flags.messages, flags.days)
            published_s = time.monotonic() - began_s
            published_cpu_s = cpu_seconds(broker.pid)
            counts = Counts(flags.days)
            client.subscribe(
                TOPIC,
                "s",
                pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=5000,
                message_listener=counts.came,
            )
            time.sleep(1)
            began_s = time.monotonic()
            stops = inexact = 0
            web_url, per_day = broker.endpoints.web_url, flags.messages // flags.days
            missed = []
            each_s: list[float] = []
            for day in range(flags.advance or flags.days):
                counts.day = day
                jump_s = time.monotonic()
                jump = advance(web_url, DAY_MS)
                each_s.append(round(time.monotonic() - jump_s, 3))
                stops += jump["stops"]
                inexact += not jump["is_exact"]
                if not counts.wait_for(per_day * (day + 1)):
                    missed.append(day)
                    break
            jumps_s = time.monotonic() - began_s
            jumps_cpu_s = cpu_seconds(broker.pid) - published_cpu_s
            client.close()
    print(
        json.dumps(
            {
                "messages": counts.total,
                "days": flags.days,
                "published_s": round(published_s, 1),
                "published_cpu_s": round(published_cpu_s, 1),
                "jumps_s": round(jumps_s, 1),
                "jumps_cpu_s": round(jumps_cpu_s, 1),
                "slowest_s": max(each_s),
                "median_s": sorted(each_s)[len(each_s) // 2],
                "stops": stops,
                "inexact_jumps": inexact,
                "wrong_day": len(counts.wrong),
                "wrong": counts.wrong[:5],
                "missed_days": missed,
            }
        )
    )


if __name__ == "__main__":
    main()
