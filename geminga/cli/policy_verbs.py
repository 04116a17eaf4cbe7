"""Verbs that get, set and remove policies: `geminga namespaces set-retention ...` and the like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from geminga.cli.admin_http import Admin, Flag, Verb, flag
from geminga.cli.policy_flags import PolicyVerb, seconds, size_bytes

QUOTA_TYPE = flag(
    "--type",
    "-t",
    choices=["destination_storage", "message_age"],
    default="destination_storage",
    help="by size or by age (default: destination_storage)",
)
QUOTA_FLAGS = (
    flag("--limit", "-l", type=size_bytes, default=0, help="bytes, or 10M, 16G; below 0: no limit"),
    flag("--limitTime", "-lt", type=seconds, default=0, help="seconds, or 10m, 3h; below 0: no limit"),
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
    policies: Sequence[PolicyVerb],
    subject: str,
    path_of: Callable[[str], str],
    get_flags: Sequence[Flag],
    quotas: str,
) -> dict[str, Verb]:
    """`set-`, `get-` and `remove-` for each policy and for the quotas, read back by `get-{quotas}`."""
    verbs: dict[str, Verb] = {}
    for policy in policies:
        name = policy.name
        verbs[f"get-{name}"] = Verb(f"show the {name}", subject, get_flags, _getter(path_of, policy.path))
        verbs[f"set-{name}"] = Verb(f"set the {name}", subject, policy.flags, _setter(path_of, policy))
        if policy.removable:
            verbs[f"remove-{name}"] = Verb(f"unset the {name}", subject, (), _remover(path_of, policy.path))

    def set_quota(admin: Admin, flags: Any) -> None:
        body = {"limitSize": flags.limit, "limitTime": flags.limitTime, "policy": flags.policy}
        admin.call("POST", path_of(flags.subject) + "/backlogQuota", body, backlogQuotaType=flags.type)

    def remove_quota(admin: Admin, flags: Any) -> None:
        admin.call("DELETE", path_of(flags.subject) + "/backlogQuota", backlogQuotaType=flags.type)

    verbs[f"get-{quotas}"] = Verb(
        "show the backlog quotas", subject, get_flags, _getter(path_of, "backlogQuotaMap")
    )
    verbs["set-backlog-quota"] = Verb("set a backlog quota", subject, QUOTA_FLAGS, set_quota)
    verbs["remove-backlog-quota"] = Verb("unset a backlog quota", subject, (QUOTA_TYPE,), remove_quota)
    return verbs


def _getter(path_of: Callable[[str], str], path: str) -> Callable[[Admin, Any], Any]:
    def get(admin: Admin, flags: Any) -> Any:
        applied = True if getattr(flags, "applied", False) else None
        answer = admin.call("GET", f"{path_of(flags.subject)}/{path}", applied=applied)
        return "null" if answer is None else answer

    return lambda admin, flags: _plain(get(admin, flags))


def _plain(answer: Any) -> Any:
    """`null` as pulsar-admin prints it, without quotes."""
    return ["null"] if answer == "null" else answer


def _setter(path_of: Callable[[str], str], policy: PolicyVerb) -> Callable[[Admin, Any], None]:
    def put(admin: Admin, flags: Any) -> None:
        path, body = f"{path_of(flags.subject)}/{policy.path}", policy.body(flags)
        if policy.in_query:
            admin.call(policy.method, path, None, **{policy.in_query: body})
        else:
            admin.call(policy.method, path, body)

    return put


def _remover(path_of: Callable[[str], str], path: str) -> Callable[[Admin, Any], None]:
    return lambda admin, flags: admin.call("DELETE", f"{path_of(flags.subject)}/{path}")
