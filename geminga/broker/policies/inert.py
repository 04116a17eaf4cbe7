"""Policies without effect in this broker: one row each, checked, stored and shown as in Pulsar.

A row names the policy, its type, its key in `namespaces policies`, and how each level of the admin API
serves it. No code reads the values.
"""

from __future__ import annotations

from typing import Final

from geminga.broker.policies.endpoint import Endpoint, Policy, count_endpoint
from geminga.broker.policies.inert_values import (
    AutoUpdateStrategy,
    EntryFilters,
    OffloadPolicies,
    SubscriptionAuthMode,
)
from geminga.broker.policies.values import DispatchRate, Int32, Int64

INERT: Final[tuple[Policy, ...]] = (
    Policy(
        "encryption_required",
        bool,
        ("encryption_required",),
        namespace=Endpoint("encryptionRequired", empty="zero", unset=False, removable=False),
        acted_upon=False,
    ),
    Policy(
        "offload_threshold_bytes",
        Int64,
        ("offload_policies",),
        member="managedLedgerOffloadThresholdInBytes",
        whole=OffloadPolicies(),
        namespace=Endpoint("offloadThreshold", "PUT", empty="zero", unset=-1, removable=False),
        acted_upon=False,
    ),
    Policy(
        "offload_threshold_s",
        Int64,
        ("offload_policies",),
        member="managedLedgerOffloadThresholdInSeconds",
        whole=OffloadPolicies(),
        namespace=Endpoint(
            "offloadThresholdInSeconds", "PUT", empty="zero", unset=-1, removable=False, status=200
        ),
        acted_upon=False,
    ),
    Policy(
        "offload_deletion_lag_ms",
        Int64,
        ("offload_policies",),
        member="managedLedgerOffloadDeletionLagInMillis",
        whole=OffloadPolicies(),
        namespace=Endpoint("offloadDeletionLagMs", "PUT", empty="zero"),
        acted_upon=False,
    ),
    Policy(
        "offload_policies",
        OffloadPolicies,
        ("offload_policies",),
        namespace=Endpoint(
            "offloadPolicies",
            remove_path="removeOffloadPolicies",
            refusal="The offloadPolicies must be specified for namespace offload.",
        ),
        topic=Endpoint(
            "offloadPolicies", refusal="The offloadPolicies must be specified for namespace offload."
        ),
        acted_upon=False,
    ),
    Policy(
        "entry_filters",
        EntryFilters,
        ("entryFilters",),
        namespace=Endpoint("entryFilters"),
        topic=Endpoint("entryFilters", applied=EntryFilters()),
        acted_upon=False,
    ),
    Policy(
        "replicator_dispatch_rate",
        DispatchRate,
        ("replicatorDispatchRate",),
        is_rate=True,
        namespace=Endpoint("replicatorDispatchRate"),
        topic=Endpoint("replicatorDispatchRate", applied=DispatchRate(0, 0, False, 1)),
        acted_upon=False,
    ),
    Policy(
        "subscription_auth_mode",
        SubscriptionAuthMode,
        ("subscription_auth_mode",),
        namespace=Endpoint("subscriptionAuthMode", unset="None", removable=False),
        acted_upon=False,
    ),
    Policy(
        "schema_auto_update_compatibility",
        AutoUpdateStrategy,
        ("schema_auto_update_compatibility_strategy",),
        namespace=Endpoint("schemaAutoUpdateCompatibilityStrategy", "PUT", unset_status=204, removable=False),
        acted_upon=False,
    ),
    Policy(
        "dispatcher_pause_on_ack_state",
        bool,
        ("dispatcherPauseOnAckStatePersistentEnabled",),
        namespace=Endpoint("dispatcherPauseOnAckStatePersistent", unset=False, fixed=True, removed=False),
        topic=Endpoint("dispatcherPauseOnAckStatePersistent", unset=False, fixed=True, applied=False),
        acted_upon=False,
    ),
    Policy(
        "message_bytes_max",
        Int32,
        topic=count_endpoint(
            "maxMessageSize",
            "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in "
            "the broker-level",
        )._replace(unset_status=204),
        acted_upon=False,
    ),
    # Those of a topic are checked by `admin/routes/topic/clusters.py`.
    Policy("replication_clusters", list[str], acted_upon=False),
    Policy("shadow_topics", list[str], acted_upon=False),
    Policy(
        "migrated",
        bool,
        ("migrated",),
        namespace=Endpoint("migration", empty="zero", readable=False, removable=False),
        acted_upon=False,
    ),
)
