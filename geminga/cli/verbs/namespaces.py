"""`geminga namespaces`: namespaces, what can be done to them, and their policies."""

from __future__ import annotations

from functools import partial
from typing import Any

from geminga.cli.admin.admin_http import Admin, Raw, RequestFailed
from geminga.cli.arguments.options import count
from geminga.cli.verbs.brokers import pair_lines
from geminga.cli.verbs.rows.namespace_policies import more_policies
from geminga.cli.verbs.rows.policies import plain, policy_verbs, quota_verbs
from geminga.cli.verbs.rows.policy_flags import NAMESPACE_VERBS
from geminga.cli.verbs.rows.running import run_group
from geminga.cli.verbs.rows.values import many, mapping, names, pairs
from geminga.cli.verbs.rows.verb import Flags, Verb, flag, path_of, quoted, switch
from geminga.cli.verbs.topic_actions import namespaces

NAMESPACE = "namespaces/{namespace}"
ACTIONS = ("produce", "consume", "functions", "sources", "sinks", "packages")
BUNDLE = flag("--bundle", "-b", help="of this bundle only: 0x00000000_0x40000000")
SUBSCRIPTION = ("--sub", "--subscription", "-s")
ROLE = flag("--role", "-r", required=True, help="the role")
KEY = flag("--key", "-k", required=True, help="its name")
TOPICS = (
    flag("--mode", "-m", help="PERSISTENT, NON_PERSISTENT or ALL (default)"),
    switch("--include-system-topic", "-ist", default=None, help="the broker's own as well"),
)


def _create(flags: Flags) -> dict[str, Any]:
    bundles = {"bundles": {"numBundles": flags.bundles}} if flags.bundles else {}
    return bundles | ({"replication_clusters": flags.clusters} if flags.clusters else {})


def actions(flags: Flags) -> list[str]:
    """The actions of a permission, as the API takes them. Raises `RequestFailed`."""
    for action in flags.actions:
        if action not in ACTIONS:
            raise RequestFailed(f"Illegal auth action '{action}'. Possible values: {', '.join(ACTIONS)}")
    return list(flags.actions)


def _list(admin: Admin, flags: Flags) -> Any:
    if flags.tenant is None:
        return namespaces(admin)
    return admin.call("GET", path_of("namespaces/{tenant}", flags))


def _place(flags: Flags) -> str:
    """The namespace, or one bundle of it."""
    bundle = f"/{quoted(flags.bundle)}" if flags.bundle else ""
    return path_of(NAMESPACE, flags) + bundle


def _unload(admin: Admin, flags: Flags) -> None:
    if flags.destination_broker and not flags.bundle:
        raise RequestFailed("--destinationBroker takes --bundle as well")
    admin.call("PUT", f"{_place(flags)}/unload", destinationBroker=flags.destination_broker)


def _clear_backlog(admin: Admin, flags: Flags) -> None:
    if not flags.force:
        try:
            answer = input("Are you sure you want to clear the backlog? (Y/N) ")
        except EOFError:
            raise RequestFailed("standard input has no answer; give --force") from None
        if answer.strip().lower() not in ("y", "yes"):
            return
    of = f"/{quoted(flags.subscription)}" if flags.subscription else ""
    admin.call("POST", f"{_place(flags)}/clearBacklog{of}")


def _unsubscribe(admin: Admin, flags: Flags) -> None:
    admin.call("POST", f"{_place(flags)}/unsubscribe/{quoted(flags.subscription)}")


def _split(admin: Admin, flags: Flags) -> None:
    if bool(flags.bundle) is bool(flags.bundle_type):
        raise RequestFailed("give either --bundle or --bundle-type")
    admin.call(
        "PUT",
        f"{path_of(NAMESPACE, flags)}/{quoted(flags.bundle or flags.bundle_type)}/split",
        flags.split_boundaries or Raw(b"null"),
        unload=flags.unload,
        splitAlgorithmName=flags.split_algorithm_name,
    )


VERBS = {
    "list": Verb(
        "list a tenant's namespaces, or all", "GET", "namespaces/{tenant}", run=_list, takes_all=True
    ),
    "create": Verb(
        "create a namespace",
        "PUT",
        NAMESPACE,
        (
            flag("--clusters", "-c", **many(names), help="its clusters: a,b,c"),
            flag("--bundles", "-b", type=count, default=0, help="its bundles"),
        ),
        body=_create,
    ),
    "delete": Verb(
        "delete a namespace without topics",
        "DELETE",
        NAMESPACE,
        (switch("--force", "-f", default=None, help="with all of its topics"),),
        {"force": "force"},
    ),
    "policies": Verb("show all policies", "GET", NAMESPACE),
    "topics": Verb(
        "list a namespace's topics",
        "GET",
        f"{NAMESPACE}/topics",
        TOPICS,
        {"mode": "mode", "includeSystemTopic": "include_system_topic"},
    ),
    "destinations": Verb("list a namespace's topics", "GET", f"{NAMESPACE}/topics"),
    "bundles": Verb("show the bundles of a namespace", "GET", f"{NAMESPACE}/bundles"),
    "permissions": Verb(
        "show the permissions of each role", "GET", f"{NAMESPACE}/permissions", show=pair_lines
    ),
    "grant-permission": Verb(
        "grant permissions to a role",
        "POST",
        f"{NAMESPACE}/permissions/{{role}}",
        (ROLE, flag("--actions", "-a", required=True, **many(names), help=",".join(ACTIONS))),
        body=actions,
    ),
    "revoke-permission": Verb(
        "revoke the permissions of a role", "DELETE", f"{NAMESPACE}/permissions/{{role}}", (ROLE,)
    ),
    "subscription-permission": Verb(
        "show the roles that may manage subscriptions",
        "GET",
        f"{NAMESPACE}/permissions/subscription",
        show=pair_lines,
    ),
    "grant-subscription-permission": Verb(
        "grant roles the right to manage a subscription",
        "POST",
        f"{NAMESPACE}/permissions/subscription/{{subscription}}",
        (
            flag("--subscription", "-s", required=True, help="the subscription"),
            flag("--roles", "-rs", required=True, **many(names), help="roles: a,b,c"),
        ),
        body="roles",
    ),
    "revoke-subscription-permission": Verb(
        "revoke the right to manage a subscription",
        "DELETE",
        f"{NAMESPACE}/permissions/{{subscription}}/{{role}}",
        (flag("--subscription", "-s", required=True, help="the subscription"), ROLE),
    ),
    "get-properties": Verb("show the properties", "GET", f"{NAMESPACE}/properties", show=pair_lines),
    "set-properties": Verb(
        "set properties",
        "PUT",
        f"{NAMESPACE}/properties",
        (flag("--properties", "-p", required=True, **many(pairs), help="a=1,b=2"),),
        body=lambda flags: mapping(flags.properties),
    ),
    "clear-properties": Verb("unset all properties", "DELETE", f"{NAMESPACE}/properties"),
    "get-property": Verb("show a property", "GET", f"{NAMESPACE}/property/{{key}}", (KEY,), show=plain),
    "set-property": Verb(
        "set a property",
        "PUT",
        f"{NAMESPACE}/property/{{key}}/{{value}}",
        (KEY, flag("--value", "-v", required=True, help="its value")),
    ),
    "remove-property": Verb(
        "unset a property", "DELETE", f"{NAMESPACE}/property/{{key}}", (KEY,), show=plain
    ),
    "unload": Verb(
        "close all topics; each is loaded when asked for",
        "PUT",
        f"{NAMESPACE}/unload",
        (BUNDLE, flag("--destinationBroker", "-d", dest="destination_broker", help="where the bundle goes")),
        run=_unload,
    ),
    "clear-backlog": Verb(
        "acknowledge everything, on all topics",
        "POST",
        f"{NAMESPACE}/clearBacklog",
        (
            BUNDLE,
            flag(*SUBSCRIPTION, dest="subscription", help="of this subscription only"),
            switch("--force", "-force", help="without asking"),
        ),
        run=_clear_backlog,
    ),
    "unsubscribe": Verb(
        "delete a subscription, on all topics",
        "POST",
        f"{NAMESPACE}/unsubscribe",
        (BUNDLE, flag(*SUBSCRIPTION, dest="subscription", required=True, help="the subscription")),
        run=_unsubscribe,
    ),
    "split-bundle": Verb(
        "split a bundle",
        "PUT",
        f"{NAMESPACE}/split",
        (
            BUNDLE,
            flag("--bundle-type", "-bt", choices=("LARGEST", "HOT"), help="that bundle"),
            switch("--unload", "-u", help="close its topics"),
            flag("--split-algorithm-name", "-san", help="how to split"),
            flag("--split-boundaries", "-sb", **many(names), help="where to split"),
        ),
        run=_split,
    ),
    "get-topic-positions": Verb(
        "show where topics are in a bundle",
        "GET",
        f"{NAMESPACE}/{{bundle}}/topicHashPositions",
        (
            flag("--bundle", "-b", required=True, help="0x00000000_0x40000000"),
            flag("--topic-list", "-tl", **many(names), help="these topics"),
        ),
        {"topics": "topic_list"},
    ),
    **policy_verbs(NAMESPACE_VERBS, NAMESPACE),
    **quota_verbs(NAMESPACE, "get-backlog-quotas"),
    **more_policies(NAMESPACE),
}
run = partial(run_group, "namespaces", VERBS)
