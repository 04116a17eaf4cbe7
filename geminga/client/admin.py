"""Paths of the admin API for its callers, and the reasons in its errors."""

from __future__ import annotations

import json
from urllib.parse import quote

from geminga.names import NamespaceName, TopicName


def topic_path(name: TopicName) -> str:
    """The path of one topic or partition."""
    return f"/admin/v2/{name.domain.value}/{_of_topic(name)}"


def delayed_path(name: TopicName, subscription: str | None = None) -> str:
    """The path of Geminga's own API for the delayed messages of a topic, or of one of its subscriptions."""
    of = "" if subscription is None else f"/subscription/{quote(subscription, safe='')}"
    return f"/geminga/delayed/persistent/{_of_topic(name)}{of}"


def namespace_path(name: NamespaceName) -> str:
    return f"/admin/v2/namespaces/{_of_namespace(name)}"


def reason_of(body: bytes) -> str:
    """The readable part of an error's body such as {"reason": "Namespace not found"}. For a body that is not
    JSON, its first line; for a page, nothing.
    """
    try:
        answer = json.loads(body)
    except ValueError:
        return body.decode(errors="replace").partition("\n")[0] if not body.startswith(b"<") else ""
    return str(answer.get("reason", "")) if isinstance(answer, dict) else ""


def _of_topic(name: TopicName) -> str:
    return f"{_of_namespace(name.namespace)}/{quote(name.local, safe='')}"


def _of_namespace(name: NamespaceName) -> str:
    return f"{quote(name.tenant, safe='')}/{quote(name.local, safe='')}"
