"""Health, versions, the one cluster and its one broker."""

from __future__ import annotations

import msgspec

from geminga import __version__
from geminga.admin.http.router import Request, Response, Router, json_response, text_response
from geminga.admin.routes.addresses import Addresses
from geminga.admin.view.broker import BrokerIdentity
from geminga.admin.view.process import ProcessView
from geminga.broker.policies.namespaces import Namespaces

PULSAR_VERSION = "4.0.7"
"""The version of Pulsar whose admin API this is; clients compare it."""
WHOLE_RANGE = "0x00000000_0xffffffff"

_JSON = "application/json"


class BrokerRoutes:
    def __init__(self, broker: BrokerIdentity, namespaces: Namespaces, process: ProcessView) -> None:
        self._broker = broker
        self._namespaces = namespaces
        self._process = process

    def add_to(self, router: Router) -> None:
        brokers = "/admin/v2/brokers"
        router.add("GET", "/status.html", self.status)
        router.add("GET", f"{brokers}/health", self.health)
        router.add("GET", f"{brokers}/ready", self.ready)
        router.add("GET", "/geminga/health", self.health_report)
        router.add("GET", f"{brokers}/version", self.version)
        router.add("GET", brokers, self.brokers)
        router.add("GET", f"{brokers}/{{cluster}}", self.brokers)
        router.add("GET", f"{brokers}/leaderBroker", self.leader)
        router.add("GET", f"{brokers}/{{cluster}}/{{broker}}/ownedNamespaces", self.owned_namespaces)
        router.add("GET", f"{brokers}/configuration", self.dynamic_configuration)
        router.add("GET", f"{brokers}/configuration/values", self.no_object)
        router.add("GET", f"{brokers}/configuration/runtime", self.runtime_configuration)
        router.add("GET", f"{brokers}/internal-configuration", self.internal_configuration)

    async def status(self, request: Request) -> Response:
        return text_response("OK", "text/html; charset=utf-8")

    async def health(self, request: Request) -> Response:
        """A message was published and read back a second ago at most; 503 with the reason if not."""
        report = await self._process.health()
        if report.reasons:
            return json_response({"reason": "; ".join(report.reasons)}, 503)
        return text_response("ok", _JSON)

    async def health_report(self, request: Request) -> Response:
        """The same in full."""
        report = await self._process.health()
        return json_response(report, 503 if report.reasons else 200)

    async def ready(self, request: Request) -> Response:
        """The broker has started, as in Pulsar: it may be unwell."""
        # Pulsar calls this JSON although it is not; its clients take it as it is.
        return text_response("ok", _JSON)

    async def version(self, request: Request) -> Response:
        return text_response(f"{PULSAR_VERSION}-geminga-{__version__}", _JSON)

    async def brokers(self, request: Request) -> Response:
        return json_response([Addresses(self._broker, request.local_host).broker])

    async def leader(self, request: Request) -> Response:
        addresses = Addresses(self._broker, request.local_host)
        return json_response({"serviceUrl": addresses.web, "brokerId": addresses.broker})

    async def owned_namespaces(self, request: Request) -> Response:
        owned = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        names = self._namespaces.all_namespaces()
        return json_response({f"{name}/{WHOLE_RANGE}": owned for name in names})

    async def dynamic_configuration(self, request: Request) -> Response:
        return json_response([])

    async def no_object(self, request: Request) -> Response:
        return json_response({})

    async def runtime_configuration(self, request: Request) -> Response:
        values = msgspec.to_builtins(self._broker.config)
        return json_response({key: _as_in_file(value) for key, value in values.items()})

    async def internal_configuration(self, request: Request) -> Response:
        return json_response({"ledgersRootPath": "/ledgers"})


def _as_in_file(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(sorted(map(str, value)))
    return str(value)
