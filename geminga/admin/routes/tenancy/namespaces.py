"""Namespaces: list, create, policies, topics, delete."""

from __future__ import annotations

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
from geminga.admin.routes.names import namespace_of
from geminga.admin.view.topics import TopicsView
from geminga.broker.flow.slices import sorted_names
from geminga.broker.policies.namespaces import Namespaces
from geminga.errors import NotAllowed

MODES = {"PERSISTENT", "NON_PERSISTENT", "ALL"}


class NamespaceRoutes:
    def __init__(self, namespaces: Namespaces, topics: TopicsView) -> None:
        self._namespaces = namespaces
        self._topics = topics

    def add_to(self, router: Router) -> None:
        path = "/admin/v2/namespaces/{tenant}/{namespace}"
        router.add("GET", "/admin/v2/namespaces/{tenant}", self.names, walks="namespaces")
        router.add("GET", path, self.policies)
        router.add("PUT", path, self.create)
        router.add("DELETE", path, self.delete)
        router.add("GET", f"{path}/topics", self.topics, walks="topics")
        router.add("GET", f"{path}/bundles", self.bundles)

    async def names(self, request: Request) -> Response:
        names = self._namespaces.each_namespace(request.parameters["tenant"])
        return streamed_json(json_list(await sorted_names(names)))

    async def policies(self, request: Request) -> Response:
        return json_response(self._namespaces.policies(namespace_of(request)))

    async def bundles(self, request: Request) -> Response:
        return json_response(self._namespaces.policies(namespace_of(request))["bundles"])

    async def create(self, request: Request) -> Response:
        body = request.json()
        if body is not None and not isinstance(body, dict):
            raise BadRequest("expected an object with policies")
        await self._namespaces.create(namespace_of(request), body)
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        if request.flag("force"):
            raise NotAllowed("Broker doesn't allow forced deletion of namespaces")
        await self._namespaces.delete(namespace_of(request))
        return NO_CONTENT

    async def topics(self, request: Request) -> Response:
        name = namespace_of(request)
        self._namespaces.record(name)
        mode = request.query.get("mode", "PERSISTENT")
        if mode not in MODES:
            raise NotFound("Not Found")
        names = [] if mode == "NON_PERSISTENT" else await self._topics.names_in(name)
        return streamed_json(json_list(names))
