"""`geminga topicPolicies`: policies of single topics, with pulsar-admin's verbs and flags."""

from __future__ import annotations

from collections.abc import Sequence

from geminga.cli.admin.admin_http import Verb, flag, run_group, topic_path
from geminga.cli.admin.policy_flags import TOPIC_VERBS
from geminga.cli.admin.policy_verbs import policy_verbs
from geminga.cli.arguments.parser import Parser

APPLIED = flag(
    "--applied",
    "-ap",
    action="store_true",
    help="the effective value: the topic's, its namespace's or the broker's",
)
VERBS = {
    **policy_verbs(TOPIC_VERBS, "TOPIC", topic_path, (APPLIED,), "backlog-quota"),
    "delete": Verb(
        "unset all policies",
        "TOPIC",
        (),
        lambda admin, flags: admin.call("DELETE", topic_path(flags.subject) + "/policies"),
    ),
}


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    return run_group(kind, "topicPolicies", VERBS, arguments)
