"""The admin API as its callers see it: paths of what they ask about, and reasons out of its errors."""

from __future__ import annotations

import json
from urllib.parse import quote

from geminga.names import NamespaceName, TopicName


def topic_path(name: TopicName) -> str:
    """Of one topic or partition."""
    return f"/admin/v2/{name.domain.value}/{_of_topic(name)}"


def delayed_path(name: TopicName, subscription: str | None = None) -> str:
    """Of Geminga's own part of the API: what a topic, or one subscription of it, holds back for later."""
    of = "" if subscription is None else f"/subscription/{quote(subscription, safe='')}"
    return f"/geminga/delayed/persistent/{_of_topic(name)}{of}"


def namespace_path(name: NamespaceName) -> str:
    return f"/admin/v2/namespaces/{_of_namespace(name)}"


def reason_of(body: bytes) -> str:
    """What a person reads of an error's body such as {"reason": "Namespace not found"}: its first line where
    it is no JSON, nothing where it is a page.
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
