"""Looks at the broker a few times a second: what waits, and in how many buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import trio

from geminga.cli.admin.admin_http import RequestFailed, topic_path
from geminga.cli.chaos.checking.history import History, Left, Sample
from geminga.cli.chaos.running.doing import FaultHits
from geminga.cli.chaos.running.producing import wall_ms
from geminga.cli.chaos.running.target import Target, ask

PAUSE_SECONDS: Final = 0.2
SAMPLES_MAX: Final = 5000
BACKLOG, DELAYED, BUCKETS = (
    "pulsar_subscription_back_log",
    "pulsar_subscription_delayed",
    "pulsar_delayed_message_index_bucket_total",
)


class Part(NamedTuple):
    """A topic or partition."""

    topic: int
    partition: int
    """-1: the topic has none."""
    name: str


async def sample(target: Target, history: History) -> None:
    """Once. A broker that does not answer leaves a gap."""
    try:
        page = await ask(target, "GET", "/metrics/")
    except (RequestFailed, OSError):
        return
    if isinstance(page, str) and len(history.samples) < SAMPLES_MAX:
        totals = summed(page)
        history.samples.append(
            Sample(at_ms=wall_ms(), backlog=totals[BACKLOG], delayed=totals[DELAYED], buckets=totals[BUCKETS])
        )


async def sample_forever(target: Target, history: History, faults: FaultHits) -> None:
    """Until cancelled."""
    while True:
        await sample(target, history)
        await faults.look()
        await trio.sleep(PAUSE_SECONDS)


async def left_behind(target: Target, history: History, parts: Sequence[Part]) -> list[Left]:
    """What the broker says of each subscription of each topic or partition. Raises `RequestFailed`."""
    found = []
    for topic, partition, name in parts:
        answer = await ask(target, "GET", f"{topic_path(name)}/stats")
        shown = answer.get("subscriptions") if isinstance(answer, Mapping) else None
        for place, (subscription, _) in enumerate(history.subscriptions):
            if subscription.topic == topic:
                counts: Any = shown.get(subscription.name) if isinstance(shown, Mapping) else None
                try:
                    found.append(
                        Left(
                            subscription=place,
                            partition=partition,
                            backlog=int(counts["msgBacklog"]),
                            pending=int(counts["unackedMessages"]),
                            delayed=int(counts["msgDelayed"]),
                        )
                    )
                except (KeyError, TypeError, ValueError):
                    # Not 0: a broker that leaves a count out has not said that nothing is left.
                    raise RequestFailed(f"{name} tells none of {subscription.name}") from None
    return found


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
