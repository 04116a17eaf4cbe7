"""Verbs that get, set and remove policies: `geminga namespaces set-retention ...` and the like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from geminga.cli.admin.admin_http import Admin, Flag, RequestFailed, Verb, flag
from geminga.cli.admin.policy_flags import PolicyVerb, seconds, size_bytes

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
        place = _own(path_of) if policy.is_own else path_of
        verbs[f"get-{name}"] = Verb(f"show the {name}", subject, get_flags, _getter(place, policy.path))
        verbs[f"set-{name}"] = Verb(f"set the {name}", subject, policy.flags, _setter(place, policy))
        if policy.removable:
            verbs[f"remove-{name}"] = Verb(f"unset the {name}", subject, (), _remover(place, policy.path))

    def set_quota(admin: Admin, flags: Any) -> None:
        wanted = "--limit" if flags.type == "destination_storage" else "--limitTime"
        if (flags.limit if wanted == "--limit" else flags.limitTime) is None:
            raise RequestFailed(f"a quota of the type {flags.type} takes {wanted}")
        body = {"limitSize": flags.limit or 0, "limitTime": flags.limitTime or 0, "policy": flags.policy}
        admin.call("POST", path_of(flags.subject) + "/backlogQuota", body, backlogQuotaType=flags.type)

    def remove_quota(admin: Admin, flags: Any) -> None:
        admin.call("DELETE", path_of(flags.subject) + "/backlogQuota", backlogQuotaType=flags.type)

    verbs[f"get-{quotas}"] = Verb(
        "show the backlog quotas", subject, get_flags, _getter(path_of, "backlogQuotaMap")
    )
    verbs["set-backlog-quota"] = Verb("set a backlog quota", subject, QUOTA_FLAGS, set_quota)
    verbs["remove-backlog-quota"] = Verb("unset a backlog quota", subject, (QUOTA_TYPE,), remove_quota)
    return verbs


def _own(path_of: Callable[[str], str]) -> Callable[[str], str]:
    """Where the policies are that Pulsar does not have."""

    def own_path_of(subject: str) -> str:
        return "/geminga/policies/" + path_of(subject).removeprefix("/admin/v2/").removeprefix("namespaces/")

    return own_path_of


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
