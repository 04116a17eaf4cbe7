"""`geminga ns-isolation-policy`: which brokers may serve which namespaces. Stored, without effect here."""

from __future__ import annotations

from functools import partial
from typing import Any

from geminga.cli.verbs.rows.running import run_group
from geminga.cli.verbs.rows.values import many, mapping, names, pairs
from geminga.cli.verbs.rows.verb import Flags, Verb, flag

POLICIES = "clusters/{cluster}/namespaceIsolationPolicies"
POLICY = f"{POLICIES}/{{policy}}"


def _body(flags: Flags) -> dict[str, Any]:
    return {
        "namespaces": flags.namespaces,
        "primary": flags.primary,
        "secondary": flags.secondary or [],
        "auto_failover_policy": {
            "policy_type": flags.auto_failover_policy_type,
            "parameters": mapping(flags.auto_failover_policy_params),
        },
    }


VERBS = {
    "set": Verb(
        "create or change a policy",
        "POST",
        POLICY,
        (
            flag("--namespaces", required=True, **many(names), help="patterns of namespaces: a,b,c"),
            flag("--primary", required=True, **many(names), help="patterns of brokers: a,b,c"),
            flag("--secondary", **many(names), help="those that take over: a,b,c"),
            flag("--auto-failover-policy-type", required=True, help="min_available"),
            flag(
                "--auto-failover-policy-params",
                required=True,
                **many(pairs),
                help="min_limit=1,usage_threshold=80",
            ),
        ),
        body=_body,
    ),
    "get": Verb("show a policy", "GET", POLICY),
    "list": Verb("show all policies of a cluster", "GET", POLICIES),
    "delete": Verb("delete a policy", "DELETE", POLICY),
    "brokers": Verb("show all brokers with their policies", "GET", f"{POLICIES}/brokers"),
    "broker": Verb(
        "show a broker with its policies",
        "GET",
        f"{POLICIES}/brokers/{{broker}}",
        (flag("--broker", required=True, help="host:port of the broker"),),
    ),
}
run = partial(run_group, "ns-isolation-policy", VERBS)
