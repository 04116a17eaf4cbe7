"""Applies a topic's policies to its settings, and checks which clients they refuse."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from geminga.errors import ConsumerBusy, NotAllowed

if TYPE_CHECKING:
    from geminga.broker.dispatch.settings import SubscriptionSettings
    from geminga.broker.policies.policies import EffectivePolicies
    from geminga.broker.subscription.subscription import Subscription
    from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings


def ledger_settings(settings: ManagedLedgerSettings, policies: EffectivePolicies) -> ManagedLedgerSettings:
    """The settings with the policies' retention; the same object if nothing changes, as for most topics."""
    retention = policies.retention
    if (settings.retention_time_ms, settings.retention_size_bytes) == (
        retention.time_ms,
        retention.size_bytes,
    ):
        return settings
    return msgspec.structs.replace(
        settings, retention_time_ms=retention.time_ms, retention_size_bytes=retention.size_bytes
    )


def subscription_settings(
    settings: SubscriptionSettings, policies: EffectivePolicies
) -> SubscriptionSettings:
    """The settings with the limits of the policies, and with delayed delivery on or off."""
    applied = msgspec.structs.replace(
        settings,
        delayed_delivery=policies.delayed_delivery.active,
        consumers_max=policies.consumers_max_per_subscription,
        unacked_max_per_consumer=policies.unacked_max_per_consumer,
        unacked_max_per_subscription=policies.unacked_max_per_subscription,
    )
    return settings if applied == settings else applied  # one object for most topics


def check_consumer_type(topic: object, sub_type: str, policies: EffectivePolicies) -> None:
    if sub_type not in policies.subscription_types:
        raise NotAllowed(f"Topic {topic} doesn't support {sub_type} sub type!")


def check_consumers(subscriptions: Mapping[str, Subscription], policies: EffectivePolicies) -> None:
    """Raise ConsumerBusy if the topic takes no more consumers."""
    if policies.consumers_max <= 0:
        return
    present = sum(len(subscription.consumers) for subscription in subscriptions.values())
    if policies.consumers_max <= present:
        raise ConsumerBusy("Topic reached max consumers limit")


def check_subscriptions(
    topic: object, name: str, present: Collection[str], policies: EffectivePolicies
) -> None:
    """Raise NotAllowed if `name` would exceed the limit of subscriptions."""
    if name not in present and 0 < policies.subscriptions_max <= len(present):
        raise NotAllowed(f"Exceed the maximum number of subscriptions of the topic: {topic}")
