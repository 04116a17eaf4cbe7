"""Bookies, their racks, resource groups and quotas: kept and shown."""

from __future__ import annotations

import re
from typing import Any

from geminga.admin.http.router import (
    NO_CONTENT,
    BadRequest,
    NotFound,
    Request,
    Response,
    Router,
    json_response,
)
from geminga.admin.routes.addresses import Addresses
from geminga.admin.routes.effect import without_effect
from geminga.admin.routes.names import namespace_of
from geminga.admin.view.broker import BrokerIdentity
from geminga.broker.policies.bundles import bundle_range
from geminga.broker.policies.documents import (
    ABSENT,
    BOOKIE_RACKS,
    RESOURCE_GROUPS,
    RESOURCE_QUOTAS,
    Documents,
)
from geminga.broker.policies.inert_values import ResourceGroup, ResourceQuota
from geminga.broker.policies.namespaces import Namespaces
from geminga.broker.policies.values import PolicyInvalid, read, shown
from geminga.errors import InvalidName
from geminga.names import check_tenant

GROUP = "/admin/v2/resourcegroups/{group}"
QUOTAS = "/admin/v2/resource-quotas"
QUOTA = f"{QUOTAS}/{{tenant}}/{{namespace}}/{{bundle}}"
RACKS = "/admin/v2/bookies/racks-info"
DEFAULT = "default"
UNLIMITED = {
    "publishRateInMsgs": -1,
    "publishRateInBytes": -1,
    "dispatchRateInMsgs": -1,
    "dispatchRateInBytes": -1,
}
"""The rates of a new resource group that its request does not name."""
BOOKIE_ADDRESS = re.compile(r"[^\s/]{1,255}")


class ResourceRoutes:
    def __init__(self, broker: BrokerIdentity, namespaces: Namespaces, documents: Documents) -> None:
        self._broker = broker
        self._namespaces = namespaces
        self._documents = documents

    def add_to(self, router: Router) -> None:
        router.add("GET", "/admin/v2/resourcegroups", self.groups)
        router.add("GET", GROUP, self.group)
        router.add("PUT", GROUP, self.set_group)
        router.add("DELETE", GROUP, self.delete_group, walks="namespaces")
        router.add("GET", QUOTAS, self.default_quota)
        router.add("POST", QUOTAS, self.set_default_quota)
        router.add("GET", QUOTA, self.quota)
        router.add("POST", QUOTA, self.set_quota)
        router.add("DELETE", QUOTA, self.delete_quota)
        router.add("GET", "/admin/v2/bookies/all", self.bookies)
        router.add("GET", RACKS, self.racks)
        router.add("GET", f"{RACKS}/{{bookie}}", self.rack)
        router.add("POST", f"{RACKS}/{{bookie}}", self.set_rack)
        router.add("DELETE", f"{RACKS}/{{bookie}}", self.delete_rack)

    # -- resource groups -------------------------------------------------------------------------------------

    async def groups(self, request: Request) -> Response:
        return json_response(self._documents.names(RESOURCE_GROUPS))

    async def group(self, request: Request) -> Response:
        return json_response(self._group(request))

    def _group(self, request: Request) -> Any:
        found = self._documents.get(RESOURCE_GROUPS, request.parameters["group"])
        if found is ABSENT:
            raise NotFound("ResourceGroup does not exist")
        return found

    async def set_group(self, request: Request) -> Response:
        """Makes it, or changes the rates that the body has."""
        name, body = request.parameters["group"], request.json()
        try:
            check_tenant(name)
        except InvalidName:
            raise InvalidName("ResourceGroup name is not valid") from None
        if body is None:
            raise BadRequest("expected an object with rates")
        given = shown(read(ResourceGroup, body))
        assert isinstance(given, dict)
        await self._documents.change(
            RESOURCE_GROUPS, name, change=lambda old: {**(UNLIMITED if old is ABSENT else old), **given}
        )
        return without_effect("a resource group")

    async def delete_group(self, request: Request) -> Response:
        self._group(request)
        name = request.parameters["group"]

        def look(namespace: str, policies: dict[str, Any]) -> None:
            if policies.get("resource_group_name") == name:
                raise PolicyInvalid("ResourceGroup is in use")

        await self._namespaces.look_at_all(look)
        await self._documents.delete(RESOURCE_GROUPS, name)
        return NO_CONTENT

    # -- quotas ----------------------------------------------------------------------------------------------

    async def default_quota(self, request: Request) -> Response:
        return json_response(self._default_quota())

    def _default_quota(self) -> Any:
        found = self._documents.get(RESOURCE_QUOTAS, DEFAULT)
        return shown(ResourceQuota()) if found is ABSENT else found

    async def set_default_quota(self, request: Request) -> Response:
        await self._documents.put(RESOURCE_QUOTAS, DEFAULT, value=_quota(request))
        return without_effect("a resource quota")

    async def quota(self, request: Request) -> Response:
        found = self._documents.get(RESOURCE_QUOTAS, *self._bundle(request))
        return json_response(self._default_quota() if found is ABSENT else found)

    async def set_quota(self, request: Request) -> Response:
        names = self._bundle(request)
        await self._documents.put(RESOURCE_QUOTAS, *names, value=_quota(request))
        return without_effect("a resource quota")

    async def delete_quota(self, request: Request) -> Response:
        names = self._bundle(request)
        if self._documents.get(RESOURCE_QUOTAS, *names) is ABSENT:
            raise NotFound(f"there is no quota of its own for {'/'.join(names)}")
        await self._documents.delete(RESOURCE_QUOTAS, *names)
        return NO_CONTENT

    def _bundle(self, request: Request) -> tuple[str, str, str]:
        name, bundle = namespace_of(request), request.parameters["bundle"]
        bundle_range(name, bundle, self._namespaces.policies(name)["bundles"]["boundaries"])
        return name.tenant, name.local, bundle

    # -- bookies ---------------------------------------------------------------------------------------------

    async def bookies(self, request: Request) -> Response:
        """The bookie in this process has no address of its own: it is known by the broker's."""
        return json_response({"bookies": [{"bookieId": Addresses(self._broker, request.local_host).broker}]})

    def _racks(self) -> dict[str, dict[str, Any]]:
        """By group, by bookie."""
        found = self._documents.get(BOOKIE_RACKS, DEFAULT)
        return {} if found is ABSENT else found

    async def racks(self, request: Request) -> Response:
        return json_response(self._racks())

    async def rack(self, request: Request) -> Response:
        bookie = request.parameters["bookie"]
        for bookies in self._racks().values():
            if bookie in bookies:
                return json_response(bookies[bookie])
        raise NotFound(f"Bookie rack placement configuration not found: {bookie}")

    async def set_rack(self, request: Request) -> Response:
        """Body: {"rack": ..., "hostname": ...}; the group is in the query. A bookie is in one group."""
        bookie, body, group = request.parameters["bookie"], request.json(), request.query.get("group")
        if body is not None and not isinstance(body, dict):
            raise BadRequest("expected an object with rack and hostname")
        if not group:
            raise PolicyInvalid("Bookie 'group' parameters is missing")
        if body is None or not isinstance(body.get("rack"), str) or not body["rack"]:
            raise PolicyInvalid("Bookie 'rack' parameters is missing")
        if not BOOKIE_ADDRESS.fullmatch(bookie):
            raise PolicyInvalid("the address of a bookie is host:port")
        info = {"rack": body["rack"]} | ({"hostname": str(body["hostname"])} if body.get("hostname") else {})

        def change(old: Any) -> Any:
            racks = _without_bookie({} if old is ABSENT else old, bookie)
            return {**racks, group: {**racks.get(group, {}), bookie: info}}

        await self._documents.change(BOOKIE_RACKS, DEFAULT, change=change)
        return without_effect("the rack of a bookie")

    async def delete_rack(self, request: Request) -> Response:
        await self.rack(request)
        bookie = request.parameters["bookie"]
        await self._documents.change(
            BOOKIE_RACKS, DEFAULT, change=lambda old: _without_bookie({} if old is ABSENT else old, bookie)
        )
        return NO_CONTENT


def _without_bookie(racks: dict[str, dict[str, Any]], bookie: str) -> dict[str, dict[str, Any]]:
    kept = {
        group: {name: info for name, info in bookies.items() if name != bookie}
        for group, bookies in racks.items()
    }
    return {group: bookies for group, bookies in kept.items() if bookies}


def _quota(request: Request) -> object:
    body = request.json()
    return shown(ResourceQuota() if body is None else read(ResourceQuota, body))
