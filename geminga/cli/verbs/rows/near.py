"""Which name was probably meant by that of a topic, namespace, tenant, subscription or setting not found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from geminga.cli.admin.admin_http import Admin, RequestFailed
from geminga.cli.arguments import guesses
from geminga.cli.verbs.rows.verb import Flags, quoted
from geminga.errors import InvalidName
from geminga.names import NamespaceName, TopicName

NOT_FOUND = "404"
PARTITIONED = "on a partitioned topic is not allowed"
NOT_DYNAMIC = "Can't update non-dynamic configuration"


def hint(admin: Admin, error: RequestFailed, flags: Flags) -> str:
    """`; did you mean ...?`, or "" where nothing comes near or the broker does not say what there is."""
    try:
        if str(error) == NOT_DYNAMIC:
            return _of_setting(admin, flags.config)
        if PARTITIONED in str(error) and flags.topic:
            return f"; name one of them: {TopicName.parse(flags.topic)}-partition-0"
        if not error.status.startswith(NOT_FOUND):
            return ""
        if (topic := _given(flags, "topic", "of_topic")) is not None:
            return _of_topic(admin, TopicName.parse(topic), getattr(flags, "subscription", None))
        if (namespace := _given(flags, "namespace")) is not None:
            return _of_namespace(admin, NamespaceName.parse(namespace))
        if (tenant := _given(flags, "tenant")) is not None:
            return guesses.name(tenant, admin.call("GET", "/admin/v2/tenants"))
    except (RequestFailed, InvalidName):
        return ""
    return ""


def _given(flags: Flags, *names: str) -> str | None:
    return next((value for name in names if isinstance(value := getattr(flags, name, None), str)), None)


def _of_topic(admin: Admin, topic: TopicName, subscription: Any) -> str:
    place = f"{quoted(topic.tenant)}/{quoted(topic.namespace.local)}"
    base = f"/admin/v2/persistent/{place}"
    try:
        known = [*admin.call("GET", base), *admin.call("GET", f"{base}/partitioned")]
    except RequestFailed:
        return _of_namespace(admin, topic.namespace)
    if isinstance(subscription, str) and str(topic) in known:
        there: Sequence[str] = admin.call("GET", f"{base}/{quoted(topic.local)}/subscriptions")
        return guesses.name(subscription, there) or f"; it has {', '.join(sorted(there)) or 'none'}"
    shared = str(topic).removesuffix(topic.local)
    return "" if str(topic) in known else guesses.name(str(topic), known, shared=shared)


def _of_namespace(admin: Admin, namespace: NamespaceName) -> str:
    tenants = admin.call("GET", "/admin/v2/tenants")
    if namespace.tenant not in tenants:
        return guesses.name(namespace.tenant, tenants)
    known = admin.call("GET", f"/admin/v2/namespaces/{quoted(namespace.tenant)}")
    return guesses.name(str(namespace), known, shared=f"{namespace.tenant}/")


def _of_setting(admin: Admin, given: str) -> str:
    """Of a setting that is read at start how it is set; else the one whose name is alike."""
    dynamic = admin.call("GET", "/admin/v2/brokers/configuration")
    known = admin.call("GET", "/admin/v2/brokers/configuration/runtime")
    if given in known:
        return f"; {given} is read at the start: geminga standalone --set {given}=..."
    return guesses.name(given, [*dynamic, *known])
