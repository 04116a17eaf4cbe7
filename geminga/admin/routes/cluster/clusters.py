"""Clusters, and what Pulsar keeps for them: peers, failure domains, isolation policies, migration.

One process is one cluster. What an operator says of others is kept and shown.
"""

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
from geminga.admin.view.broker import BrokerIdentity
from geminga.broker.flow.slices import Pace
from geminga.broker.policies.documents import ABSENT, CLUSTERS, FAILURE_DOMAINS, ISOLATION_POLICIES, Documents
from geminga.broker.policies.namespaces import Namespaces
from geminga.broker.policies.values import PolicyInvalid
from geminga.errors import Conflict, InvalidName
from geminga.names import check_tenant

ROOT = "/admin/v2/clusters/{cluster}"
TEXTS = (
    "serviceUrl",
    "serviceUrlTls",
    "brokerServiceUrl",
    "brokerServiceUrlTls",
    "proxyServiceUrl",
    "proxyProtocol",
    "authenticationPlugin",
    "authenticationParameters",
    "brokerClientTlsTrustStoreType",
    "brokerClientTlsTrustStore",
    "brokerClientTlsTrustStorePassword",
    "brokerClientTlsKeyStoreType",
    "brokerClientTlsKeyStore",
    "brokerClientTlsKeyStorePassword",
    "brokerClientTrustCertsFilePath",
    "brokerClientKeyFilePath",
    "brokerClientCertificateFilePath",
    "brokerClientSslFactoryPlugin",
    "brokerClientSslFactoryPluginParams",
    "brokerClientSslProvider",
    "listenerName",
)
FLAGS = ("brokerClientTlsEnabled", "tlsAllowInsecureConnection", "brokerClientTlsEnabledWithKeyStore")
OWN_DEFAULTS = {
    "brokerClientTlsTrustStoreType": "JKS",
    "brokerClientTlsKeyStoreType": "JKS",
    "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
}
"""What Pulsar says of a cluster that its Java client or the broker itself made."""
PEERS, MIGRATION = "peerClusterNames", "migration"
URLS = ("serviceUrl", "serviceUrlTls", "brokerServiceUrl", "brokerServiceUrlTls")


class ClusterRoutes:
    def __init__(self, broker: BrokerIdentity, namespaces: Namespaces, documents: Documents) -> None:
        self._broker = broker
        self._namespaces = namespaces
        self._documents = documents

    def add_to(self, router: Router) -> None:
        router.add("GET", "/admin/v2/clusters", self.names)
        router.add("GET", ROOT, self.get)
        router.add("PUT", ROOT, self.create)
        router.add("POST", ROOT, self.update)
        router.add("DELETE", ROOT, self.delete, walks="tenants")
        router.add("GET", f"{ROOT}/peers", self.peers)
        router.add("POST", f"{ROOT}/peers", self.set_peers)
        router.add("GET", f"{ROOT}/migrate", self.migration)
        router.add("POST", f"{ROOT}/migrate", self.set_migration)
        router.add("GET", f"{ROOT}/failureDomains", self.domains)
        router.add("GET", f"{ROOT}/failureDomains/{{domain}}", self.domain)
        router.add("POST", f"{ROOT}/failureDomains/{{domain}}", self.set_domain)
        router.add("DELETE", f"{ROOT}/failureDomains/{{domain}}", self.delete_domain)
        isolation = f"{ROOT}/namespaceIsolationPolicies"
        router.add("GET", isolation, self.isolation_policies)
        router.add("GET", f"{isolation}/brokers", self.isolated_brokers)
        router.add("GET", f"{isolation}/brokers/{{broker}}", self.isolated_broker)
        router.add("GET", f"{isolation}/{{policy}}", self.isolation_policy)
        router.add("POST", f"{isolation}/{{policy}}", self.set_isolation_policy)
        router.add("DELETE", f"{isolation}/{{policy}}", self.delete_isolation_policy)

    def _is_own(self, cluster: str) -> bool:
        return cluster == self._broker.config.cluster_name

    def _data(self, request: Request) -> dict[str, Any]:
        """What is known of the cluster. Raises `NotFound`."""
        cluster = request.parameters["cluster"]
        found = self._documents.get(CLUSTERS, cluster)
        if self._is_own(cluster):
            addresses = Addresses(self._broker, request.local_host)
            own = {**OWN_DEFAULTS, "serviceUrl": addresses.web, "brokerServiceUrl": addresses.binary}
            return _data({**own, **({} if found is ABSENT else found)})
        if found is ABSENT:
            raise NotFound("Cluster does not exist")
        return dict(found)

    # -- clusters --------------------------------------------------------------------------------------------

    async def names(self, request: Request) -> Response:
        return json_response(sorted({self._broker.config.cluster_name, *self._documents.names(CLUSTERS)}))

    async def get(self, request: Request) -> Response:
        shown = self._data(request)
        shown.pop(MIGRATION, None)
        return json_response(shown)

    async def create(self, request: Request) -> Response:
        cluster, data = request.parameters["cluster"], _given(request)
        try:
            check_tenant(cluster)
        except InvalidName:
            raise InvalidName("Cluster name is not valid") from None

        def change(old: Any) -> Any:
            if old is not ABSENT or self._is_own(cluster):
                raise Conflict("Cluster already exists")
            return data

        await self._documents.change(CLUSTERS, cluster, change=change)
        return without_effect("another cluster", 200)

    async def update(self, request: Request) -> Response:
        data = _given(request)
        await self._change(request, lambda old: {**data, **_kept(old)})
        return without_effect("what is said of a cluster", 200)

    async def _change(self, request: Request, change: Any) -> None:
        data = self._data(request)  # NotFound

        def changed(old: Any) -> Any:
            return change(data if old is ABSENT else old)

        await self._documents.change(CLUSTERS, request.parameters["cluster"], change=changed)

    async def delete(self, request: Request) -> Response:
        cluster = request.parameters["cluster"]
        self._data(request)
        if self._is_own(cluster):
            raise PolicyInvalid("Cluster not empty")
        pace = Pace()
        for tenant in self._namespaces.each_tenant():
            await pace.row()
            if cluster in self._namespaces.tenant(tenant).allowed_clusters:
                raise PolicyInvalid("Cluster not empty")
        await self._documents.delete(ISOLATION_POLICIES, cluster)
        for name in self._documents.names(FAILURE_DOMAINS, cluster):
            await self._documents.delete(FAILURE_DOMAINS, cluster, name)
        await self._documents.delete(CLUSTERS, cluster)
        return NO_CONTENT

    async def peers(self, request: Request) -> Response:
        found = self._data(request).get(PEERS)
        return Response(200) if found is None else json_response(found)

    async def set_peers(self, request: Request) -> Response:
        body = request.json()
        if body is not None and not isinstance(body, list):
            raise BadRequest("expected a list of clusters")
        known, cluster = self._namespaces.clusters(), request.parameters["cluster"]
        for peer in body or []:
            if str(peer) == cluster:
                raise PolicyInvalid(f"{cluster} itself can't be part of peer-list")
            if str(peer) not in known:
                raise PolicyInvalid(f"Peer cluster {peer} does not exist")
        await self._change(
            request, lambda old: {**old, PEERS: None if body is None else list(map(str, body))}
        )
        return without_effect("the list of peer clusters")

    async def migration(self, request: Request) -> Response:
        found = self._data(request).get(MIGRATION)
        if found is None:
            raise NotFound("Cluster does not exist")  # as Pulsar has it, of a cluster that is there
        return json_response(found)

    async def set_migration(self, request: Request) -> Response:
        body = request.json()
        if body is not None and not isinstance(body, dict):
            raise BadRequest(f"expected an object with {', '.join(URLS)}")
        found: dict[str, Any] = {"migrated": request.flag("migrated")}
        if body is not None:
            urls = {key: str(body[key]) for key in URLS if body.get(key)}
            found["migratedClusterUrl"] = {**urls, "empty": not urls}
        await self._change(request, lambda old: {**old, MIGRATION: found})
        return without_effect("migration to another cluster", 200)

    # -- failure domains -------------------------------------------------------------------------------------

    async def domains(self, request: Request) -> Response:
        self._data(request)
        cluster = request.parameters["cluster"]
        names = self._documents.names(FAILURE_DOMAINS, cluster)
        return json_response({name: self._documents.get(FAILURE_DOMAINS, cluster, name) for name in names})

    async def domain(self, request: Request) -> Response:
        cluster, name = request.parameters["cluster"], request.parameters["domain"]
        self._data(request)
        found = self._documents.get(FAILURE_DOMAINS, cluster, name)
        if found is ABSENT:
            raise NotFound(f"Domain {name} for cluster {cluster} does not exist")
        return json_response(found)

    async def set_domain(self, request: Request) -> Response:
        """Body: {"brokers": [...]}; a broker is in one domain only."""
        self._data(request)
        cluster, name, body = request.parameters["cluster"], request.parameters["domain"], request.json()
        if body is not None and not isinstance(body, dict):
            raise BadRequest('expected {"brokers": [...]}')
        brokers = (body or {}).get("brokers") or []
        if not isinstance(brokers, list):
            raise BadRequest("brokers must be a list")
        for other in self._documents.names(FAILURE_DOMAINS, cluster):
            shared = {*map(str, brokers)} & {*self._documents.get(FAILURE_DOMAINS, cluster, other)["brokers"]}
            if other != name and shared:
                raise Conflict(f"{', '.join(sorted(shared))} already exist in other domain {other}")
        value = {"brokers": sorted({*map(str, brokers)})}
        await self._documents.put(FAILURE_DOMAINS, cluster, name, value=value)
        return without_effect("a failure domain")

    async def delete_domain(self, request: Request) -> Response:
        cluster, name = request.parameters["cluster"], request.parameters["domain"]
        self._data(request)
        if self._documents.get(FAILURE_DOMAINS, cluster, name) is ABSENT:
            raise NotFound(f"Domain-name {name} or cluster {cluster} does not exist")
        await self._documents.delete(FAILURE_DOMAINS, cluster, name)
        return Response(200)

    # -- isolation policies ----------------------------------------------------------------------------------

    def _isolation_policies(self, request: Request) -> dict[str, Any]:
        """By name. Raises `NotFound` if there was never one."""
        cluster = request.parameters["cluster"]
        found = self._documents.get(ISOLATION_POLICIES, cluster)
        self._data(request)
        if found is ABSENT:
            raise NotFound(f"NamespaceIsolationPolicies for cluster {cluster} does not exist")
        return dict(found)

    async def isolation_policies(self, request: Request) -> Response:
        return json_response(self._isolation_policies(request))

    async def isolation_policy(self, request: Request) -> Response:
        cluster, name = request.parameters["cluster"], request.parameters["policy"]
        found = self._isolation_policies(request).get(name)
        if found is None:
            raise NotFound(f"Cannot find NamespaceIsolationPolicy {name} for cluster {cluster}")
        return json_response(found)

    async def set_isolation_policy(self, request: Request) -> Response:
        """Body: {"namespaces": [...], "primary": [...], "secondary": [...], "auto_failover_policy": {...}}"""
        body, name = request.json(), request.parameters["policy"]
        self._data(request)
        policy = _isolation(body)
        cluster = request.parameters["cluster"]
        await self._documents.change(
            ISOLATION_POLICIES, cluster, change=lambda old: {**({} if old is ABSENT else old), name: policy}
        )
        return without_effect("an isolation policy")

    async def delete_isolation_policy(self, request: Request) -> Response:
        name = request.parameters["policy"]
        self._isolation_policies(request)
        await self._documents.change(
            ISOLATION_POLICIES,
            request.parameters["cluster"],
            change=lambda old: {key: value for key, value in old.items() if key != name},
        )
        return NO_CONTENT

    async def isolated_brokers(self, request: Request) -> Response:
        return json_response([self._isolated(request, Addresses(self._broker, request.local_host).broker)])

    async def isolated_broker(self, request: Request) -> Response:
        return json_response(self._isolated(request, request.parameters["broker"]))

    def _isolated(self, request: Request, broker: str) -> dict[str, Any]:
        policies = self._isolation_policies(request).values()
        mine = [policy for policy in policies if any(_fits(text, broker) for text in policy["primary"])]
        return {
            "brokerName": broker,
            "namespaceRegex": sorted({text for policy in mine for text in policy["namespaces"]}),
            "primary": bool(mine),
        }


def _given(request: Request) -> dict[str, Any]:
    body = request.json()
    if body is None:
        raise BadRequest("cluster data is required")
    if not isinstance(body, dict):
        raise BadRequest("expected an object with serviceUrl and brokerServiceUrl")
    return _data(body)


def _data(body: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a cluster: the keys that Pulsar has, with its defaults."""
    found: dict[str, Any] = {key: str(body[key]) for key in TEXTS if body.get(key) is not None}
    if isinstance(body.get(PEERS), list):
        found[PEERS] = sorted({*map(str, body[PEERS])})
    return {**found, **{key: body.get(key) is True for key in FLAGS}}


def _kept(old: dict[str, Any]) -> dict[str, Any]:
    return {MIGRATION: old[MIGRATION]} if MIGRATION in old else {}


def _isolation(body: object) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise BadRequest("expected an object with namespaces, primary, secondary and auto_failover_policy")
    lists: dict[str, Any] = {}
    for key in ("namespaces", "primary", "secondary"):
        value = body.get(key)
        if key in body and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise BadRequest(f"{key} must be a list of regular expressions")
        lists[key] = value or []
    failover = body.get("auto_failover_policy")
    if not lists["namespaces"] or not lists["primary"] or not isinstance(failover, dict):
        raise BadRequest(
            "Invalid isolation policy data: it needs namespaces, primary and auto_failover_policy"
        )
    parameters = failover.get("parameters") or {}
    if failover.get("policy_type") != "min_available" or not isinstance(parameters, dict):
        raise BadRequest("auto_failover_policy needs policy_type min_available and its parameters")
    missing = [key for key in ("min_limit", "usage_threshold") if key not in parameters]
    if missing:
        raise BadRequest(f"auto_failover_policy lacks {' and '.join(missing)}")
    kept = {key: str(value) for key, value in parameters.items()}
    return {**lists, "auto_failover_policy": {"parameters": kept, "policy_type": "min_available"}}


def _fits(pattern: str, broker: str) -> bool:
    """A pattern that only asks for a beginning is understood; a stranger's regular expression is not run."""
    return broker.startswith(re.split(r"[.*+?\[({\\|^$]", pattern, maxsplit=1)[0] or pattern)
