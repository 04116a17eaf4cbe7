"""What a dispatcher is given: settings (the names in brackets are `broker.conf`'s), and what it works on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from geminga import limits
from geminga.broker.dispatch.choice import ROUND_ROBIN_ENTRIES_MAX
from geminga.broker.dispatch.hash_ranges import RING_POINTS

if TYPE_CHECKING:
    from geminga.broker.delays.subscription_delays import SubscriptionDelays
    from geminga.broker.dispatch.rate import Throttle
    from geminga.broker.flow.read_memory import ReadMemory
    from geminga.broker.flow.subscription_log import SparseLog
    from geminga.clock import Clock
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger


class SubscriptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of all subscriptions of a topic."""

    read_entries_max: int = 100
    """[dispatcherMaxReadBatchSize]"""
    read_bytes_max: int = 5 * limits.MIB
    """[dispatcherMaxReadSizeBytes]"""
    round_robin_entries_max: int = ROUND_ROBIN_ENTRIES_MAX
    """[dispatcherMaxRoundRobinBatchSize]"""
    consumers_max: int = 0
    """0: no limit [maxConsumersPerSubscription]"""
    unacked_max_per_consumer: int = 50_000
    """0: no limit [maxUnackedMessagesPerConsumer]"""
    unacked_max_per_subscription: int = 200_000
    """0: no limit [maxUnackedMessagesPerSubscription]"""
    # Off in a broker's configuration unless it is set, as in Pulsar: a batch then comes again as a whole.
    batch_index_acks: bool = True
    """[acknowledgmentAtBatchIndexLevelEnabled]"""
    delayed_delivery: bool = True
    """[delayedDeliveryEnabled]"""
    failover_delay_ms: int = 1_000
    """How long a new active consumer waits, so that acks of the one before may still arrive
    [activeConsumerFailoverDelayTimeMillis]"""
    failover_by_hash: bool = False
    """[activeConsumerFailoverConsistentHashing]"""
    key_shared_ring: bool = True
    """[subscriptionKeySharedUseConsistentHashing]"""
    key_shared_ring_points: int = RING_POINTS
    """[subscriptionKeySharedConsistentHashingReplicaPoints]"""
    look_ahead_max_per_consumer: int = 2_000
    """Entries that may be read past blocked keys [keySharedLookAheadMsgInReplayThresholdPerConsumer]"""
    look_ahead_max_per_subscription: int = 20_000
    """[keySharedLookAheadMsgInReplayThresholdPerSubscription]"""
    read_retry_ms_min: int = 15_000
    """[dispatcherReadFailureBackoffInitialTimeInMs]"""
    read_retry_ms_max: int = 60_000
    """[dispatcherReadFailureBackoffMaxTimeInMs]"""


class SettingsInForce(Protocol):
    """Where a part of a dispatcher finds the settings that hold now."""

    @property
    def settings(self) -> SubscriptionSettings: ...


class Surroundings(msgspec.Struct, kw_only=True):
    """What the parts of a dispatcher work on. One for each subscription, and for all the dispatchers that it
    has one after the other.
    """

    topic: str
    subscription: str
    partition_index: int
    ledger: ManagedLedger
    cursor: Cursor
    settings: SubscriptionSettings
    """Those in force now: looked up with each use, never kept."""
    clock: Clock
    delayed: SubscriptionDelays
    wake: Callable[[], None]
    """Has the subscription's task run a round soon."""
    log: SparseLog
    throttle: Throttle
    reads: ReadMemory

    def apply(self, settings: SubscriptionSettings) -> None:
        self.settings = settings
