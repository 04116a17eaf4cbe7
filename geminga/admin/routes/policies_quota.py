"""Backlog quotas of namespaces and topics, one by size and one by age."""

from __future__ import annotations

from msgspec import UNSET

from geminga.admin.http.router import NO_CONTENT, NotFound, Request, Response, Router, json_response
from geminga.admin.routes.names import namespace_of
from geminga.admin.routes.policies import NAMESPACE, is_global_of, policy_topic_of
from geminga.admin.routes.topics import TOPIC
from geminga.admin.view.topics import TopicsView
from geminga.broker.policies.namespaces import Namespaces
from geminga.broker.policies.policies import Policies
from geminga.broker.policies.records import QUOTA_TYPES, STORAGE
from geminga.broker.policies.values import BacklogQuota, PolicyRefused, read, shown
from geminga.names import NamespaceName


class QuotaRoutes:
    def __init__(self, namespaces: Namespaces, policies: Policies, topics: TopicsView) -> None:
        self._namespaces = namespaces
        self._policies = policies
        self._topics = topics

    def add_to(self, router: Router) -> None:
        router.add("GET", f"{NAMESPACE}/backlogQuotaMap", self.of_namespace)
        router.add("POST", f"{NAMESPACE}/backlogQuota", self.set_for_namespace, walks="topics")
        router.add("DELETE", f"{NAMESPACE}/backlogQuota", self.remove_from_namespace, walks="topics")
        router.add("GET", f"{TOPIC}/backlogQuotaMap", self.of_topic)
        router.add("POST", f"{TOPIC}/backlogQuota", self.set_for_topic, walks="partitions")
        router.add("DELETE", f"{TOPIC}/backlogQuota", self.remove_from_topic, walks="partitions")

    async def of_namespace(self, request: Request) -> Response:
        name = namespace_of(request)
        self._namespaces.record(name)
        return _shown(self._policies.namespace_quotas(name))

    async def set_for_namespace(self, request: Request) -> Response:
        kind, name = _kind(request), namespace_of(request)
        quota = read(BacklogQuota, request.json())
        self._namespaces.record(name)
        await self._policies.set_namespace_quota(name, kind, _checked(quota, name))
        return NO_CONTENT

    async def remove_from_namespace(self, request: Request) -> Response:
        await self._policies.set_namespace_quota(namespace_of(request), _kind(request), None)
        return NO_CONTENT

    async def of_topic(self, request: Request) -> Response:
        topic = policy_topic_of(self._namespaces, self._topics, request)
        if request.flag("applied"):
            return _shown(self._policies.applied_quotas(topic, is_global=is_global_of(request)))
        return _shown(self._policies.topic_quotas(topic, is_global=is_global_of(request)))

    async def set_for_topic(self, request: Request) -> Response:
        kind, body = _kind(request), request.json()
        quota = None if body is None else read(BacklogQuota, body)
        topic = policy_topic_of(self._namespaces, self._topics, request)
        if quota is not None:
            _checked(quota, topic.namespace)
        await self._policies.set_topic_quota(topic, kind, quota, is_global=is_global_of(request))
        return NO_CONTENT

    async def remove_from_topic(self, request: Request) -> Response:
        topic = policy_topic_of(self._namespaces, self._topics, request)
        await self._policies.set_topic_quota(topic, _kind(request), None, is_global=is_global_of(request))
        return NO_CONTENT


def _kind(request: Request) -> str:
    kind = request.query.get("backlogQuotaType", STORAGE)
    if kind not in QUOTA_TYPES:
        raise NotFound("Not Found")
    return kind


def _checked(quota: BacklogQuota, name: NamespaceName) -> BacklogQuota:
    if quota.policy is UNSET:
        raise PolicyRefused(
            f"Set namespace[{name}] backlog quota failed because the data validation failed. "
            "the attribute policy cannot be null"
        )
    return quota


def _shown(quotas: dict[str, BacklogQuota]) -> Response:
    return json_response({kind: shown(quota) for kind, quota in quotas.items()})
