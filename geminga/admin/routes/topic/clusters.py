"""A topic's clusters and shadow topics: checked, kept and shown; nothing is copied anywhere."""

from __future__ import annotations

from typing import Any

from geminga.admin.http.router import NO_CONTENT, Request, Response, Router, json_response
from geminga.admin.routes.effect import without_effect
from geminga.admin.routes.policies import is_global_of, policy_topic_of
from geminga.admin.routes.topics import TOPIC
from geminga.admin.view.topics import TopicsView
from geminga.broker.policies.endpoint import Policy
from geminga.broker.policies.namespaces import ClusterForbidden, Namespaces
from geminga.broker.policies.policies import Policies
from geminga.broker.policies.table import BY_NAME
from geminga.broker.policies.values import PolicyInvalid, read
from geminga.errors import InvalidName
from geminga.names import TopicName

REPLICATION, SHADOWS = BY_NAME["replication_clusters"], BY_NAME["shadow_topics"]


class TopicClusterRoutes:
    def __init__(self, namespaces: Namespaces, policies: Policies, topics: TopicsView) -> None:
        self._namespaces = namespaces
        self._policies = policies
        self._topics = topics

    def add_to(self, router: Router) -> None:
        router.add("GET", f"{TOPIC}/replication", self.replication)
        router.add("POST", f"{TOPIC}/replication", self.set_replication)
        router.add("DELETE", f"{TOPIC}/replication", self.remove_replication)
        router.add("GET", f"{TOPIC}/shadowTopics", self.shadows)
        router.add("PUT", f"{TOPIC}/shadowTopics", self.set_shadows)
        router.add("DELETE", f"{TOPIC}/shadowTopics", self.remove_shadows)

    def _topic(self, request: Request) -> TopicName:
        return policy_topic_of(self._namespaces, self._topics, request)

    async def _remove(self, request: Request, policy: Policy) -> Response:
        await self._policies.set_for_topic(
            self._topic(request), policy, None, is_global=is_global_of(request)
        )
        return NO_CONTENT

    # -- clusters --------------------------------------------------------------------------------------------

    async def replication(self, request: Request) -> Response:
        topic = self._topic(request)
        own = self._policies.topic_value(topic, REPLICATION, is_global=is_global_of(request))
        if own is None and request.flag("applied"):
            own = self._of_namespace(topic)
        return Response(200) if own is None else json_response(own)

    def _of_namespace(self, topic: TopicName) -> Any:
        of_namespace = self._namespaces.record(topic.namespace).policies.get("replication_clusters")
        return of_namespace or [self._namespaces.cluster]

    async def set_replication(self, request: Request) -> Response:
        clusters = _names(request)
        topic = self._topic(request)
        if not clusters:
            raise PolicyInvalid("ClusterIds should not be null or empty")
        if is_global_of(request) and len(self._of_namespace(topic)) <= 1:
            raise PolicyInvalid(
                "Please do not use the global topic level policy when namespace-level replication is not "
                "enabled, because the global level policy relies on namespace-level replication"
            )
        if self._namespaces.cluster not in clusters:
            raise PolicyInvalid(
                "Can not remove local cluster from the local topic-level replication clusters policy"
            )
        known = self._namespaces.clusters()
        for cluster in clusters:
            if cluster not in known:
                raise ClusterForbidden(f"Invalid cluster id: {cluster}")
        await self._policies.set_for_topic(topic, REPLICATION, clusters, is_global=is_global_of(request))
        alone = clusters == [self._namespaces.cluster]
        return NO_CONTENT if alone else without_effect("replication to other clusters")

    async def remove_replication(self, request: Request) -> Response:
        return await self._remove(request, REPLICATION)

    # -- shadow topics ---------------------------------------------------------------------------------------

    async def shadows(self, request: Request) -> Response:
        found = self._policies.topic_value(self._topic(request), SHADOWS)
        return Response(200) if found is None else json_response(found)

    async def set_shadows(self, request: Request) -> Response:
        names = _names(request)
        topic = self._topic(request)
        if not names:
            raise PolicyInvalid("Cannot specify empty shadow topics, please use remove command instead.")
        for name in names:
            if not self._is_topic(name):
                raise PolicyInvalid(f"Shadow topic [{name}] not exists.")
        await self._policies.set_for_topic(topic, SHADOWS, names)
        return without_effect("the list of shadow topics")

    def _is_topic(self, text: str) -> bool:
        try:
            name = TopicName.parse(text)
        except InvalidName:
            return False
        return self._topics.exists(name) or bool(self._topics.partitions(name))

    async def remove_shadows(self, request: Request) -> Response:
        return await self._remove(request, SHADOWS)


def _names(request: Request) -> list[str]:
    """Sorted, each once; empty for no body."""
    body: Any = request.json()
    return [] if body is None else sorted(set(read(list[str], body)))
