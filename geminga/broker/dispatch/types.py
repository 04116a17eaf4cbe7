"""Which dispatcher a consumer gets, and who may join whom, in Pulsar's words."""

from __future__ import annotations

from collections.abc import Callable

from geminga.broker.dispatch.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Consumer
from geminga.broker.dispatch.dispatcher import Dispatcher, Surroundings
from geminga.broker.dispatch.key_shared import KeySharedDispatcher, key_shared_mode
from geminga.broker.dispatch.shared import SharedDispatcher
from geminga.broker.dispatch.single import ExclusiveDispatcher, FailoverDispatcher
from geminga.errors import ConsumerBusy, NotAllowed

DISPATCHERS: dict[str, Callable[[Surroundings], Dispatcher]] = {
    EXCLUSIVE: ExclusiveDispatcher,
    FAILOVER: FailoverDispatcher,
    SHARED: SharedDispatcher,
}


def dispatcher_for(consumer: Consumer, present: Dispatcher | None, around: Surroundings) -> Dispatcher:
    """The present dispatcher if the consumer may join it or it fits and is idle, else a new one.

    Raises ConsumerBusy when the consumer may not join those that are there, NotAllowed when it asks for what
    its type does not have.
    """
    if consumer.read_compacted and consumer.sub_type in (SHARED, KEY_SHARED):
        raise NotAllowed("readCompacted only allowed on failover or exclusive subscriptions")
    if present is not None:
        if present.consumers:
            check_compatible(present, consumer)
            return present
        has_policy = not isinstance(present, KeySharedDispatcher) or present.has_policy_of(consumer)
        if present.sub_type == consumer.sub_type and has_policy:
            return present
    if consumer.sub_type == KEY_SHARED:
        return KeySharedDispatcher(
            around, is_sticky=consumer.is_sticky, allows_out_of_order=consumer.allows_out_of_order
        )
    return DISPATCHERS[consumer.sub_type](around)


def check_compatible(dispatcher: Dispatcher, consumer: Consumer) -> None:
    """Raise ConsumerBusy if the consumer may not join those that the dispatcher has."""
    if consumer.sub_type != dispatcher.sub_type:
        raise ConsumerBusy(
            f"Subscription is of different type. Active subscription type of '{dispatcher.sub_type}' is "
            f"different than the connecting consumer's type '{consumer.sub_type}'."
        )
    if not isinstance(dispatcher, KeySharedDispatcher):
        return
    if dispatcher.is_sticky is not consumer.is_sticky:
        raise ConsumerBusy(
            f"Subscription is of different type. Active subscription key_shared mode of '{dispatcher.mode}' "
            f"is different than the connecting consumer's key_shared mode "
            f"'{key_shared_mode(consumer.is_sticky)}'."
        )
    if dispatcher.allows_out_of_order is not consumer.allows_out_of_order:
        difference = (
            "Active subscription allows out of order delivery while the connecting consumer does not allow "
            "it."
            if dispatcher.allows_out_of_order
            else "Active subscription does not allow out of order delivery while the connecting consumer "
            "allows it."
        )
        raise ConsumerBusy(f"Subscription is of different type. {difference}")
