"""One case for each path of Pulsar's admin API: every method that `tests/oracle/routes.tsv` has for it.

A case is a list of steps (method, path, body). Paths hold names in braces, which the player fills in; a body
is sent as it is. The order of a case is: what is there without anything set, bodies that should be refused,
the proper body, what is there then, the same for something that does not exist, and the removal.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROUTES = Path(__file__).parents[2] / "oracle" / "routes.tsv"


class Route(NamedTuple):
    resource: str
    method: str
    path: str
    query: str
    body: str


class Step(NamedTuple):
    method: str
    path: str
    body: str | None


NOT_ASKED = {
    ("POST", "/admin/v2/brokers/shutdown"): "it ends the broker",
    (
        "GET",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/backlog",
    ): "the real broker hangs, and all with it",
    (
        "GET",
        "/admin/v2/non-persistent/{tenant}/{namespace}/{topic}/backlog",
    ): "the real broker hangs, and all with it",
}
PARTITIONED = ("partitions", "partitioned-stats", "partitioned-internalStats", "createMissedPartitions")
"""What is asked of a partitioned topic."""
NAMES = {
    "property": "public",
    "cluster": "standalone",
    "clusterName": "standalone",
    "brokerId": "localhost:8080",
    "broker": "localhost:8080",
    "topic-domain": "persistent",
    "subName": "sub",
    "subscription": "sub",
    "subscriptionName": "new-sub",
    "role": "role",
    "key": "key",
    "value": "value",
    "bundle": "0x00000000_0x40000000",
    "bookie": "127.0.0.1:3181",
    "allocator": "default",
    "group": "group",
    "policyName": "isolation",
    "domainName": "domain",
    "configName": "dispatchThrottlingRatePerTopicInMsg",
    "configValue": "1000000",
    "entryId": "0",
    "messagePosition": "1",
    "timestamp": "0",
    "expireTimeInSeconds": "3600",
    "numMessages": "1",
    "version": "0",
    "coordinatorId": "0",
    "timeout": "1000",
    "mostSigBits": "0",
    "leastSigBits": "1",
    "functionName": "f",
    "sourceName": "f",
    "sinkName": "f",
    "instanceId": "0",
    "type": "function",
    "packageName": "p",
}
"""What stands for a name in a path, unless the player has one of its own: tenant, namespace, topic, ledgerId,
resourcegroup, and of the clusters cluster.
"""
BODIES = {
    "AutoSubscriptionCreationOverride": '{"allowAutoSubscriptionCreation": true}',
    "AutoSubscriptionCreationOverrideImpl": '{"allowAutoSubscriptionCreation": true}',
    "AutoTopicCreationOverride": '{"allowAutoTopicCreation": true, "topicType": "partitioned",'
    ' "defaultNumPartitions": 2}',
    "BacklogQuota": '{"limitSize": 1000, "limitTime": 10, "policy": "producer_exception"}',
    "BacklogQuotaImpl": '{"limitSize": 1000, "limitTime": 10, "policy": "producer_exception"}',
    "BookieAffinityGroupData": '{"bookkeeperAffinityGroupPrimary": "g1",'
    ' "bookkeeperAffinityGroupSecondary": "g2"}',
    "BookieInfo": '{"rack": "/r1", "hostname": "h1"}',
    "Boolean": "true",
    "ClusterDataImpl": '{"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:2"}',
    "ClusterPolicies.ClusterUrl": '{"serviceUrl": "http://127.0.0.1:3",'
    ' "brokerServiceUrl": "pulsar://127.0.0.1:4"}',
    "DelayedDeliveryPolicies": '{"active": true, "tickTime": 500, "maxDeliveryDelayInMillis": 5000}',
    "DispatchRateImpl": '{"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": 1000,'
    ' "ratePeriodInSecond": 2, "relativeToPublishRate": false}',
    "EntryFilters": '{"entryFilterNames": "a,b"}',
    "FailureDomainImpl": '{"brokers": ["127.0.0.1:9999"]}',
    "InactiveTopicPolicies": '{"inactiveTopicDeleteMode": "delete_when_no_subscriptions",'
    ' "maxInactiveDurationSeconds": 100, "deleteWhileInactive": true}',
    "Integer": "5",
    "LinkedHashSet<String>": "[]",
    "List<GrantTopicPermissionOptions>": '[{"topic": "persistent://{namespaceName}/topic", "role": "role",'
    ' "actions": ["produce"]}]',
    "List<Long>": "null",
    "List<RevokeTopicPermissionOptions>": '[{"topic": "persistent://{namespaceName}/topic", "role": "role"}]',
    "List<String>": '["standalone"]',
    "Map<String, String>": '{"a": "1", "b": "2"}',
    "MessageIdImpl": '{"ledgerId": {ledgerId}, "entryId": 0, "partitionIndex": -1}',
    "NamespaceIsolationDataImpl": '{"namespaces": ["public/default"], "primary": ["127.0.0.1.*"],'
    ' "secondary": [],'
    ' "auto_failover_policy": {"policy_type": "min_available",'
    ' "parameters": {"min_limit": "1", "usage_threshold": "80"}}}',
    "OffloadPoliciesImpl": '{"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": "file:///x",'
    ' "managedLedgerOffloadThresholdInBytes": 1000}',
    "PersistencePolicies": '{"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1,'
    ' "managedLedgerMaxMarkDeleteRate": 2.5}',
    "Policies": '{"replication_clusters": ["standalone"], "bundles": {"numBundles": 8}}',
    "PostSchemaPayload": '{"type": "STRING", "schema": "", "properties": {}}',
    "PublishRate": '{"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 1000}',
    "ResetCursorData": '{"ledgerId": {ledgerId}, "entryId": 1, "partitionIndex": -1}',
    "ResourceGroup": '{"publishRateInMsgs": 10, "publishRateInBytes": 1000, "dispatchRateInMsgs": 20,'
    ' "dispatchRateInBytes": 2000}',
    "ResourceQuota": '{"msgRateIn": 10, "msgRateOut": 20, "bandwidthIn": 1000, "bandwidthOut": 2000,'
    ' "memory": 80, "dynamic": true}',
    "RetentionPolicies": '{"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}',
    "SchemaAutoUpdateCompatibilityStrategy": '"Forward"',
    "SchemaCompatibilityStrategy": '"FORWARD"',
    "Set<AuthAction>": '["produce", "consume"]',
    "Set<String>": '["role"]',
    "Set<SubscriptionType>": '["Shared"]',
    "String": "group",
    "SubscribeRate": '{"subscribeThrottlingRatePerConsumer": 3, "ratePeriodInSecond": 5}',
    "SubscriptionAuthMode": '"Prefix"',
    "TenantInfoImpl": '{"adminRoles": ["r"], "allowedClusters": ["standalone"]}',
    "boolean": "true",
    "int": "7",
    "long": "7",
}
REFUSED = (None, "", "null", '"text"', "[1]", "{", "-1", "1e400")
"""Bodies that make no sense to most routes."""
MISSING = {"Namespaces": ("{namespace}", "no-such"), "PersistentTopics": ("{topic}", "no-such")}
ORDER = ("PUT", "POST")
NO_POLICY = ("antiAffinity",)
"""Not among the policies; the real broker shows a namespace with a group as one bundle, whatever it has."""
CHANGED_SETTING = "/{configName}/{configValue}"
OWN_QUERY = {
    ("POST", "messageTTL"): "?messageTTL=10",
    ("POST", "{bookie}"): "?group=default",
    ("GET", "{group}"): "?tenant=public",
    ("DELETE", "properties"): "?key=a",
}


def routes() -> list[Route]:
    with ROUTES.open(newline="") as file:
        rows = csv.reader(
            (line for line in file if not line.startswith("#")), delimiter="\t", quoting=csv.QUOTE_NONE
        )
        return [Route(*row) for row in rows]


def pairs() -> set[tuple[str, str]]:
    """Every (method, path) of the real broker."""
    return {(route.method, route.path) for route in routes()}


def cases() -> dict[str, list[Step]]:
    """By path, as the list has it."""
    by_path: dict[str, list[Route]] = defaultdict(list)
    for route in routes():
        by_path[route.path].append(route)
    return {path: _steps(path, by_path[path]) for path in sorted(by_path)}


def _steps(path: str, of_path: list[Route]) -> list[Step]:
    methods = {route.method: route for route in of_path if (route.method, path) not in NOT_ASKED}
    resource, last = of_path[0].resource, path.rpartition("/")[2]
    get = [Step("GET", path + OWN_QUERY.get(("GET", last), ""), None)] if "GET" in methods else []
    if get and "applied:" in methods["GET"].query:
        get.append(Step("GET", f"{path}?applied=true", None))
    has_policies = resource == "Namespaces" and _root(path) != path and last not in NO_POLICY
    shown = [Step("GET", _root(path), None)] if has_policies else []
    steps = list(get)
    changing = [methods[method] for method in ORDER if method in methods]
    for route in changing:
        asked = path + OWN_QUERY.get((route.method, last), "")
        if route.body in BODIES:
            steps += [Step(route.method, asked, body) for body in REFUSED]
            steps += get
        steps.append(Step(route.method, asked, BODIES.get(route.body)))
        steps += [*get, *shown]
        if route.body in BODIES:
            steps.append(Step(route.method, asked, BODIES[route.body]))
    if resource in MISSING and MISSING[resource][0] in path:
        steps += [
            Step(method, path.replace(*MISSING[resource]), BODIES.get(route.body))
            for method, route in sorted(methods.items())
            if method != "PUT" or route.resource != "Namespaces" or _root(path) != path
        ]
    if "DELETE" in methods:
        gone = path + OWN_QUERY.get(("DELETE", last), "")
        steps += [Step("DELETE", gone, None), *get, *shown, Step("DELETE", gone, None)]
    if path.endswith(CHANGED_SETTING):  # it would hold for all cases that follow
        steps.append(Step("DELETE", path.removesuffix("/{configValue}"), None))
    return steps


def _root(path: str) -> str:
    """A namespace's own path, of a path below it."""
    return re.sub(r"(/namespaces/\{[a-z]+\}/\{namespace\}).*", r"\1", path)
