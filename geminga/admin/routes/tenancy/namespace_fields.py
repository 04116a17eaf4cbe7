"""What a namespace has beside its policies: properties, permissions, clusters, a resource group, affinity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geminga.admin.http.router import (
    NO_CONTENT,
    BadRequest,
    NotFound,
    Request,
    Response,
    Router,
    json_response,
    streamed_json,
)
from geminga.admin.http.streaming import json_list
from geminga.admin.routes.effect import without_effect
from geminga.admin.routes.names import namespace_of
from geminga.broker.policies import permissions
from geminga.broker.policies.documents import ABSENT, RESOURCE_GROUPS, Documents
from geminga.broker.policies.namespaces import LOCAL, ClusterForbidden, ClusterNotAllowed, Namespaces
from geminga.broker.policies.values import PolicyInvalid
from geminga.names import NamespaceName, TopicName

PATH = "/admin/v2/namespaces/{tenant}/{namespace}"
PROPERTIES_MAX = 1024
ANTI_AFFINITY, BOOKIE_AFFINITY = "anti_affinity_group", "bookie_affinity"
AFFINITY_KEYS = ("bookkeeperAffinityGroupPrimary", "bookkeeperAffinityGroupSecondary")

Policies = dict[str, Any]


class NamespaceFieldRoutes:
    def __init__(self, namespaces: Namespaces, documents: Documents) -> None:
        self._namespaces = namespaces
        self._documents = documents

    def add_to(self, router: Router) -> None:
        router.add("GET", f"{PATH}/properties", self.properties)
        router.add("PUT", f"{PATH}/properties", self.set_properties, walks="topics")
        router.add("DELETE", f"{PATH}/properties", self.clear_properties, walks="topics")
        router.add("GET", f"{PATH}/property/{{key}}", self.property)
        router.add("PUT", f"{PATH}/property/{{key}}/{{value}}", self.set_property, walks="topics")
        router.add("DELETE", f"{PATH}/property/{{key}}", self.remove_property, walks="topics")
        router.add("GET", f"{PATH}/permissions", self.permissions)
        router.add("POST", f"{PATH}/permissions/{{role}}", self.grant, walks="topics")
        router.add("DELETE", f"{PATH}/permissions/{{role}}", self.revoke, walks="topics")
        router.add("GET", f"{PATH}/permissions/subscription", self.subscription_permissions)
        router.add(
            "POST",
            f"{PATH}/permissions/subscription/{{subscription}}",
            self.grant_on_subscription,
            walks="topics",
        )
        router.add(
            "DELETE",
            f"{PATH}/permissions/{{subscription}}/{{role}}",
            self.revoke_on_subscription,
            walks="topics",
        )
        router.add(
            "POST", "/admin/v2/namespaces/grantPermissionsOnTopics", self.grant_on_topics, walks="topics"
        )
        router.add(
            "POST", "/admin/v2/namespaces/revokePermissionsOnTopics", self.revoke_on_topics, walks="topics"
        )
        router.add("GET", f"{PATH}/replication", self.replication)
        router.add("POST", f"{PATH}/replication", self.set_replication, walks="topics")
        router.add("GET", f"{PATH}/allowedClusters", self.allowed_clusters)
        router.add("POST", f"{PATH}/allowedClusters", self.set_allowed_clusters, walks="topics")
        router.add("GET", f"{PATH}/resourcegroup", self.resource_group)
        router.add("POST", f"{PATH}/resourcegroup/{{resourcegroup}}", self.set_resource_group, walks="topics")
        router.add("DELETE", f"{PATH}/resourcegroup", self.remove_resource_group, walks="topics")
        router.add("GET", f"{PATH}/antiAffinity", self.anti_affinity)
        router.add("POST", f"{PATH}/antiAffinity", self.set_anti_affinity, walks="topics")
        router.add("DELETE", f"{PATH}/antiAffinity", self.remove_anti_affinity, walks="topics")
        router.add(
            "GET", "/admin/v2/namespaces/{cluster}/antiAffinity/{group}", self.of_group, walks="namespaces"
        )
        router.add(
            "GET",
            "/admin/namespaces/{cluster}/antiAffinity/{group}",
            self.of_group_for_java,
            walks="namespaces",
        )
        router.add("GET", f"{PATH}/persistence/bookieAffinity", self.bookie_affinity)
        router.add("POST", f"{PATH}/persistence/bookieAffinity", self.set_bookie_affinity, walks="topics")
        router.add(
            "DELETE", f"{PATH}/persistence/bookieAffinity", self.remove_bookie_affinity, walks="topics"
        )

    def _policies(self, request: Request) -> Policies:
        """All that was set. Raises `NamespaceNotFound`."""
        return self._namespaces.record(namespace_of(request)).policies

    async def _change(self, request: Request, change: Callable[[Policies], Policies]) -> None:
        await self._namespaces.change_policies(namespace_of(request), change)

    # -- properties ------------------------------------------------------------------------------------------

    async def properties(self, request: Request) -> Response:
        return json_response(self._policies(request).get("properties") or {})

    async def set_properties(self, request: Request) -> Response:
        """Adds to those that are there."""
        given = request.json()
        if not isinstance(given, dict):
            raise BadRequest("expected an object of strings")
        await self._add_properties(request, {key: str(value) for key, value in given.items()})
        return NO_CONTENT

    async def set_property(self, request: Request) -> Response:
        await self._add_properties(request, {request.parameters["key"]: request.parameters["value"]})
        return NO_CONTENT

    async def _add_properties(self, request: Request, given: dict[str, str]) -> None:
        def change(policies: Policies) -> Policies:
            properties = {**(policies.get("properties") or {}), **given}
            if len(properties) > PROPERTIES_MAX:
                raise PolicyInvalid(f"a namespace has at most {PROPERTIES_MAX} properties")
            return {**policies, "properties": properties}

        await self._change(request, change)

    async def clear_properties(self, request: Request) -> Response:
        await self._change(request, lambda policies: {**policies, "properties": {}})
        return NO_CONTENT

    async def property(self, request: Request) -> Response:
        found = (self._policies(request).get("properties") or {}).get(request.parameters["key"])
        return Response(200) if found is None else Response(200, found.encode(), "application/json")

    async def remove_property(self, request: Request) -> Response:
        """Answers with the value that it had."""
        found = await self.property(request)
        key = request.parameters["key"]

        def change(policies: Policies) -> Policies:
            properties = policies.get("properties") or {}
            return {**policies, "properties": {name: properties[name] for name in properties if name != key}}

        await self._change(request, change)
        return found

    # -- permissions -----------------------------------------------------------------------------------------

    async def permissions(self, request: Request) -> Response:
        return json_response(permissions.granted(self._policies(request), permissions.OF_NAMESPACE))

    async def grant(self, request: Request) -> Response:
        actions, role = permissions.actions_of(request.json()), request.parameters["role"]
        await self._change(request, lambda old: permissions.grant_on_namespace(old, role, actions))
        return without_effect("permissions")

    async def revoke(self, request: Request) -> Response:
        role = request.parameters["role"]
        await self._change(request, lambda old: permissions.revoke_on_namespace(old, role))
        return NO_CONTENT

    async def subscription_permissions(self, request: Request) -> Response:
        return json_response(permissions.granted(self._policies(request), permissions.OF_SUBSCRIPTIONS))

    async def grant_on_subscription(self, request: Request) -> Response:
        roles, name = permissions.roles_of(request.json()), request.parameters["subscription"]
        await self._change(request, lambda old: permissions.grant_on_subscription(old, name, roles))
        return without_effect("permissions")

    async def revoke_on_subscription(self, request: Request) -> Response:
        name, role = request.parameters["subscription"], request.parameters["role"]
        if name not in permissions.granted(self._policies(request), permissions.OF_SUBSCRIPTIONS):
            raise NotFound(f"nothing is granted on subscription {name}")
        await self._change(request, lambda old: permissions.revoke_on_subscription(old, name, role))
        return NO_CONTENT

    async def grant_on_topics(self, request: Request) -> Response:
        """Body: [{"topic": ..., "role": ..., "actions": [...]}, ...]; all of one namespace at once."""
        for item in _options(request):
            topic, role, actions = (
                _topic(item),
                str(item.get("role")),
                permissions.actions_of(item.get("actions")),
            )

            def change(
                old: Policies, topic: TopicName = topic, role: str = role, actions: list[str] = actions
            ) -> Policies:
                return permissions.grant_on_topic(old, str(topic), role, actions)

            await self._namespaces.change_policies(topic.namespace, change)
        return without_effect("permissions")

    async def revoke_on_topics(self, request: Request) -> Response:
        """Body: [{"topic": ..., "role": ...}, ...]"""
        for item in _options(request):
            topic, role = _topic(item), str(item.get("role"))

            def change(old: Policies, topic: TopicName = topic, role: str = role) -> Policies:
                return permissions.revoke_on_topic(old, str(topic), role)

            await self._namespaces.change_policies(topic.namespace, change)
        return NO_CONTENT

    # -- clusters --------------------------------------------------------------------------------------------

    async def replication(self, request: Request) -> Response:
        own = [self._namespaces.cluster]
        return json_response(self._policies(request).get("replication_clusters") or own)

    async def set_replication(self, request: Request) -> Response:
        clusters = _clusters(request)
        name = namespace_of(request)
        self._namespaces.record(name)
        if not clusters:
            raise ClusterNotAllowed("ClusterIds should not be null or empty")
        self._check_clusters(name, clusters)
        await self._change(request, lambda old: {**old, "replication_clusters": sorted(set(clusters))})
        if set(clusters) == {self._namespaces.cluster}:
            return Response(200)
        return without_effect("replication to other clusters", 200)

    async def allowed_clusters(self, request: Request) -> Response:
        return json_response(self._policies(request).get("allowed_clusters") or [])

    async def set_allowed_clusters(self, request: Request) -> Response:
        clusters = _clusters(request)
        if clusters is None:
            raise ClusterNotAllowed("ClusterIds should not be null or empty")
        name = namespace_of(request)
        self._namespaces.record(name)
        self._namespaces.check_allowed(name, clusters)
        await self._change(request, lambda old: {**old, "allowed_clusters": sorted(set(clusters))})
        return without_effect("the list of allowed clusters", 200)

    def _check_clusters(self, name: NamespaceName, clusters: list[str]) -> None:
        known = self._namespaces.clusters()
        for cluster in clusters:
            if cluster not in known:
                raise ClusterForbidden(f"Invalid cluster id: {cluster}")
        self._namespaces.check_allowed(name, clusters)

    # -- a resource group ------------------------------------------------------------------------------------

    async def resource_group(self, request: Request) -> Response:
        found = self._policies(request).get("resource_group_name")
        return Response(200) if not found else Response(200, str(found).encode(), "application/json")

    async def set_resource_group(self, request: Request) -> Response:
        self._policies(request)
        name = request.parameters["resourcegroup"]
        if self._documents.get(RESOURCE_GROUPS, name) is ABSENT:
            raise PolicyInvalid("ResourceGroup does not exist")
        await self._change(request, lambda old: {**old, "resource_group_name": name})
        return without_effect("the resource group")

    async def remove_resource_group(self, request: Request) -> Response:
        await self._change(request, lambda old: _without(old, "resource_group_name"))
        return NO_CONTENT

    # -- affinity --------------------------------------------------------------------------------------------

    def _local(self, request: Request) -> dict[str, Any]:
        return self._policies(request).get(LOCAL) or {}

    async def _set_local(self, request: Request, key: str, value: object) -> None:
        def change(policies: Policies) -> Policies:
            return {**policies, LOCAL: {**(policies.get(LOCAL) or {}), key: value}}

        await self._change(request, change)

    async def anti_affinity(self, request: Request) -> Response:
        group = self._local(request).get(ANTI_AFFINITY)
        return NO_CONTENT if not group else Response(200, group.encode(), "application/json")

    async def set_anti_affinity(self, request: Request) -> Response:
        """Body: the name of a group, bare or as JSON."""
        try:
            group = request.body.decode().strip().strip('"')
        except UnicodeDecodeError:
            raise BadRequest("the name of a group is UTF-8") from None
        if not group:
            raise PolicyInvalid("antiAffinityGroup can't be empty")
        await self._set_local(request, ANTI_AFFINITY, group)
        return without_effect("the anti-affinity group")

    async def remove_anti_affinity(self, request: Request) -> Response:
        await self._set_local(request, ANTI_AFFINITY, None)
        return NO_CONTENT

    async def of_group(self, request: Request) -> Response:
        """Namespaces of a group; `tenant` is Pulsar's, which asks for its rights only."""
        if not request.query.get("tenant"):
            raise BadRequest("Tenant should not be null")
        return await self.of_group_for_java(request)

    async def of_group_for_java(self, request: Request) -> Response:
        """The same, at the path of version 1: the Java client asks there, and calls the tenant a property."""
        group, found = request.parameters["group"], []

        def look(namespace: str, policies: dict[str, Any]) -> None:
            if (policies.get(LOCAL) or {}).get(ANTI_AFFINITY) == group:
                found.append(namespace)

        await self._namespaces.look_at_all(look)
        return streamed_json(json_list(found))

    async def bookie_affinity(self, request: Request) -> Response:
        local = self._local(request)
        if BOOKIE_AFFINITY not in local:
            raise NotFound("Namespace local-policies does not exist")
        return json_response(local[BOOKIE_AFFINITY]) if local[BOOKIE_AFFINITY] else NO_CONTENT

    async def set_bookie_affinity(self, request: Request) -> Response:
        """Body: {"bookkeeperAffinityGroupPrimary": ..., "bookkeeperAffinityGroupSecondary": ...}"""
        body = request.json()
        if body is not None and not isinstance(body, dict):
            raise BadRequest(f"expected an object with {' and '.join(AFFINITY_KEYS)}")
        value = None if body is None else {key: str(body[key]) for key in AFFINITY_KEYS if body.get(key)}
        await self._set_local(request, BOOKIE_AFFINITY, value)
        return without_effect("bookie affinity")

    async def remove_bookie_affinity(self, request: Request) -> Response:
        await self._set_local(request, BOOKIE_AFFINITY, None)
        return NO_CONTENT


def _without(policies: Policies, key: str) -> Policies:
    return {name: value for name, value in policies.items() if name != key}


def _clusters(request: Request) -> list[str] | None:
    body = request.json()
    if body is not None and not isinstance(body, list):
        raise BadRequest("expected a list of clusters")
    return None if body is None else [str(item) for item in body]


def _options(request: Request) -> list[dict[str, Any]]:
    body = request.json()
    if not isinstance(body, list) or not all(isinstance(item, dict) for item in body):
        raise BadRequest('expected [{"topic": ..., "role": ..., "actions": [...]}, ...]')
    return body


def _topic(item: dict[str, Any]) -> TopicName:
    topic = item.get("topic")
    if not isinstance(topic, str):
        raise BadRequest("topic must be the name of a topic")
    return TopicName.parse(topic)
