"""Lists of topics without storage: this broker has none yet, and tools ask for both kinds in one go."""

from __future__ import annotations

from geminga.admin.http.router import Request, Response, Router, json_response
from geminga.admin.routes.names import namespace_of
from geminga.broker.policies.bundles import bundle_range
from geminga.broker.policies.namespaces import Namespaces

NAMESPACE = "/admin/v2/non-persistent/{tenant}/{namespace}"


class NonPersistentRoutes:
    """Java's `topics list-partitioned-topics` fails as a whole if one of these does."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    def add_to(self, router: Router) -> None:
        router.add("GET", NAMESPACE, self.none)
        router.add("GET", f"{NAMESPACE}/partitioned", self.none)
        router.add("GET", f"{NAMESPACE}/{{bundle}}", self.none_in_bundle)

    async def none(self, request: Request) -> Response:
        """Raises `NamespaceNotFound`."""
        self._namespaces.record(namespace_of(request))
        return json_response([])

    async def none_in_bundle(self, request: Request) -> Response:
        """Raises `NamespaceNotFound`, or `PolicyInvalid` if the namespace has no such bundle."""
        name = namespace_of(request)
        bundle_range(
            name, request.parameters["bundle"], self._namespaces.policies(name)["bundles"]["boundaries"]
        )
        return json_response([])
