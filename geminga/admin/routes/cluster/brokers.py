"""Health, versions, the one cluster and its one broker."""

from __future__ import annotations

import msgspec

from geminga import __version__
from geminga.admin.http.router import (
    NotFound,
    Request,
    Response,
    Router,
    json_response,
    streamed_json,
    text_response,
)
from geminga.admin.http.streaming import in_parts, json_object
from geminga.admin.routes.addresses import Addresses
from geminga.admin.routes.effect import without_effect
from geminga.admin.view.broker import BrokerIdentity
from geminga.admin.view.process import ProcessView
from geminga.broker.operator.dynamic_configuration import DynamicConfiguration
from geminga.broker.policies.bundles import WHOLE_RANGE
from geminga.broker.policies.namespaces import Namespaces
from geminga.errors import NotAllowed

PULSAR_VERSION = "4.0.7"
"""The version of Pulsar whose admin API this is; clients compare it."""

_JSON = "application/json"


class BrokerRoutes:
    def __init__(
        self,
        broker: BrokerIdentity,
        namespaces: Namespaces,
        process: ProcessView,
        dynamic: DynamicConfiguration,
    ) -> None:
        self._broker = broker
        self._namespaces = namespaces
        self._process = process
        self._dynamic = dynamic

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
        router.add(
            "GET",
            f"{brokers}/{{cluster}}/{{broker}}/ownedNamespaces",
            self.owned_namespaces,
            walks="namespaces",
        )
        router.add("GET", f"{brokers}/configuration", self.dynamic_configuration)
        router.add("GET", f"{brokers}/configuration/values", self.dynamic_values)
        router.add("POST", f"{brokers}/configuration/{{name}}/{{value}}", self.set_dynamic, walks="topics")
        router.add("DELETE", f"{brokers}/configuration/{{name}}", self.unset_dynamic, walks="topics")
        router.add("GET", f"{brokers}/backlog-quota-check", self.check_quotas)
        router.add("POST", f"{brokers}/shutdown", self.shutdown)
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
        """Of any cluster: Pulsar does not look at its name either."""
        return json_response([Addresses(self._broker, request.local_host).broker])

    async def leader(self, request: Request) -> Response:
        addresses = Addresses(self._broker, request.local_host)
        return json_response({"serviceUrl": addresses.web, "brokerId": addresses.broker})

    async def owned_namespaces(self, request: Request) -> Response:
        if not Addresses(self._broker, request.local_host).is_broker(request.parameters["broker"]):
            raise NotFound("Broker is not active")
        owned = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        names = await self._namespaces.all_namespaces()
        shown = msgspec.json.encode(owned)
        fields = (msgspec.json.encode(f"{name}/{WHOLE_RANGE}") + b":" + shown for name in names)
        return streamed_json(in_parts(json_object(fields)))

    async def dynamic_configuration(self, request: Request) -> Response:
        """Names of the settings that may be changed at run time."""
        return json_response(self._dynamic.names())

    async def dynamic_values(self, request: Request) -> Response:
        return json_response(self._dynamic.values())

    async def set_dynamic(self, request: Request) -> Response:
        name, value = request.parameters["name"], request.parameters["value"]
        if await self._dynamic.set(name, value):
            return Response(200)
        return without_effect(name, 200)

    async def unset_dynamic(self, request: Request) -> Response:
        """What the start was given holds again."""
        await self._dynamic.unset(request.parameters["name"])
        return Response(200)

    async def check_quotas(self, request: Request) -> Response:
        """Quotas are looked at from time to time anyway."""
        return without_effect("an early check of backlog quotas")

    async def shutdown(self, request: Request) -> Response:
        raise NotAllowed("the broker is not stopped by its admin API; send SIGTERM to its process")

    async def runtime_configuration(self, request: Request) -> Response:
        values = msgspec.to_builtins(self._dynamic.current())
        return json_response({key: _as_in_file(value) for key, value in values.items()})

    async def internal_configuration(self, request: Request) -> Response:
        """Where Pulsar's tools would look for metadata: there is no server for it here, hence no address."""
        keys = (
            "zookeeperServers",
            "configurationStoreServers",
            "metadataStoreUrl",
            "configurationMetadataStoreUrl",
        )
        return json_response({**dict.fromkeys(keys, ""), "ledgersRootPath": "/ledgers"})


def _as_in_file(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(sorted(map(str, value)))
    return str(value)
