"""The picture of README.md: a broker loses a bucket of its delayed index and makes it again.

    python bench/delayed/loss_picture.py --png docs/pictures/bucket-loss.png
    python bench/delayed/loss_picture.py --messages 100000 --lose 0 --png small.png

An official client publishes messages with random delays of 4 to 28 hours to a broker with default settings
and `--chaos`. The bench deletes one bucket and polls the parts of the index until it is back. The picture
shows them before, in the middle and afterwards; all its figures are measured in the run.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.delayed.bucket_watch import SEALED, process_mib
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess

TOPIC = "persistent://public/default/orders"
SUBSCRIPTION = "billing"
PATH = f"/geminga/delayed/{topic_path(TOPIC)}/subscription/{SUBSCRIPTION}"
TICK = 10_000
HOUR_MS = 3_600_000
SETTLED_SECONDS_MAX = 120.0
ON_DISK, IN_MEMORY, MISSING = "#5b7fa6", "#e3b04b", "#c0504d"


class Look(NamedTuple):
    """The parts of the index at one moment."""

    at_s: float
    """Since the bucket was lost."""
    sealed: list[tuple[int, int]]
    """(first entry, messages) of each bucket on disk."""
    growing: list[tuple[int, int]]
    """The same of what is in memory."""
    missing: int
    """Messages that are still to be read again."""
    waiting: int
    disk_bytes: int


def look(admin: Admin, began_s: float) -> Look:
    parts: list[dict[str, Any]] = admin.get(PATH + "/buckets").json()
    ranged = [part for part in parts if ":" in part["range"]]
    first = {id(part): int(part["range"].split("-")[0].split(":")[1]) for part in ranged}
    on_disk = [part for part in ranged if part["state"] in SEALED]
    return Look(
        time.monotonic() - began_s,
        [(first[id(part)], part["messages"]) for part in on_disk],
        [(first[id(part)], part["messages"]) for part in ranged if part["state"] not in SEALED],
        sum(part["notRead"] for part in parts),
        sum(part["messages"] for part in ranged),
        sum(part["bytes"] for part in on_disk),
    )


def publish(url: str, messages: int) -> pulsar.Client:
    """Returns the client, whose consumer has to stay for the index to be kept."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(TOPIC, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, block_if_queue_full=True, max_pending_messages=5000)
    draw = random.Random(1)
    for _ in range(messages):
        due_ms = time.time_ns() // 1_000_000 + draw.randrange(4 * HOUR_MS, 28 * HOUR_MS)
        producer.send_async(b"order", callback=lambda *_: None, deliver_at=due_ms)
    producer.flush()
    return client


def run(messages: int, lose: int) -> tuple[list[Look], float]:
    """Looks before, while and after the loss, and the broker's resident MiB before it."""
    with (
        tempfile.TemporaryDirectory() as directory,
        BrokerProcess(Path(directory) / "data", arguments=["--chaos"]) as broker,
    ):
        admin = Admin(broker.endpoints.web_url)
        client = publish(broker.endpoints.service_url, messages)
        try:
            deadline_s = time.monotonic() + SETTLED_SECONDS_MAX
            while (before := look(admin, 0.0)).waiting < messages or len(before.growing) > 1:
                assert time.monotonic() < deadline_s, before
            parts = admin.get(PATH + "/buckets").json()
            at = sorted(before.sealed)[lose][0]
            ledger = next(part["ledgerId"] for part in parts if f":{at}-" in part["range"])
            resident_mib, _ = process_mib(broker.pid)
            began_s = time.monotonic()
            answer = admin.post(PATH + "/lose-bucket", {"ledgerId": ledger})
            assert answer.status == 200, answer
            looks = [before._replace(at_s=0.0)]
            while len(looks) < 2 or looks[-1].missing or looks[-1].waiting < messages:
                looks.append(look(admin, began_s))
                assert looks[-1].at_s < SETTLED_SECONDS_MAX, looks[-1]
            while len(looks[-1].sealed) < len(before.sealed):
                looks.append(look(admin, began_s))
                assert looks[-1].at_s < SETTLED_SECONDS_MAX, looks[-1]
            return looks, resident_mib
        finally:
            client.close()


def draw(looks: list[Look], resident_mib: float, lose: int, target: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    before, after = looks[0], looks[-1]
    lost_at, lost = sorted(before.sealed)[lose]
    middle = max(looks[1:], key=lambda each: min(each.missing, lost - each.missing))
    total = before.waiting
    figure, axes = plt.subplots(figsize=(9.0, 3.1), dpi=110)
    rows = (
        ("before", before, f"{len(before.sealed)} buckets on disk"),
        (
            f"{middle.at_s:.2f} s after one is deleted",
            middle,
            f"{middle.missing:,} messages to read again",
        ),
        (f"{after.at_s:.2f} s after", after, "rebuilt from the topic"),
    )
    for row, (when, seen, note) in enumerate(rows):
        y = -row * 1.0
        for parts, colour in ((seen.sealed, ON_DISK), (seen.growing, IN_MEMORY)):
            for first, count in parts:
                axes.barh(y, count, left=first, height=0.42, color=colour, edgecolor="white", linewidth=1.2)
        known = sum(count for first, count in seen.growing if lost_at <= first < lost_at + lost)
        if seen.missing:
            axes.barh(
                y, lost - known, left=lost_at + known, height=0.42,
                color="white", edgecolor=MISSING, hatch="////", linewidth=1.2,
            )  # fmt: skip
        axes.text(0, y + 0.29, when, fontsize=10, fontweight="bold", va="bottom")
        axes.text(total, y + 0.29, note, fontsize=10, ha="right", va="bottom")
    axes.set_xlim(-total * 0.005, total * 1.005)
    axes.set_ylim(-2.35, 0.75)
    axes.set_yticks([])
    ticks = range(0, total + 1, max(1, total // 4 // TICK * TICK))
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=9)
    axes.set_xlabel("messages of the topic, in the order of publishing", fontsize=9)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(
        handles=[
            Patch(color=ON_DISK, label="due times in a bucket on disk"),
            Patch(color=IN_MEMORY, label="in memory"),
            Patch(facecolor="white", edgecolor=MISSING, hatch="////", label="lost, being read again"),
        ],
        ncols=3, fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.22),
    )  # fmt: skip
    axes.set_title(
        f"{total:,} delayed messages: their due times take {before.disk_bytes / 1e6:.1f} MB on disk, "
        f"the whole broker {resident_mib:.0f} MiB of memory",
        fontsize=10.5, pad=10,
    )  # fmt: skip
    figure.savefig(target, bbox_inches="tight")


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw how a lost bucket comes back.")
    parser.add_argument("--messages", type=int, default=1_020_000)
    parser.add_argument("--lose", type=int, default=7, help="which bucket, from 0")
    parser.add_argument("--png", required=True)
    flags = parser.parse_args()
    looks, resident_mib = run(flags.messages, flags.lose)
    for each in (looks[0], looks[-1]):
        print(each.at_s, len(each.sealed), each.growing, each.missing, each.waiting, each.disk_bytes)
    print(f"{len(looks)} looks, {resident_mib:.0f} MiB")
    draw(looks, resident_mib, flags.lose, flags.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
