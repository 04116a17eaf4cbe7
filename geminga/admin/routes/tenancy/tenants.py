"""Tenants: list, create, change, delete."""

from __future__ import annotations

from typing import Any

from geminga.admin.http.router import (
    NO_CONTENT,
    BadRequest,
    Request,
    Response,
    Router,
    json_response,
    streamed_json,
)
from geminga.admin.http.streaming import json_list
from geminga.broker.flow.slices import sorted_names
from geminga.broker.policies.namespaces import Namespaces
from geminga.errors import NotAllowed, PeerError
from geminga.metadata.records import TenantRecord


class TenantInfoMissing(PeerError):
    http_status = 412


class TenantRoutes:
    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    def add_to(self, router: Router) -> None:
        router.add("GET", "/admin/v2/tenants", self.names, walks="tenants")
        router.add("GET", "/admin/v2/tenants/{tenant}", self.get)
        router.add("PUT", "/admin/v2/tenants/{tenant}", self.create)
        router.add("POST", "/admin/v2/tenants/{tenant}", self.update)
        router.add("DELETE", "/admin/v2/tenants/{tenant}", self.delete)

    async def names(self, request: Request) -> Response:
        return streamed_json(json_list(await sorted_names(self._namespaces.each_tenant())))

    async def get(self, request: Request) -> Response:
        tenant = self._namespaces.tenant(request.parameters["tenant"])
        return json_response({"adminRoles": tenant.admin_roles, "allowedClusters": tenant.allowed_clusters})

    async def create(self, request: Request) -> Response:
        await self._namespaces.create_tenant(request.parameters["tenant"], _tenant(request.json()))
        return NO_CONTENT

    async def update(self, request: Request) -> Response:
        await self._namespaces.update_tenant(request.parameters["tenant"], _tenant(request.json()))
        return NO_CONTENT

    async def delete(self, request: Request) -> Response:
        if request.flag("force"):
            raise NotAllowed("Broker doesn't allow forced deletion of tenants")
        await self._namespaces.delete_tenant(request.parameters["tenant"])
        return NO_CONTENT


def _tenant(body: Any) -> TenantRecord:
    if body is None:
        raise TenantInfoMissing("TenantInfo is null")
    if not isinstance(body, dict):
        raise BadRequest("expected an object with adminRoles and allowedClusters")
    lists = []
    for key in ("adminRoles", "allowedClusters"):
        value = body.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise BadRequest(f"{key} must be a list of strings")
        lists.append(sorted(set(value)))
    return TenantRecord(admin_roles=lists[0], allowed_clusters=lists[1])
