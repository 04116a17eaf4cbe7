"""Permissions of roles in a namespace's policies: granted, revoked, shown. Pure; nothing enforces them yet.

Each function takes the policies of a namespace's record and returns changed ones. The shape is Pulsar's:

    "auth_policies": {
        "namespace_auth": {role: [action, ...]},
        "destination_auth": {"persistent://t/n/topic": {role: [action, ...]}},
        "subscription_auth_roles": {subscription: [role, ...]},
    }
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from geminga.broker.policies.values import PolicyRefused

KEY: Final = "auth_policies"
OF_NAMESPACE: Final = "namespace_auth"
OF_TOPICS: Final = "destination_auth"
OF_SUBSCRIPTIONS: Final = "subscription_auth_roles"
ACTIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")

Policies = dict[str, Any]


def granted(policies: Mapping[str, Any], part: str) -> dict[str, Any]:
    """One part of the granted permissions; empty if there is none."""
    return dict((policies.get(KEY) or {}).get(part) or {})


def actions_of(body: object) -> list[str]:
    """The actions in a request's body, each given by name or number. Raises `PolicyRefused`."""
    if not isinstance(body, list):
        raise PolicyRefused("Actions should not be null" if body is None else "expected a list of actions")
    found = set()
    for item in body:
        if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < len(ACTIONS):
            found.add(ACTIONS[item])
        elif item in ACTIONS:
            found.add(item)
    return sorted(found)


def roles_of(body: object) -> list[str]:
    if not isinstance(body, list):
        raise PolicyRefused("Roles should not be null" if body is None else "expected a list of roles")
    return sorted({str(item) for item in body})


def grant_on_namespace(policies: Policies, role: str, actions: list[str]) -> Policies:
    return _with(policies, OF_NAMESPACE, {**granted(policies, OF_NAMESPACE), role: actions})


def revoke_on_namespace(policies: Policies, role: str) -> Policies:
    return _with(policies, OF_NAMESPACE, _without(granted(policies, OF_NAMESPACE), role))


def grant_on_topic(policies: Policies, topic: str, role: str, actions: list[str]) -> Policies:
    """`topic` is its full name."""
    topics = granted(policies, OF_TOPICS)
    return _with(policies, OF_TOPICS, {**topics, topic: {**(topics.get(topic) or {}), role: actions}})


def revoke_on_topic(policies: Policies, topic: str, role: str) -> Policies:
    topics = granted(policies, OF_TOPICS)
    roles = _without(topics.get(topic) or {}, role)
    topics = {**topics, topic: roles} if roles else _without(topics, topic)
    return _with(policies, OF_TOPICS, topics)


def grant_on_subscription(policies: Policies, subscription: str, roles: list[str]) -> Policies:
    return _with(policies, OF_SUBSCRIPTIONS, {**granted(policies, OF_SUBSCRIPTIONS), subscription: roles})


def revoke_on_subscription(policies: Policies, subscription: str, role: str) -> Policies:
    subscriptions = granted(policies, OF_SUBSCRIPTIONS)
    if subscription not in subscriptions:
        return policies
    kept = [other for other in subscriptions[subscription] if other != role]
    subscriptions = {**subscriptions, subscription: kept} if kept else _without(subscriptions, subscription)
    return _with(policies, OF_SUBSCRIPTIONS, subscriptions)


def _with(policies: Policies, part: str, value: dict[str, Any]) -> Policies:
    empty: dict[str, Any] = {OF_NAMESPACE: {}, OF_TOPICS: {}, OF_SUBSCRIPTIONS: {}}
    return {**policies, KEY: {**empty, **(policies.get(KEY) or {}), part: value}}


def _without(found: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != key}
