"""Policies of namespaces and topics: get, set, remove, by the rows of `broker/policies/table.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec import UNSET

from geminga.admin.http.router import (
    NO_CONTENT,
    BadRequest,
    NotFound,
    Request,
    Response,
    Router,
    json_response,
)
from geminga.admin.routes.effect import with_warning, without_effect
from geminga.admin.routes.names import namespace_of, topic_of
from geminga.admin.routes.topics import TOPIC
from geminga.admin.view.topics import TopicsView
from geminga.broker.policies.endpoint import Endpoint, Policy
from geminga.broker.policies.namespaces import Namespaces
from geminga.broker.policies.policies import Policies
from geminga.broker.policies.table import POLICIES, check_count
from geminga.broker.policies.values import Int32, PolicyInvalid, PolicyRefused, read, shown
from geminga.errors import NamespaceNotFound, TopicNotFound
from geminga.names import TopicName

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
OWN_NAMESPACE = "/geminga/policies/{tenant}/{namespace}"
OWN_TOPIC = "/geminga/policies/persistent/{tenant}/{namespace}/{topic}"
TTL_QUERY = "messageTTL"
KEPT = object()
"""Some of Pulsar's endpoints answer a body of `null` with success, and change nothing."""

Serve = Callable[[Policy, Endpoint, Request], Awaitable[Response]]


class PolicyRoutes:
    """Every policy but the backlog quotas, of which a topic has two."""

    def __init__(self, namespaces: Namespaces, policies: Policies, topics: TopicsView) -> None:
        self._namespaces = namespaces
        self._policies = policies
        self._topics = topics

    def add_to(self, router: Router) -> None:
        def add(method: str, pattern: str, serve: Serve, policy: Policy, endpoint: Endpoint) -> None:
            path = endpoint.remove_path or endpoint.path if method == "DELETE" else endpoint.path
            told = "topics" if pattern in (NAMESPACE, OWN_NAMESPACE) else "partitions"
            walks = "" if method == "GET" else told
            router.add(method, f"{pattern}/{path}", partial(serve, policy, endpoint), walks=walks)

        for policy in POLICIES:
            if policy.namespace is not None:
                place = OWN_NAMESPACE if policy.is_own else NAMESPACE
                if policy.namespace.readable:
                    add("GET", place, self.namespace_value, policy, policy.namespace)
                add(policy.namespace.method, place, self.set_for_namespace, policy, policy.namespace)
                if policy.namespace.removable:
                    add("DELETE", place, self.remove_from_namespace, policy, policy.namespace)
            if policy.topic is not None:
                place = OWN_TOPIC if policy.is_own else TOPIC
                add("GET", place, self.topic_value, policy, policy.topic)
                add(policy.topic.method, place, self.set_for_topic, policy, policy.topic)
                if policy.topic.removable:
                    add("DELETE", place, self.remove_from_topic, policy, policy.topic)
        router.add("DELETE", f"{TOPIC}/policies", self.forget_topic, walks="partitions")

    # -- namespaces ------------------------------------------------------------------------------------------

    async def namespace_value(self, policy: Policy, endpoint: Endpoint, request: Request) -> Response:
        name = namespace_of(request)
        self._namespaces.record(name)
        return shown_policy(self._policies.namespace_value(name, policy), endpoint)

    async def set_for_namespace(self, policy: Policy, endpoint: Endpoint, request: Request) -> Response:
        value = _value(policy, endpoint, request)
        name = namespace_of(request)
        self._namespaces.record(name)
        check_count(endpoint, value)
        if value is not KEPT:
            await self._policies.set_for_namespace(name, policy, value)
        return _done(policy, endpoint, value)

    async def remove_from_namespace(self, policy: Policy, endpoint: Endpoint, request: Request) -> Response:
        await self._policies.set_for_namespace(namespace_of(request), policy, endpoint.removed)
        return NO_CONTENT

    # -- topics ----------------------------------------------------------------------------------------------

    async def topic_value(self, policy: Policy, endpoint: Endpoint, request: Request) -> Response:
        topic, is_global = policy_topic_of(self._namespaces, self._topics, request), is_global_of(request)
        if request.flag("applied"):
            effective = self._policies.applied(topic, is_global=is_global)
            if policy.name in effective.__struct_fields__:
                return shown_policy(getattr(effective, policy.name), endpoint)
            found = self._policies.applied_inert(topic, policy, is_global=is_global)
            return shown_policy(endpoint.applied if found is None else found, endpoint)
        return shown_policy(self._policies.topic_value(topic, policy, is_global=is_global), endpoint)

    async def set_for_topic(self, policy: Policy, endpoint: Endpoint, request: Request) -> Response:
        is_ttl = endpoint.path == TTL_QUERY
        value = _ttl(request) if is_ttl else _value(policy, endpoint, request)
        topic = policy_topic_of(self._namespaces, self._topics, request)
        check_count(endpoint, value)
        if value is not KEPT:
            await self._policies.set_for_topic(topic, policy, value, is_global=is_global_of(request))
        return _done(policy, endpoint, value)

    async def remove_from_topic(self, policy: Policy, endpoint: Endpoint, request: Request) -> Response:
        topic = policy_topic_of(self._namespaces, self._topics, request)
        await self._policies.set_for_topic(topic, policy, endpoint.removed, is_global=is_global_of(request))
        return NO_CONTENT

    async def forget_topic(self, request: Request) -> Response:
        await self._policies.forget_topic(policy_topic_of(self._namespaces, self._topics, request))
        return NO_CONTENT


def _done(policy: Policy, endpoint: Endpoint, value: object) -> Response:
    """Success. If this broker ignores the policy, or does something else than Pulsar, a `Warning` header says
    so.
    """
    if policy.warning and value:
        return with_warning(policy.warning, endpoint.status)
    if policy.acted_upon or value is None:
        return Response(endpoint.status)
    return without_effect(policy.name.replace("_", " "), endpoint.status)


def is_global_of(request: Request) -> bool:
    """Whether the request is about the policies behind the topic's own: in Pulsar those of all clusters."""
    return request.flag("isGlobal")


def policy_topic_of(namespaces: Namespaces, topics: TopicsView, request: Request) -> TopicName:
    """The topic that a request for policies is about. `TopicNotFound`; a partition has none of its own."""
    topic = topic_of(request)
    if topic.is_partition:
        raise PolicyInvalid("Not allowed to set/get topic policy for a partition")
    try:
        namespaces.check_exists(topic.namespace)
    except NamespaceNotFound:
        raise NamespaceNotFound("Namespace not found") from None
    if not topics.exists(topic) and not topics.partitions(topic):
        raise TopicNotFound(f"Topic {topic} not found")
    return topic


def _value(policy: Policy, endpoint: Endpoint, request: Request) -> Any:
    """The policy's new value from the body: a value, None to remove it, or KEPT."""
    if endpoint.fixed is not None:
        return endpoint.fixed
    body = request.json()
    if body is None and endpoint.refusal:
        raise PolicyInvalid(endpoint.refusal)
    if body is not None:
        value = read(policy.kind, body)
        if value is UNSET:
            return None
        return sorted(set(map(_known, value))) if isinstance(value, list) else value
    if endpoint.empty == "refuse":
        raise BadRequest(f"{policy.name.replace('_', ' ')} policies should not be null")
    if endpoint.empty == "zero":
        if not request.body.strip():
            raise BadRequest("The request entity cannot be empty.")
        return read(policy.kind, None)
    return None if endpoint.empty == "unset" else KEPT


def _known(item: Any) -> str:
    if not isinstance(item, str):
        raise PolicyRefused("expected the names of subscription types")
    return item


def _ttl(request: Request) -> int | None:
    """A topic's TTL is in the query; a path with anything but a number there does not exist."""
    text = request.query.get(TTL_QUERY, "")
    if not text:
        return None
    try:
        if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit():
            raise NotFound("Not Found")
        return int(read(Int32, text))
    except PolicyRefused:
        raise NotFound("Not Found") from None


def shown_policy(value: object, endpoint: Endpoint) -> Response:
    if value is not None:
        return json_response(shown(value))
    if endpoint.unset is not None:
        return json_response(endpoint.unset)
    return Response(endpoint.unset_status)
