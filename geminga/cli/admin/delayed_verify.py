"""`geminga delayed verify`: whether all buckets of the delayed index are whole, and what becomes of those
that are not.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from typing import Any

from geminga.cli.admin.admin_http import Admin
from geminga.cli.arguments.options import add_web_url
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK
from geminga.client.admin import delayed_path
from geminga.names import TopicName

SECONDS_MAX = 120
"""Without a byte of the answer, which has a line for each bucket."""
TEXT = "read all buckets of a topic, or of all topics, and have those rebuilt that are lost or damaged"
THEN = {
    "being-read-again": "its messages are read again from the topic",
    "read-again-when-loaded": "its messages are read again from the topic when that is next used",
    "tried-again": "it cannot be read now, and stays: look at the disk, and verify again",
}


def add_to(actions: Any) -> None:
    made = actions.add_parser("verify", help=TEXT, description=f"{TEXT}. Exit code 1 if there is one.")
    made.add_argument("topic", nargs="?", help="a topic with all its partitions (default: every topic)")
    made.add_argument("-s", "--subscription", help="only the index of this subscription")
    add_web_url(made)
    made.add_argument("--json", action="store_true", help="as the broker answers")


def verify(flags: argparse.Namespace) -> int:
    """`RequestFailed`, `InvalidName`; ValueError for a subscription without a topic."""
    if flags.subscription is not None and flags.topic is None:
        raise ValueError("-s needs a topic")
    answer = Admin(flags.url, seconds_max=SECONDS_MAX).call("POST", _path(flags.topic, flags.subscription))
    if flags.json:
        print(json.dumps(answer))
    else:
        for bucket in answer:
            print(_line(bucket))
        print(_summary(answer, flags.subscription))
    return EXIT_OK if all(bucket["state"] == "ok" for bucket in answer) else EXIT_FAILED


def _path(topic: str | None, subscription: str | None) -> str:
    if topic is None:
        return "/geminga/delayed/verify"
    return f"{delayed_path(TopicName.parse(topic), subscription)}/verify"


def _line(bucket: dict[str, Any]) -> str:
    owner = bucket["topic"] + ("" if bucket["subscription"] is None else f" -s {bucket['subscription']}")
    place = f"{owner}: bucket {bucket['name']} in ledger {bucket['ledgerId']}"
    if bucket["state"] == "ok":
        return f"ok          {place}: {bucket['messages']} messages, {bucket['segments']} segments"
    wrong = "; ".join(
        part["text"] if part["segment"] is None else f"segment {part['segment']}: {part['text']}"
        for part in bucket["wrong"]
    )
    return f"{bucket['state']:11} {place}: {wrong}; {THEN[bucket['then']]}"


def _summary(buckets: list[dict[str, Any]], subscription: str | None) -> str:
    if not buckets:
        return "there are no buckets on disk"
    counts = Counter(bucket["state"] for bucket in buckets)
    text = ", ".join(
        f"{counts[state]} {state}" for state in ("ok", "lost", "damaged", "unreadable") if counts[state]
    )
    again = {bucket["topic"] for bucket in buckets if bucket["then"] == "being-read-again"}
    if not again:
        return f"{text}; messages of buckets that were lost before are counted by 'geminga delayed summary'"
    name = "SUBSCRIPTION" if subscription is None else shlex.quote(subscription)
    lines = [f"geminga delayed buckets {topic} -s {name}" for topic in sorted(again)]
    return f"{text}; to see them rebuilt:\n  " + "\n  ".join(lines)
