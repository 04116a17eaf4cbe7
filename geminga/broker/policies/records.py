"""Policies in the records of namespaces and topics: read, changed, compared. Pure."""

from __future__ import annotations

import logging
from collections.abc import ItemsView, Mapping
from typing import Any

from msgspec import UNSET

from geminga.broker.policies.endpoint import Policy
from geminga.broker.policies.table import BY_NAME, POLICIES, check
from geminga.broker.policies.values import (
    BacklogQuota,
    PolicyInvalid,
    PolicyRefused,
    Retention,
    read,
    shown,
)
from geminga.errors import CorruptData

log = logging.getLogger("geminga.broker")

STORAGE, AGE = "destination_storage", "message_age"
QUOTA_TYPES = (STORAGE, AGE)
QUOTAS, QUOTAS_KEY = "backlog_quotas", "backlog_quota_map"
"""The key in a topic's record, and in a namespace's."""

Overrides = Mapping[str, Any]
"""The values that one level sets, by their names in `EffectivePolicies`."""


def fits(quota: BacklogQuota, retention: Retention | None) -> bool:
    """Whether a backlog quota is below the retention, so that retained messages may be read again."""
    if retention is None:
        return True
    too_large = retention.size_bytes > 0 and quota.limit_size >= retention.size_bytes
    too_long = retention.time_minutes > 0 and quota.limit_time >= retention.time_minutes * 60
    return not too_large and not too_long


def check_created(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Check the policies of a new namespace, each as if it were set alone. Raises `PolicyRefused`."""
    checked = {key: value for key, value in policies.items() if value is not None}
    for policy in POLICIES:
        for key in policy.keys:
            if key in checked and not policy.member:
                checked[key] = _created(policy, checked[key])
    if QUOTAS_KEY in checked:
        quotas = _items(checked[QUOTAS_KEY])
        checked[QUOTAS_KEY] = {kind: shown(read(BacklogQuota, quota)) for kind, quota in quotas}
    return {key: value for key, value in checked.items() if value is not None}


def _created(policy: Policy, given: object) -> object:
    if policy.is_rate:
        return {cluster: shown(read(policy.kind, rate)) for cluster, rate in _items(given)}
    value = read(policy.kind, given)
    check(value)
    if policy.name == "message_ttl_s" and value < 0:
        raise PolicyInvalid("Invalid value for message TTL")
    return None if value is UNSET else shown(value)


def _items(given: object) -> ItemsView[str, Any]:
    if not isinstance(given, dict):
        raise PolicyRefused("Cannot deserialize value of type `java.util.LinkedHashMap`: expected an object")
    return given.items()


def from_namespace(policies: Mapping[str, Any], cluster: str, name: str) -> Overrides:
    """The values that a namespace's record sets."""
    overrides: dict[str, Any] = {}
    for policy in POLICIES:
        stored = policies.get(policy.keys[0]) if policy.keys else None
        if policy.is_rate:
            stored = stored.get(cluster) if isinstance(stored, dict) else None
        if policy.member:
            stored = stored.get(policy.member) if isinstance(stored, dict) else None
        value = None if stored is None else _stored(policy, stored, name)
        if value is not None and value != []:
            overrides[policy.name] = value
    return overrides | _quotas_from(policies.get(QUOTAS_KEY), name)


def from_topic(policies: Mapping[str, Any], topic: object) -> Overrides:
    """The values that a topic's record sets."""
    overrides = {
        name: value
        for name, stored in policies.items()
        if name in BY_NAME and (value := _stored(BY_NAME[name], stored, topic)) is not None
    }
    return overrides | _quotas_from(policies.get(QUOTAS), topic)


def _stored(policy: Policy, stored: object, owner: object) -> Any:
    """A value from a record. An invalid one is logged and does not apply."""
    try:
        value = read(policy.kind, stored)
    except PolicyRefused as error:
        log.warning("%s: the stored policy %s is left out: %s", owner, policy.name, error)
        return None
    if value is UNSET or (policy.name == "schema_compatibility" and value == "UNDEFINED"):
        return None
    return value


def stored_quotas(stored: object) -> dict[str, BacklogQuota]:
    if not isinstance(stored, dict):
        return {}
    return {kind: read(BacklogQuota, quota) for kind, quota in stored.items() if kind in QUOTA_TYPES}


def _quotas_from(stored: object, owner: object) -> dict[str, Any]:
    try:
        quotas = stored_quotas(stored)
    except PolicyRefused as error:
        raise CorruptData(f"{owner}: its backlog quotas cannot be read: {error}") from error
    names = {STORAGE: "quota_size", AGE: "quota_age"}
    return {names[kind]: quota for kind, quota in quotas.items()}


def by_type(overrides: Overrides) -> dict[str, BacklogQuota]:
    found = {STORAGE: overrides.get("quota_size"), AGE: overrides.get("quota_age")}
    return {kind: quota for kind, quota in found.items() if quota is not None}


def changed_quotas(stored: object, kind: str, quota: BacklogQuota | None) -> dict[str, Any]:
    quotas = {name: shown(old) for name, old in stored_quotas(stored).items() if name != kind}
    return quotas if quota is None else {**quotas, kind: shown(quota)}


def retention_of(policies: Mapping[str, Any]) -> Retention | None:
    stored = policies.get("retention_policies")
    return None if stored is None else read(Retention, stored)


def check_namespace_retention(retention: Retention, policies: Mapping[str, Any]) -> None:
    quota = stored_quotas(policies.get(QUOTAS_KEY)).get(STORAGE)
    if quota is not None and not fits(quota, retention):
        raise PolicyInvalid("Retention Quota must exceed configured backlog quota for namespace.")


def with_value(policies: dict[str, Any], policy: Policy, value: Any, cluster: str) -> dict[str, Any]:
    if policy.member:
        return _with_member(policies, policy, value)
    changed = {key: stored for key, stored in policies.items() if key not in policy.keys}
    if value is not None:
        for key in policy.keys:
            changed[key] = {cluster: shown(value)} if policy.is_rate else shown(value)
    return changed


def _with_member(policies: dict[str, Any], policy: Policy, value: Any) -> dict[str, Any]:
    (key,) = policy.keys
    whole: Any = policies.get(key) or (None if value is None else shown(policy.whole))
    if whole is None:
        return policies
    kept = {name: stored for name, stored in whole.items() if name != policy.member}
    return {**policies, key: kept if value is None else {**kept, policy.member: shown(value)}}
