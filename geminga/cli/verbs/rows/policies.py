"""Verbs that get, set and remove policies: `geminga namespaces set-retention ...` and the like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from geminga.cli.admin.admin_http import RequestFailed
from geminga.cli.verbs.rows.policy_flags import PolicyVerb
from geminga.cli.verbs.rows.values import seconds, size_bytes
from geminga.cli.verbs.rows.verb import Flag, Flags, Verb, flag

OWN = "/geminga/policies/"
"""Where the policies are that Pulsar does not have."""
QUOTA_TYPE = flag(
    "--type",
    "-t",
    choices=["destination_storage", "message_age"],
    default="destination_storage",
    help="by size or by age (default: destination_storage)",
)
QUOTA_FLAGS = (
    flag("--limit", "-l", type=size_bytes, default=None, help="bytes, or 10M, 16G; below 0: no limit"),
    flag("--limitTime", "-lt", type=seconds, default=None, help="seconds, or 10m, 3h; below 0: no limit"),
    flag(
        "--policy",
        "-p",
        required=True,
        choices=["producer_request_hold", "producer_exception", "consumer_backlog_eviction"],
        help="what happens at the limit",
    ),
    QUOTA_TYPE,
)


def policy_verbs(
    policies: Iterable[PolicyVerb],
    base: str,
    get_flags: Sequence[Flag] = (),
    get_query: Mapping[str, str] | None = None,
    any_flags: Sequence[Flag] = (),
    any_query: Mapping[str, str] | None = None,
) -> dict[str, Verb]:
    """`get-`, `set-` and `remove-` for each policy of `base`. `get_flags` belong to the first, `any_flags`
    to all three, each with the parameters that they go into.
    """
    verbs: dict[str, Verb] = {}
    query = dict(any_query or {})
    for policy in policies:
        name = policy.name
        place = OWN + base.removeprefix("namespaces/") if policy.is_own else base
        path = f"{place}/{policy.path}"
        verbs[f"get-{name}"] = Verb(
            f"show the {name}",
            "GET",
            path,
            (*get_flags, *any_flags),
            query | dict(get_query or {}),
            show=plain,
        )
        verbs[f"set-{name}"] = _setter(policy, path, any_flags, query)
        if policy.removable:
            verb, own_path = policy.remove
            verbs[f"{verb}-{name}"] = Verb(
                f"unset the {name}", "DELETE", f"{place}/{own_path or policy.path}", any_flags, query
            )
    return verbs


def _setter(policy: PolicyVerb, path: str, any_flags: Sequence[Flag], query: Mapping[str, str]) -> Verb:
    body: Any = policy.body
    if policy.in_query:
        query, body = {**query, policy.in_query: "value"}, None
    return Verb(
        f"set the {policy.name}", policy.method, path, (*policy.flags, *any_flags), query=query, body=body
    )


def plain(answer: Any, _: Flags) -> Any:
    """`null` as pulsar-admin prints it, which is what an empty answer means; values without quotes."""
    return "null" if answer is None or answer == "" else answer


def quota_verbs(
    base: str,
    shown_by: str,
    get_flags: Sequence[Flag] = (),
    get_query: Mapping[str, str] | None = None,
    any_flags: Sequence[Flag] = (),
    any_query: Mapping[str, str] | None = None,
) -> dict[str, Verb]:
    """The verbs of backlog quotas, which are two policies in one. `shown_by` reads them."""
    query = dict(any_query or {})
    typed = {**query, "backlogQuotaType": "type"}
    return {
        shown_by: Verb(
            "show the backlog quotas",
            "GET",
            f"{base}/backlogQuotaMap",
            (*get_flags, *any_flags),
            query | dict(get_query or {}),
        ),
        "set-backlog-quota": Verb(
            "set a backlog quota", "POST", f"{base}/backlogQuota", (*QUOTA_FLAGS, *any_flags), typed, _quota
        ),
        "remove-backlog-quota": Verb(
            "unset a backlog quota", "DELETE", f"{base}/backlogQuota", (QUOTA_TYPE, *any_flags), typed
        ),
    }


def _quota(flags: Flags) -> dict[str, Any]:
    wanted = "--limit" if flags.type == "destination_storage" else "--limitTime"
    if (flags.limit if wanted == "--limit" else flags.limitTime) is None:
        raise RequestFailed(f"a quota of the type {flags.type} takes {wanted}")
    return {"limitSize": flags.limit or 0, "limitTime": flags.limitTime or 0, "policy": flags.policy}
