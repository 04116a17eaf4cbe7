"""Policies of topics under the names that `topics` has for them; `topicPolicies` has the newer ones."""

from __future__ import annotations

from geminga.cli.verbs.rows.policies import policy_verbs, quota_verbs
from geminga.cli.verbs.rows.policy_flags import TOPIC_VERBS, VALIDATION
from geminga.cli.verbs.rows.verb import Verb, switch

APPLIED = switch("--applied", "-ap", default=None, help="the effective value")
OF_GET = ((APPLIED,), {"applied": "applied"})
ONLY_IN_TOPIC_POLICIES = (
    "dispatcher-pause",
    "auto-subscription",
    "entry-filters",
    "ttl-from",
    "backlog-quota-from",
)
OLDER = {
    "max-subscriptions-per-topic": ("max-subscriptions",),
    "max-producers": ("maxProducers",),
    "max-unacked-messages-per-consumer": ("max-unacked-messages-on-consumer",),
    "max-unacked-messages-per-subscription": ("max-unacked-messages-on-subscription",),
}


def older_policies() -> dict[str, Verb]:
    """All verbs of policies below `geminga topics`."""
    policies = [policy for policy in TOPIC_VERBS if not policy.name.startswith(ONLY_IN_TOPIC_POLICIES)]
    for policy in list(policies):
        policies += [policy._replace(name=name) for name in OLDER.get(policy.name, ())]
    verbs = policy_verbs((*policies, VALIDATION), "{topic}", *OF_GET)
    path = verbs["get-deduplication"].path
    verbs["enable-deduplication"] = Verb("enable it", "POST", path, body=lambda _: True)
    verbs["disable-deduplication"] = Verb("disable it", "POST", path, body=lambda _: False)
    verbs["get-deduplication-enabled"] = verbs["get-deduplication"]
    return verbs | quota_verbs("{topic}", "get-backlog-quotas", *OF_GET)
