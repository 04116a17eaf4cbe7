"""Looks at the broker a few times a second: what waits, and in how many buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import trio

from geminga.cli.admin.admin_http import RequestFailed
from geminga.cli.chaos.checking.history import History, Sample
from geminga.cli.chaos.running.producing import wall_ms
from geminga.cli.chaos.running.target import Target, ask

PAUSE_SECONDS: Final = 0.2
SAMPLES_MAX: Final = 5000
BACKLOG, DELAYED, BUCKETS = (
    "pulsar_subscription_back_log",
    "pulsar_subscription_delayed",
    "pulsar_delayed_message_index_bucket_total",
)


async def sample_forever(target: Target, history: History) -> None:
    """Until cancelled. A broker that does not answer leaves a gap."""
    while len(history.samples) < SAMPLES_MAX:
        try:
            page = await ask(target, "GET", "/metrics/")
        except (RequestFailed, OSError):
            await trio.sleep(PAUSE_SECONDS)
            continue
        if isinstance(page, str):
            totals = summed(page)
            history.samples.append(Sample(wall_ms(), totals[BACKLOG], totals[DELAYED], totals[BUCKETS]))
        await trio.sleep(PAUSE_SECONDS)


def summed(page: str) -> Mapping[str, int]:
    """Three names of a page of metrics, each summed over its series."""
    totals = {BACKLOG: 0.0, DELAYED: 0.0, BUCKETS: 0.0}
    topic_buckets = 0.0
    for line in page.splitlines():
        name, brace, rest = line.partition("{")
        if not brace or name not in totals:
            continue
        labels, _, value = rest.rpartition("}")
        # The topic's number of buckets has those of its subscriptions in it.
        if name == BUCKETS and "subscription=" in labels:
            continue
        try:
            number = float(value.split()[0])
        except (ValueError, IndexError):
            continue
        if name == BUCKETS:
            topic_buckets += number
        totals[name] += number
    return {name: int(total) for name, total in totals.items()}
