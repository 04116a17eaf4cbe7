"""The open rooms below the broker, and their settings, from which the broker's parts are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from geminga.broker.flow.broker_figures import BrokerFigures
from geminga.broker.flow.coalescing import Coalescing
from geminga.events.recording import Record, unrecorded

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie
    from geminga.broker.delays.settings import DelaySettings, NewBucketStore
    from geminga.broker.flow.client_metadata import ClientMetadata
    from geminga.broker.flow.outbox import Outgoing
    from geminga.broker.flow.publish_memory import PublishMemory
    from geminga.broker.flow.publish_rate import PublishLimit
    from geminga.broker.flow.read_memory import ReadMemory
    from geminga.broker.flow.send_memory import SendMemory
    from geminga.broker.policies.namespaces import Namespaces
    from geminga.broker.policies.policies import Policies
    from geminga.broker.policies.settings import BrokerSettings
    from geminga.broker.subscription.subscription import SubscriptionSettings
    from geminga.clock import Clock
    from geminga.delivery_log.delivery_log import DeliveryLog
    from geminga.managed_ledger.chain.tail_cache import TailCache
    from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
    from geminga.metadata.ledger_ids import LedgerIds
    from geminga.metadata.store import MetadataStore


class Rooms(Struct, frozen=True):
    """Passed down through constructors: nothing in the broker opens a room of its own."""

    bookie: Bookie
    metadata: MetadataStore
    ledger_ids: LedgerIds
    namespaces: Namespaces
    policies: Policies
    clock: Clock
    tail_cache: TailCache
    publish_memory: PublishMemory
    send_memory: SendMemory
    read_memory: ReadMemory
    client_metadata: ClientMetadata
    outgoing: Outgoing
    settings: BrokerSettings
    ledger_settings: ManagedLedgerSettings
    subscription_settings: SubscriptionSettings
    delay_settings: DelaySettings
    new_bucket_store: NewBucketStore | None = None
    """Makes the store of a topic's buckets; None: `BucketStore`."""
    publish_limit: PublishLimit | None = None
    """The limit for all topics together."""
    delivery_log: DeliveryLog | None = None
    record: Record = unrecorded
    """Tells what has happened: `geminga/events`."""
    passed: Callable[[str], None] = lambda name: None
    """Called at each named point of the process, where a fault may end it."""
    figures: BrokerFigures = field(default_factory=BrokerFigures)
    coalescing: Coalescing = field(default_factory=Coalescing)
