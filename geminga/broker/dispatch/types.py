"""Which parts the dispatcher of a type is made of, and which consumer may join which, in Pulsar's words."""

from __future__ import annotations

from geminga.broker.dispatch.chooser import ReplayChooser
from geminga.broker.dispatch.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Consumer
from geminga.broker.dispatch.delaying import DelayedReads
from geminga.broker.dispatch.dispatcher import Dispatcher
from geminga.broker.dispatch.hash_ranges import DrainingSlots
from geminga.broker.dispatch.key_shared import KeyShared, key_shared_mode
from geminga.broker.dispatch.reader import EntryReader
from geminga.broker.dispatch.redelivery import RedeliverySet
from geminga.broker.dispatch.replay import Replay
from geminga.broker.dispatch.settings import Surroundings
from geminga.broker.dispatch.shared import Shared
from geminga.broker.dispatch.single import Exclusive, Failover, Takeover
from geminga.errors import ConsumerBusy, NotAllowed


def dispatcher_for(consumer: Consumer, present: Dispatcher | None, around: Surroundings) -> Dispatcher:
    """The present dispatcher if the consumer may join it or it fits and is idle, else a new one.

    Raises ConsumerBusy when the consumer may not join those that are there, NotAllowed when it asks for what
    its type does not have.
    """
    # Refused as in Pulsar, though nothing is compacted here: a program that works here has to work there.
    if consumer.read_compacted and consumer.sub_type in (SHARED, KEY_SHARED):
        raise NotAllowed("readCompacted only allowed on failover or exclusive subscriptions")
    if present is not None:
        if present.consumers:
            check_compatible(present, consumer)
            return present
        keyed = present.key_shared
        # As in Pulsar's addConsumer, only a first consumer of another type, or policy, replaces a dispatcher.
        if present.sub_type == consumer.sub_type and (keyed is None or keyed.has_policy_of(consumer)):
            return present
    return new_dispatcher(consumer, around)


def new_dispatcher(consumer: Consumer, around: Surroundings) -> Dispatcher:
    """One of the consumer's type and policy, without consumers."""
    if consumer.sub_type == EXCLUSIVE:
        exclusive = Exclusive()
        return Dispatcher(around, exclusive, EntryReader(around, exclusive))
    if consumer.sub_type == FAILOVER:
        failover = Failover(around, around.topic, around.partition_index)
        return Dispatcher(around, failover, EntryReader(around, failover), takeover=Takeover())
    # Chooser and books share one set and one table of draining slots: what is pending, waits or drains is
    # written once.
    redelivery = RedeliverySet()
    draining = DrainingSlots[Consumer]()
    chooser: ReplayChooser = Shared(around, redelivery)
    if consumer.sub_type == KEY_SHARED:
        chooser = KeyShared(
            around,
            redelivery,
            draining,
            is_sticky=consumer.is_sticky,
            allows_out_of_order=consumer.allows_out_of_order,
        )
    reader = EntryReader(around, chooser)
    replay = Replay(around, reader, chooser, redelivery, draining)
    return Dispatcher(around, chooser, reader, replay=replay, delays=DelayedReads(around, reader, replay))


def check_compatible(dispatcher: Dispatcher, consumer: Consumer) -> None:
    """Raise ConsumerBusy if the consumer may not join those that the dispatcher has."""
    if consumer.sub_type != dispatcher.sub_type:
        raise ConsumerBusy(
            f"Subscription is of different type. Active subscription type of '{dispatcher.sub_type}' is "
            f"different than the connecting consumer's type '{consumer.sub_type}'."
        )
    if consumer.sub_type == EXCLUSIVE:
        raise ConsumerBusy("Exclusive consumer is already connected")
    keyed = dispatcher.key_shared
    if keyed is None:
        return
    if keyed.is_sticky is not consumer.is_sticky:
        raise ConsumerBusy(
            f"Subscription is of different type. Active subscription key_shared mode of '{keyed.mode}' "
            f"is different than the connecting consumer's key_shared mode "
            f"'{key_shared_mode(consumer.is_sticky)}'."
        )
    if keyed.allows_out_of_order is not consumer.allows_out_of_order:
        difference = (
            "Active subscription allows out of order delivery while the connecting consumer does not allow "
            "it."
            if keyed.allows_out_of_order
            else "Active subscription does not allow out of order delivery while the connecting consumer "
            "allows it."
        )
        raise ConsumerBusy(f"Subscription is of different type. {difference}")
