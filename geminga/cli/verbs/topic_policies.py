"""`geminga topicPolicies`: policies of single topics."""

from __future__ import annotations

from functools import partial
from typing import Any

from geminga.cli.admin.admin_http import Admin
from geminga.cli.verbs.rows.policies import policy_verbs, quota_verbs
from geminga.cli.verbs.rows.policy_flags import TOPIC_VERBS
from geminga.cli.verbs.rows.running import ask, run_group
from geminga.cli.verbs.rows.verb import Flags, Verb, flag, switch

APPLIED = switch(
    "--applied",
    "-ap",
    "-a",
    default=None,
    help="the effective value: the topic's, its namespace's or the broker's",
)
GLOBAL = switch("--global", "-g", dest="is_global", default=None, help="that of all clusters")
KINDS = ((APPLIED,), {"applied": "applied"}, (GLOBAL,), {"isGlobal": "is_global"})
SUBSCRIPTION = flag("--subscription", "-s", help="of this subscription only")


def _of_one(verb: Verb) -> Verb:
    """The verb of the rate of all subscriptions; with `--subscription` that of one."""
    of_all = verb._replace(flags=(*verb.flags, SUBSCRIPTION))
    of_one = of_all._replace(path="{topic}/{subscription}/dispatchRate")

    def run(admin: Admin, flags: Flags) -> Any:
        return ask(admin, of_all if flags.subscription is None else of_one, flags)

    return of_all._replace(run=run, show=None)


def _all() -> dict[str, Verb]:
    verbs = policy_verbs(TOPIC_VERBS, "{topic}", *KINDS)
    for act in ("get", "set", "remove"):
        verbs[f"{act}-subscription-dispatch-rate"] = _of_one(verbs[f"{act}-subscription-dispatch-rate"])
    return {
        **verbs,
        **quota_verbs("{topic}", "get-backlog-quota", *KINDS),
        "delete": Verb("unset all policies", "DELETE", "{topic}/policies"),
    }


VERBS = _all()
run = partial(run_group, "topicPolicies", VERBS)
