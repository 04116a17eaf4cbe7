"""`geminga tenants`."""

from __future__ import annotations

from functools import partial

from geminga.cli.admin.admin_http import Admin
from geminga.cli.verbs.rows.running import run_group
from geminga.cli.verbs.rows.values import many, names
from geminga.cli.verbs.rows.verb import Flags, Verb, flag, path_of, switch

TENANT = "tenants/{tenant}"
FIELDS = (
    flag("--admin-roles", "-r", **many(names), help="roles that administer it: a,b,c"),
    flag("--allowed-clusters", "-c", **many(names), help="clusters of its namespaces (default: all)"),
)


def _create(admin: Admin, flags: Flags) -> None:
    clusters = flags.allowed_clusters or admin.call("GET", "/admin/v2/clusters")
    body = {"adminRoles": flags.admin_roles or [], "allowedClusters": clusters}
    admin.call("PUT", path_of(TENANT, flags), body)


def _update(admin: Admin, flags: Flags) -> None:
    """What is not given stays as it is."""
    path = path_of(TENANT, flags)
    known = admin.call("GET", path)
    given = {"adminRoles": flags.admin_roles, "allowedClusters": flags.allowed_clusters}
    admin.call("POST", path, known | {key: value for key, value in given.items() if value is not None})


VERBS = {
    "list": Verb("list tenants", "GET", "tenants"),
    "get": Verb("show the admin roles and clusters of a tenant", "GET", TENANT),
    "create": Verb("create a tenant", "PUT", TENANT, FIELDS, run=_create),
    "update": Verb("change a tenant", "POST", TENANT, FIELDS, run=_update),
    "delete": Verb(
        "delete a tenant",
        "DELETE",
        TENANT,
        (switch("--force", "-f", default=None, help="with all of its namespaces and topics"),),
        {"force": "force"},
    ),
}
run = partial(run_group, "tenants", VERBS)
