"""`geminga clusters`."""

from __future__ import annotations

from functools import partial
from typing import Any

from geminga.cli.admin.admin_http import Admin, Raw
from geminga.cli.verbs.rows.running import run_group
from geminga.cli.verbs.rows.values import many, names
from geminga.cli.verbs.rows.verb import Flag, Flags, Verb, flag, path_of, switch

CLUSTER = "clusters/{cluster}"
DOMAIN = "clusters/{cluster}/failureDomains/{domain_name}"
FIELDS = {
    "--url": "serviceUrl",
    "--url-secure": "serviceUrlTls",
    "--broker-url": "brokerServiceUrl",
    "--broker-url-secure": "brokerServiceUrlTls",
    "--proxy-url": "proxyServiceUrl",
    "--proxy-protocol": "proxyProtocol",
    "--auth-plugin": "authenticationPlugin",
    "--auth-parameters": "authenticationParameters",
    "--listener-name": "listenerName",
    "--tls-trust-store-type": "brokerClientTlsTrustStoreType",
    "--tls-trust-store": "brokerClientTlsTrustStore",
    "--tls-trust-store-pwd": "brokerClientTlsTrustStorePassword",
    "--tls-key-store-type": "brokerClientTlsKeyStoreType",
    "--tls-key-store": "brokerClientTlsKeyStore",
    "--tls-key-store-pwd": "brokerClientTlsKeyStorePassword",
    "--tls-trust-certs-filepath": "brokerClientTrustCertsFilePath",
    "--tls-key-filepath": "brokerClientKeyFilePath",
    "--tls-certs-filepath": "brokerClientCertificateFilePath",
}
SWITCHES = {
    "--tls-enable": "brokerClientTlsEnabled",
    "--tls-allow-insecure": "tlsAllowInsecureConnection",
    "--tls-enable-keystore": "brokerClientTlsEnabledWithKeyStore",
}
DATA_FLAGS: tuple[Flag, ...] = (
    *(flag(name, dest=key, metavar="TEXT", help=f"the cluster's {key}") for name, key in FIELDS.items()),
    *(switch(name, dest=key, default=None, help=f"the cluster's {key}") for name, key in SWITCHES.items()),
)
DATA = {key: key for key in (*FIELDS.values(), *SWITCHES.values())}
URLS = {
    "--service-url": "serviceUrl",
    "--service-url-secure": "serviceUrlTls",
    "--broker-url": "brokerServiceUrl",
    "--broker-url-secure": "brokerServiceUrlTls",
}
DOMAIN_NAME = flag("--domain-name", required=True, help="the domain")
BROKERS = flag("--broker-list", **many(names), help="its brokers: a,b,c")


def _list(admin: Admin, flags: Flags) -> list[str]:
    """The broker's own with (*), if that is asked for."""
    found: list[str] = admin.call("GET", "/admin/v2/clusters")
    if not flags.current:
        return found
    own = admin.call("GET", "/admin/v2/brokers/configuration/runtime").get("clusterName")
    return [f"{name}(*)" if name == own else name for name in found]


def _delete(admin: Admin, flags: Flags) -> None:
    if flags.all:
        for tenant in admin.call("GET", "/admin/v2/tenants"):
            admin.call("DELETE", f"/admin/v2/tenants/{tenant}", force=True)
    admin.call("DELETE", path_of(CLUSTER, flags))


def _peers(flags: Flags) -> Any:
    return names(flags.peer_clusters) or Raw(b"null")


VERBS = {
    "list": Verb(
        "list clusters",
        "GET",
        "clusters",
        (switch("--current", "-c", help="mark the broker's own with (*)"),),
        run=_list,
    ),
    "get": Verb("show the addresses of a cluster", "GET", CLUSTER),
    "create": Verb("make a cluster known", "PUT", CLUSTER, DATA_FLAGS, body=DATA),
    "update": Verb("change the addresses of a cluster", "POST", CLUSTER, DATA_FLAGS, body=DATA),
    "delete": Verb(
        "forget a cluster",
        "DELETE",
        CLUSTER,
        (switch("--all", "-a", help="with all tenants, namespaces and topics"),),
        run=_delete,
    ),
    "get-peer-clusters": Verb("list the peers of a cluster", "GET", f"{CLUSTER}/peers"),
    "update-peer-clusters": Verb(
        "set the peers of a cluster",
        "POST",
        f"{CLUSTER}/peers",
        (flag("--peer-clusters", required=True, help='clusters: a,b,c; "": none'),),
        body=_peers,
    ),
    "get-cluster-migration": Verb("show where a cluster moves to", "GET", f"{CLUSTER}/migrate"),
    "update-cluster-migration": Verb(
        "say where a cluster moves to",
        "POST",
        f"{CLUSTER}/migrate",
        (
            switch("--migrated", help="it has moved"),
            *(flag(name, dest=key, metavar="URL", help=f"its new {key}") for name, key in URLS.items()),
        ),
        {"migrated": "migrated"},
        {key: key for key in URLS.values()},
    ),
    "list-failure-domains": Verb("show the failure domains", "GET", f"{CLUSTER}/failureDomains"),
    "get-failure-domain": Verb("show the brokers of a failure domain", "GET", DOMAIN, (DOMAIN_NAME,)),
    "create-failure-domain": Verb(
        "create a failure domain", "POST", DOMAIN, (DOMAIN_NAME, BROKERS), body={"brokers": "broker_list"}
    ),
    "update-failure-domain": Verb(
        "change a failure domain", "POST", DOMAIN, (DOMAIN_NAME, BROKERS), body={"brokers": "broker_list"}
    ),
    "delete-failure-domain": Verb("delete a failure domain", "DELETE", DOMAIN, (DOMAIN_NAME,)),
}
run = partial(run_group, "clusters", VERBS)
