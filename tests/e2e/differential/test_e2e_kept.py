"""What has no effect here is kept: set as the real broker takes it, shown, and shown after a restart."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from geminga.broker.policies.inert import INERT
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.differential.cases import BODIES, NAMES, routes

pytestmark = pytest.mark.geminga_only

NAMESPACE = "/admin/v2/namespaces/public/kept"
NOT_KEPT = {"entryFilters": "no filter is installed, so none is accepted"}
NOT_POLICIES = (
    "allowedClusters",
    "permissions/role",
    "permissions/subscription/sub",
    "persistence/bookieAffinity",
    "properties",
    "replication",
)
DOCUMENTS = {
    "/admin/v2/clusters/other": BODIES["ClusterDataImpl"],
    "/admin/v2/clusters/other/failureDomains/d": BODIES["FailureDomainImpl"],
    "/admin/v2/clusters/other/namespaceIsolationPolicies/i": BODIES["NamespaceIsolationDataImpl"],
    "/admin/v2/clusters/other/peers": '["standalone"]',
    "/admin/v2/resourcegroups/group": BODIES["ResourceGroup"],
    "/admin/v2/resource-quotas/public/kept/0x00000000_0x40000000": BODIES["ResourceQuota"],
    "/admin/v2/bookies/racks-info/127.0.0.1:3181?group=default": BODIES["BookieInfo"],
}
CREATED = ("/admin/v2/clusters/other", "/admin/v2/resourcegroups/group")


def bodies() -> dict[str, tuple[str, str | None]]:
    """By path below the namespace: the method that sets it, and the body."""
    wanted = {policy.namespace.path for policy in INERT if policy.namespace} - NOT_KEPT.keys()
    found = {}
    for route in routes():
        if route.resource == "Namespaces" and route.method in ("PUT", "POST"):
            path = re.sub(
                r"\{(\w+)\}", lambda name: NAMES.get(name[1], name[0]), route.path.partition("{namespace}")[2]
            )
            if path[1:] in wanted or path[1:] in NOT_POLICIES:
                found[path[1:]] = route.method, BODIES.get(route.body)
    assert found.keys() == wanted | {*NOT_POLICIES}
    return found


def shown(admin: Admin) -> dict[str, Any]:
    """All that was set, as it is shown: each by itself, and the policies together."""
    paths = [f"{NAMESPACE}/{path}" for path in bodies()] + list(DOCUMENTS)
    answers = {
        path: admin.get(path.removesuffix("/role").removesuffix("/sub")) for path in [*paths, NAMESPACE]
    }
    return {path: (answer.status, answer.text) for path, answer in answers.items()}


def test_what_has_no_effect_is_set_shown_and_shown_after_a_restart(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data")
    with process:
        admin = Admin(process.endpoints.web_url)
        assert admin.put(NAMESPACE).status == 204
        before = shown(admin)
        for path, (method, body) in bodies().items():
            answer = admin.request(method, f"{NAMESPACE}/{path}", raw=body and body.encode())
            assert answer.status in (200, 204), (path, answer)
            if path not in ("replication", "properties"):
                assert "has no effect" in answer.headers["warning"], path
        for path, body in DOCUMENTS.items():
            answer = admin.request("PUT" if path in CREATED else "POST", path, raw=body.encode())
            assert answer.status in (200, 204), (path, answer)
            assert "has no effect" in answer.headers["warning"], path
        after = shown(admin)
        readable = {
            policy.namespace.path for policy in INERT if policy.namespace and policy.namespace.readable
        }
        unchanged = {path for path in after if after[path] == before[path]} - {f"{NAMESPACE}/replication"}
        assert unchanged == {f"{NAMESPACE}/migration"}, "it is shown among the policies only"
        assert "migration" not in readable
        assert json.loads(after[NAMESPACE][1])["migrated"] is True
    with process:
        assert shown(Admin(process.endpoints.web_url)) == after
