"""`geminga namespaces`: namespaces and their policies, with pulsar-admin's verbs and flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from geminga.cli.admin.admin_http import Admin, Verb, namespace_path, run_group
from geminga.cli.admin.policy_flags import NAMESPACE_VERBS
from geminga.cli.admin.policy_verbs import policy_verbs
from geminga.cli.arguments.parser import Parser

NAMESPACE = "TENANT/NAMESPACE"


def _list(admin: Admin, flags: Any) -> Any:
    return admin.call("GET", f"/admin/v2/namespaces/{quote(flags.subject, safe='')}")


VERBS = {
    "list": Verb("list a tenant's namespaces", "TENANT", (), _list),
    "create": Verb(
        "create a namespace",
        NAMESPACE,
        (),
        lambda admin, flags: admin.call("PUT", namespace_path(flags.subject)),
    ),
    "delete": Verb(
        "delete a namespace without topics",
        NAMESPACE,
        (),
        lambda admin, flags: admin.call("DELETE", namespace_path(flags.subject)),
    ),
    "policies": Verb(
        "show all policies",
        NAMESPACE,
        (),
        lambda admin, flags: admin.call("GET", namespace_path(flags.subject)),
    ),
    "topics": Verb(
        "list a namespace's topics",
        NAMESPACE,
        (),
        lambda admin, flags: admin.call("GET", namespace_path(flags.subject) + "/topics"),
    ),
    **policy_verbs(NAMESPACE_VERBS, NAMESPACE, namespace_path, (), "backlog-quotas"),
}


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    return run_group(kind, "namespaces", VERBS, arguments)
