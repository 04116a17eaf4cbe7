"""Policies of broker, namespace and topic, and the effective policies of a topic.

A topic's own value wins over its global one (`isGlobal=true`: in Pulsar that of all clusters), that one over
its namespace's, and that one over the broker's; each policy by itself. When a call that changes one returns,
the change is durable, and every loaded topic that it concerns applies it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from geminga.broker.flow.slices import Pace
from geminga.broker.policies.endpoint import Policy
from geminga.broker.policies.records import (
    AGE,
    QUOTAS,
    QUOTAS_KEY,
    STORAGE,
    Overrides,
    by_type,
    changed_quotas,
    check_namespace_retention,
    fits,
    from_namespace,
    from_topic,
    retention_of,
    stored_quotas,
    with_value,
)
from geminga.broker.policies.table import BY_NAME, POLICIES, check
from geminga.broker.policies.values import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    DispatchRate,
    InactiveTopic,
    Persistence,
    PolicyInvalid,
    PublishRate,
    Retention,
    SubscribeRate,
    shown,
)
from geminga.errors import BadVersion, KeyMissing, NamespaceNotFound, NotAllowed
from geminga.metadata import records
from geminga.metadata.records import TopicPoliciesRecord
from geminga.metadata.store import MUST_NOT_EXIST, MetadataStore

if TYPE_CHECKING:
    from geminga.broker.policies.namespaces import Namespaces
    from geminga.names import NamespaceName, TopicName

log = logging.getLogger("geminga.broker")

NAMESPACES_REMEMBERED_MAX = 1_000
TOLD_AT_ONCE = 10
"""Topics that are told of a change between two turns of the loop: a quarter of a millisecond."""
NO_TOPIC_POLICIES = TopicPoliciesRecord()
NOTHING: Overrides = {}
"""The own policies of nearly every topic: one shared object."""
SUBSCRIPTION_RATES, SUBSCRIPTION_RATES_MAX = "subscription_rates", 1_000
NO_QUOTA = BacklogQuota(-1, -1, "producer_request_hold")


class EffectivePolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The effective policies of one topic. Counts: 0 is no limit. The defaults are Pulsar's `broker.conf`."""

    retention: Retention = Retention()
    message_ttl_s: int = 0
    """0: nothing expires."""
    quota_size: BacklogQuota = NO_QUOTA
    """`limit_size` is in force: the bytes that a subscription may have in its backlog."""
    quota_age: BacklogQuota = NO_QUOTA
    """`limit_time` is in force: the seconds since the oldest message of a backlog was published."""
    delayed_delivery: DelayedDelivery = DelayedDelivery(1000, True, 0)
    ttl_from_due_time: bool = False
    """A delayed message's TTL begins when it is due."""
    quota_from_due_time: bool = False
    """Messages that are not due do not count for backlog quotas, and ages count from the due time."""
    publish_rate: PublishRate | None = None
    broker_publish_rate: PublishRate = PublishRate()
    """The rate that applies if neither topic nor namespace has one."""
    dispatch_rate: DispatchRate = DispatchRate(period_s=1)
    subscription_dispatch_rate: DispatchRate = DispatchRate(period_s=1)
    subscription_rates: Mapping[str, DispatchRate] = {}
    """By name, the rates of the topic's subscriptions that have their own."""
    subscribe_rate: SubscribeRate = SubscribeRate(0, 30)
    deduplication: bool = False
    deduplication_snapshot_interval_s: int = 120
    producers_max: int = 0
    consumers_max: int = 0
    consumers_max_per_subscription: int = 0
    subscriptions_max: int = 0
    unacked_max_per_consumer: int = 50_000
    unacked_max_per_subscription: int = 200_000
    subscription_types: Sequence[str] = ("Exclusive", "Shared", "Failover", "Key_Shared")
    auto_subscription_creation: AutoSubscriptionCreation = AutoSubscriptionCreation(True)
    persistence: Persistence = Persistence(1, 1, 1, 1.0)
    compaction_threshold_bytes: int = 0
    inactive_topic: InactiveTopic = InactiveTopic("delete_when_no_subscriptions", 60, True)
    schema_compatibility: str = "FULL"
    schema_validation_enforced: bool = False
    schema_auto_update: bool = True
    """Whether a producer may register a new version of a schema."""
    subscription_expiration_minutes: int = 0
    auto_topic_creation: AutoTopicCreation = AutoTopicCreation(True, "non-partitioned", 1)
    """The rule for new topics, from the policies of their namespace."""
    topics_max: int = 0
    """The limit of topics in the namespace; each partition counts."""

    def with_overrides(self, overrides: Overrides) -> EffectivePolicies:
        """A copy with these values. Policies without effect are no attributes here."""
        known = {name: value for name, value in overrides.items() if name in self.__struct_fields__}
        return msgspec.structs.replace(self, **known) if known else self


Listener = Callable[[EffectivePolicies], Awaitable[None] | None]
"""What it returns is waited for: a topic tells its subscriptions in slices."""


class _Attached:
    """A topic that is loaded, or has loaded partitions: its own policies, and the listeners for changes."""

    __slots__ = ("listeners", "overrides")

    def __init__(self, overrides: Overrides) -> None:
        self.overrides = overrides
        self.listeners: dict[Listener, None] = {}


class Policies:
    """The policies of one broker. Reads are plain calls, changes wait for the disk."""

    def __init__(self, metadata: MetadataStore, namespaces: Namespaces, defaults: EffectivePolicies) -> None:
        """`defaults` come from the broker's configuration."""
        self.defaults = defaults
        self._metadata = metadata
        self._namespaces = namespaces
        self._of_namespace: dict[str, Overrides] = {}
        self._said: set[str] = set()
        self._shared: dict[str, EffectivePolicies] = {}
        """By namespace, the effective policies of its topics without policies of their own."""
        self._attached: dict[NamespaceName, dict[TopicName, _Attached]] = {}
        self._telling: dict[NamespaceName, set[trio.Event]] = {}
        """Set when a change is in force; here until then."""
        self.changes = 0
        """How often a policy of any topic has changed."""
        namespaces.call_on_policies_change(self._namespace_changed, self._told)
        for policy in POLICIES:
            if policy.warning:
                self._say_how_it_differs(policy, getattr(defaults, policy.name), "the broker's default")

    # -- effective policies ----------------------------------------------------------------------------------

    def effective(self, topic: TopicName) -> EffectivePolicies:
        """The effective policies of a topic or partition, which need not be loaded, or exist."""
        return self._effective(topic.namespace, self._topic_overrides(topic))

    def _effective(self, namespace: NamespaceName, of_topic: Overrides) -> EffectivePolicies:
        """Topics without policies of their own share one object for their namespace."""
        key = str(namespace)
        shared = self._shared.get(key)
        if shared is None:
            overrides = self._namespace_overrides(namespace)
            shared = self.defaults.with_overrides(overrides)
            if len(self._shared) >= NAMESPACES_REMEMBERED_MAX:
                self._shared.clear()
            self._shared[key] = shared
        return shared.with_overrides(of_topic)

    def attach(self, topic: TopicName, listener: Listener) -> EffectivePolicies:
        """The current effective policies. `listener` is called with the new ones after each change, until
        `detach`.
        """
        topics = self._attached.setdefault(topic.namespace, {})
        attached = topics.get(topic.partitioned_name)
        if attached is None:
            attached = topics[topic.partitioned_name] = _Attached(self._topic_overrides(topic))
        attached.listeners[listener] = None
        return self._effective(topic.namespace, attached.overrides)

    def detach(self, topic: TopicName, listener: Listener) -> None:
        """Remove the listener. May be repeated."""
        topics = self._attached.get(topic.namespace, {})
        attached = topics.get(topic.partitioned_name)
        if attached is not None:
            attached.listeners.pop(listener, None)
            if not attached.listeners:
                del topics[topic.partitioned_name]
        if not topics:
            self._attached.pop(topic.namespace, None)

    def _namespace_overrides(self, name: NamespaceName) -> Overrides:
        key = str(name)
        known = self._of_namespace.get(key)
        if known is None:
            try:
                given = self._namespaces.record(name).policies
            except NamespaceNotFound:
                return {}
            known = from_namespace(given, self._namespaces.cluster, key)
            if len(self._of_namespace) >= NAMESPACES_REMEMBERED_MAX:
                self._of_namespace.clear()
            self._of_namespace[key] = known
        return known

    def _topic_overrides(self, topic: TopicName) -> Overrides:
        """What holds for the topic: its own values, and its global ones where it has none."""
        record = self._topic_record(topic)[1]
        own = from_topic(record.policies, topic) if record.policies else NOTHING
        return {**from_topic(record.global_policies, topic), **own} if record.global_policies else own

    def _set_for(self, topic: TopicName, is_global: bool) -> Overrides:
        """What was set for the topic itself, or globally."""
        record = self._topic_record(topic)[1]
        given = record.global_policies if is_global else record.policies
        return from_topic(given, topic) if given else NOTHING

    def _topic_record(self, topic: TopicName) -> tuple[int, TopicPoliciesRecord]:
        path = records.topic_policies_path(topic)
        stored = self._metadata.get(path)
        if stored is None:
            return MUST_NOT_EXIST, NO_TOPIC_POLICIES
        return stored.version, records.decode(TopicPoliciesRecord, stored.value, path)

    # -- values that were set --------------------------------------------------------------------------------

    def namespace_value(self, name: NamespaceName, policy: Policy) -> Any:
        """The namespace's own value, None if it has none. Raises `NamespaceNotFound`."""
        self._namespaces.check_exists(name)
        return self._namespace_overrides(name).get(policy.name)

    def topic_value(self, topic: TopicName, policy: Policy, *, is_global: bool = False) -> Any:
        """The topic's own value, or its global one; None if it has none."""
        return self._set_for(topic, is_global).get(policy.name)

    def applied(self, topic: TopicName, *, is_global: bool) -> EffectivePolicies:
        """As Pulsar shows what holds: a topic's own values do not show the global ones behind them, and the
        global ones do not show the topic's own. `effective` has both.
        """
        return self._effective(topic.namespace, self._set_for(topic, is_global))

    def namespace_quotas(self, name: NamespaceName) -> dict[str, BacklogQuota]:
        """The namespace's own quotas, by type. Raises `NamespaceNotFound`."""
        self._namespaces.check_exists(name)
        return by_type(self._namespace_overrides(name))

    def topic_quotas(self, topic: TopicName, *, is_global: bool = False) -> dict[str, BacklogQuota]:
        return by_type(self._set_for(topic, is_global))

    def applied_quotas(self, topic: TopicName, *, is_global: bool = False) -> dict[str, BacklogQuota]:
        """The topic's if it has any, else the namespace's, else the broker's: as Pulsar shows them.

        The effective quotas are decided for each type by itself: see `effective`.
        """
        defaults = {STORAGE: self.defaults.quota_size, AGE: self.defaults.quota_age}
        own = self.topic_quotas(topic, is_global=is_global)
        return own or by_type(self._namespace_overrides(topic.namespace)) or defaults

    # -- changes ---------------------------------------------------------------------------------------------

    async def set_for_namespace(self, name: NamespaceName, policy: Policy, value: Any) -> None:
        """Durable and in effect on return; None removes the value. Raises `NamespaceNotFound`,
        `PolicyRefused`.
        """
        check(value)

        def change(policies: dict[str, Any]) -> dict[str, Any]:
            if isinstance(value, Retention):
                check_namespace_retention(value, policies)
            return with_value(policies, policy, value, self._namespaces.cluster)

        await self._namespaces.change_policies(name, change)
        self._say_how_it_differs(policy, value, name)

    async def set_namespace_quota(self, name: NamespaceName, kind: str, quota: BacklogQuota | None) -> None:
        """As `set_for_namespace`."""

        def change(policies: dict[str, Any]) -> dict[str, Any]:
            if quota is not None and kind == STORAGE:
                retention = retention_of(policies)
                if not fits(quota, retention):
                    raise PolicyInvalid(
                        "Backlog Quota exceeds configured retention quota for namespace. "
                        "Please increase retention quota and retry"
                    )
            return {**policies, QUOTAS_KEY: changed_quotas(policies.get(QUOTAS_KEY), kind, quota)}

        await self._namespaces.change_policies(name, change)

    async def set_for_topic(
        self, topic: TopicName, policy: Policy, value: Any, *, is_global: bool = False
    ) -> None:
        """Durable and in effect on return, for every partition; None removes it. `PolicyRefused`."""
        check(value)

        def change(policies: dict[str, Any]) -> dict[str, Any]:
            if isinstance(value, Retention):
                quotas = {**self.namespace_quotas(topic.namespace), **stored_quotas(policies.get(QUOTAS))}
                if not all(fits(quota, value) for quota in quotas.values()):
                    raise PolicyInvalid(
                        "Retention Quota must exceed configured backlog quota for topic. "
                        "Please increase retention quota and retry"
                    )
            kept = {key: stored for key, stored in policies.items() if key != policy.name}
            return kept if value is None or value == [] else {**kept, policy.name: shown(value)}

        await self._change_topic(topic, change, is_global)
        self._say_how_it_differs(policy, value, topic)

    def applied_inert(self, topic: TopicName, policy: Policy, *, is_global: bool = False) -> Any:
        """A policy that nothing here goes by: the topic's value, else its namespace's, else None."""
        own = self.topic_value(topic, policy, is_global=is_global)
        return own if own is not None else self._namespace_overrides(topic.namespace).get(policy.name)

    async def set_subscription_rate(
        self, topic: TopicName, name: str, rate: DispatchRate | None, *, is_global: bool = False
    ) -> None:
        """As `set_for_topic`, of one subscription. `NotAllowed` for one too many."""
        key = SUBSCRIPTION_RATES

        def change(policies: dict[str, Any]) -> dict[str, Any]:
            rates = {other: value for other, value in (policies.get(key) or {}).items() if other != name}
            if rate is not None:
                if len(rates) >= SUBSCRIPTION_RATES_MAX:
                    raise NotAllowed(
                        f"at most {SUBSCRIPTION_RATES_MAX} subscriptions have a rate of their own"
                    )
                rates[name] = shown(rate)
            kept = {other: stored for other, stored in policies.items() if other != key}
            return {**kept, key: rates} if rates else kept

        await self._change_topic(topic, change, is_global)

    async def set_topic_quota(
        self, topic: TopicName, kind: str, quota: BacklogQuota | None, *, is_global: bool = False
    ) -> None:
        """As `set_for_topic`."""

        def change(policies: dict[str, Any]) -> dict[str, Any]:
            retention = self.topic_value(topic, BY_NAME["retention"]) or self.namespace_value(
                topic.namespace, BY_NAME["retention"]
            )
            if quota is not None and not fits(quota, retention):
                raise PolicyInvalid(
                    "Backlog Quota exceeds configured retention quota for topic. "
                    "Please increase retention quota and retry"
                )
            return {**policies, QUOTAS: changed_quotas(policies.get(QUOTAS), kind, quota)}

        await self._change_topic(topic, change, is_global)

    async def forget_topic(self, topic: TopicName) -> None:
        """Remove all of the topic's policies, the global ones too; durable on return."""
        try:
            await self._metadata.delete(records.topic_policies_path(topic))
        except KeyMissing:
            await self._told(topic.namespace)
            return
        await self._topic_changed(topic)

    async def _change_topic(
        self, topic: TopicName, change: Callable[[dict[str, Any]], dict[str, Any]], is_global: bool
    ) -> None:
        path = records.topic_policies_path(topic)
        name = "global_policies" if is_global else "policies"
        while True:
            version, record = self._topic_record(topic)
            policies = getattr(record, name)
            changed = change(policies)
            if changed == policies:
                await self._told(topic.namespace)
                return
            encoded = records.encode(msgspec.structs.replace(record, **{name: changed}))
            try:
                await self._metadata.put(path, encoded, version)
                break
            except BadVersion:
                continue
        await self._topic_changed(topic)

    def use_defaults(self, defaults: EffectivePolicies) -> None:
        """Replace the values of the configuration, before a topic is loaded."""
        assert not self._attached, "loaded topics would not hear of it"
        self.defaults = defaults
        self._shared.clear()

    async def change_defaults(self, defaults: EffectivePolicies) -> None:
        """Replace the values of the configuration; in effect for every loaded topic on return."""
        self.defaults = defaults
        self.changes += 1
        self._shared.clear()
        for namespace in tuple(self._attached):
            await self._tell(namespace, tuple(self._attached.get(namespace, {}).values()))

    # -- telling ---------------------------------------------------------------------------------------------

    async def _namespace_changed(self, name: NamespaceName) -> None:
        # Before the first await: a topic that is loaded while others are told must get what holds now.
        self.changes += 1
        self._of_namespace.pop(str(name), None)
        self._shared.pop(str(name), None)
        await self._tell(name, tuple(self._attached.get(name, {}).values()))

    async def _topic_changed(self, topic: TopicName) -> None:
        self.changes += 1
        attached = self._attached.get(topic.namespace, {}).get(topic.partitioned_name)
        if attached is not None:
            attached.overrides = self._topic_overrides(topic)
            await self._tell(topic.namespace, (attached,))

    async def _tell(self, name: NamespaceName, topics: Iterable[_Attached]) -> None:
        """Tell each topic what holds for it, and let all other tasks run now and then.

        Changes at the same time leave what was stored last: each tells a topic what holds at that moment.
        """
        done = trio.Event()
        self._telling.setdefault(name, set()).add(done)
        pace, told = Pace(), 0
        try:
            for attached in topics:
                for listener in tuple(attached.listeners):
                    if listener in attached.listeners:  # the topic may have been closed meanwhile
                        waiting = listener(self._effective(name, attached.overrides))
                        if waiting is not None:
                            await waiting
                    told += 1
                    if told % TOLD_AT_ONCE == 0:
                        await pace.turn()
        finally:
            done.set()
            self._telling[name].discard(done)
            if not self._telling[name]:
                del self._telling[name]

    async def _told(self, name: NamespaceName) -> None:
        """Return when the changes that were made before this call are in force: the request that repeats one
        must not be answered sooner.
        """
        for done in tuple(self._telling.get(name, ())):
            await done.wait()

    def _say_how_it_differs(self, policy: Policy, value: object, owner: object) -> None:
        """Log once for each policy that it has no effect here, or another one than in Pulsar."""
        if value is None or policy.name in self._said:
            return
        if not policy.acted_upon:
            self._said.add(policy.name)
            log.warning("%s: %s is stored and shown, and has no effect in this broker", owner, policy.name)
        elif policy.warning and value:
            self._said.add(policy.name)
            log.warning("%s: %s: %s", owner, policy.name, policy.warning)
