"""Permissions of roles on one topic: kept in its namespace's policies, and shown. Nothing enforces them."""

from __future__ import annotations

from typing import Any

from geminga.admin.http.router import NO_CONTENT, Request, Response, Router, json_response
from geminga.admin.routes.effect import without_effect
from geminga.admin.routes.names import topic_of
from geminga.admin.routes.topics import TOPIC, check_is_there
from geminga.admin.view.topics import TopicsView
from geminga.broker.policies import permissions
from geminga.broker.policies.namespaces import Namespaces
from geminga.names import TopicName


class TopicPermissionRoutes:
    """A topic shows its namespace's permissions, too; a partition shows its partitioned topic's."""

    def __init__(self, namespaces: Namespaces, topics: TopicsView) -> None:
        self._namespaces = namespaces
        self._topics = topics

    def add_to(self, router: Router) -> None:
        router.add("GET", f"{TOPIC}/permissions", self.permissions)
        router.add("POST", f"{TOPIC}/permissions/{{role}}", self.grant, walks="topics")
        router.add("DELETE", f"{TOPIC}/permissions/{{role}}", self.revoke, walks="topics")

    def _topic(self, request: Request) -> TopicName:
        """Raises `TopicNotFound`."""
        topic = topic_of(request)
        if not self._topics.partitions(topic):
            check_is_there(self._topics, topic)
        return topic

    async def permissions(self, request: Request) -> Response:
        topic = self._topic(request)
        policies = self._namespaces.record(topic.namespace).policies
        found: dict[str, set[str]] = {}
        topics = permissions.granted(policies, permissions.OF_TOPICS)
        for granted in (
            permissions.granted(policies, permissions.OF_NAMESPACE),
            topics.get(str(topic.partitioned_name)) or {},
            topics.get(str(topic)) or {},
        ):
            for role, actions in granted.items():
                found.setdefault(role, set()).update(actions)
        return json_response({role: sorted(actions) for role, actions in found.items()})

    async def grant(self, request: Request) -> Response:
        """Body: a list of actions; none for no body, as in Pulsar."""
        body = request.json()
        topic, role = self._topic(request), request.parameters["role"]
        actions = permissions.actions_of([] if body is None else body)

        def change(policies: dict[str, Any]) -> dict[str, Any]:
            return permissions.grant_on_topic(policies, str(topic), role, actions)

        await self._namespaces.change_policies(topic.namespace, change)
        return without_effect("permissions")

    async def revoke(self, request: Request) -> Response:
        topic, role = self._topic(request), request.parameters["role"]

        def change(policies: dict[str, Any]) -> dict[str, Any]:
            return permissions.revoke_on_topic(policies, str(topic), role)

        await self._namespaces.change_policies(topic.namespace, change)
        return NO_CONTENT
