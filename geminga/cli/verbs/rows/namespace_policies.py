"""Verbs of policies that only namespaces have, and whose verbs are not alike."""

from __future__ import annotations

from typing import Any

from geminga.cli.admin.admin_http import Admin, Raw, RequestFailed
from geminga.cli.arguments.options import duration_ms, positive
from geminga.cli.verbs.rows.policies import plain
from geminga.cli.verbs.rows.values import seconds, size_bytes
from geminga.cli.verbs.rows.verb import Flags, Verb, flag, path_of, switch

MINUTE_MS = 60_000
THRESHOLDS = ("offloadThreshold", "offloadThresholdInSeconds")
STRATEGIES = {"full": "Full", "backward": "Backward", "forward": "Forward"}


def _auto_topic(flags: Flags) -> dict[str, Any]:
    if flags.enable is flags.disable:
        raise RequestFailed("give either --enable or --disable")
    if flags.disable:
        return {"allowAutoTopicCreation": False}
    if (flags.type == "partitioned") is (flags.num_partitions is None):
        raise RequestFailed("--num-partitions belongs to --type partitioned")
    return {
        "allowAutoTopicCreation": True,
        "topicType": flags.type,
        "defaultNumPartitions": flags.num_partitions,
    }


def _strategy(flags: Flags) -> str:
    if flags.disabled:
        return "AutoUpdateDisabled"
    known = STRATEGIES.get((flags.compatibility or "").lower())
    if known is None:
        raise RequestFailed("give --disabled, or --compatibility Full, Backward or Forward")
    return known


def _get_thresholds(admin: Admin, flags: Flags) -> Any:
    base = path_of("namespaces/{namespace}", flags)
    size, age = (admin.call("GET", f"{base}/{name}") for name in THRESHOLDS)
    if flags.json:
        return {"offloadThresholdInBytes": size, "offloadThresholdInSeconds": age}
    return [
        f"offloadThresholdInBytes: {size}",
        f"offloadThresholdInSeconds: {'null' if age is None else age}",
    ]


def _set_thresholds(admin: Admin, flags: Flags) -> None:
    base = path_of("namespaces/{namespace}", flags)
    for name, value in zip(THRESHOLDS, (flags.size, flags.time), strict=True):
        admin.call("PUT", f"{base}/{name}", value)


def _lag_text(answer: Any, _: Flags) -> str:
    if answer is None:
        return "Unset for namespace. Defaulting to broker setting."
    return f"{int(answer) // MINUTE_MS} minute(s)"


def more_policies(base: str) -> dict[str, Verb]:
    """Of the namespaces at `base`."""
    topic_creation = f"{base}/autoTopicCreation"
    strategy = f"{base}/schemaAutoUpdateCompatibilityStrategy"
    lag = f"{base}/offloadDeletionLagMs"
    group = f"{base}/resourcegroup"
    return {
        "get-auto-topic-creation": Verb("show which topics are created by use", "GET", topic_creation),
        "set-auto-topic-creation": Verb(
            "set which topics are created by use",
            "POST",
            topic_creation,
            (
                switch("--enable", "-e", help="create topics when they are used"),
                switch("--disable", "-d", help="do not"),
                flag(
                    "--type",
                    "-t",
                    choices=("partitioned", "non-partitioned"),
                    default="non-partitioned",
                    help="which kind (default: non-partitioned)",
                ),
                flag("--num-partitions", "-n", type=positive, help="partitions of each"),
            ),
            body=_auto_topic,
        ),
        "remove-auto-topic-creation": Verb("go back to the broker's setting", "DELETE", topic_creation),
        "get-schema-autoupdate-strategy": Verb(
            "show the strategy of older clients' schemas", "GET", strategy, show=plain
        ),
        "set-schema-autoupdate-strategy": Verb(
            "set the strategy of older clients' schemas",
            "PUT",
            strategy,
            (
                flag("--compatibility", "-c", help="Full, Backward or Forward"),
                switch("--disabled", "-d", help="no new schemas"),
            ),
            body=_strategy,
        ),
        "get-offload-threshold": Verb("show when ledgers are offloaded", "GET", base, run=_get_thresholds),
        "set-offload-threshold": Verb(
            "set when ledgers are offloaded",
            "PUT",
            base,
            (
                flag("--size", "-s", type=size_bytes, default=-1, help="from this size on: 10M, 16G"),
                flag("--time", "-t", type=seconds, default=-1, help="from this age on: 10m, 5h"),
            ),
            run=_set_thresholds,
        ),
        "get-offload-deletion-lag": Verb("show how long copies are kept", "GET", lag, show=_lag_text),
        "set-offload-deletion-lag": Verb(
            "set how long copies of offloaded ledgers are kept",
            "PUT",
            lag,
            (flag("--lag", "-l", type=duration_ms, required=True, help="10m, 5h, 3d"),),
            body="lag",
        ),
        "clear-offload-deletion-lag": Verb("go back to the broker's setting", "DELETE", lag),
        "get-resource-group": Verb("show the resource group", "GET", group, show=plain),
        "set-resource-group": Verb(
            "set the resource group",
            "POST",
            f"{group}/{{resource_group}}",
            (flag("--resource-group-name", "-rgn", dest="resource_group", required=True, help="its name"),),
        ),
        "remove-resource-group": Verb("leave the resource group", "DELETE", group),
        "get-anti-affinity-namespaces": Verb(
            "list the namespaces of an anti-affinity group",
            "GET",
            "namespaces/{of_cluster}/antiAffinity/{of_group}",
            (
                flag("--cluster", "-c", dest="of_cluster", required=True, help="the cluster"),
                flag("--group", "-g", dest="of_group", required=True, help="the group"),
                flag("--tenant", "-p", dest="of_tenant", help="a tenant that you administer"),
            ),
            {"tenant": "of_tenant"},
        ),
        "remove-deduplication-snapshot-interval": Verb(
            "unset the deduplication-snapshot-interval",
            "POST",
            f"{base}/deduplicationSnapshotInterval",
            body=lambda flags: Raw(b"null"),
        ),
        "update-migration-state": Verb(
            "say whether the namespace has moved",
            "POST",
            f"{base}/migration",
            (switch("--migrated", help="it has"),),
            body="migrated",
        ),
    }
