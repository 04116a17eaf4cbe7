"""What a topic's subscriptions hold back for later: the broker's side of delayed delivery.

An entry with a delivery time comes to `SubscriptionDelays.hold_back` when a dispatcher has read it, or, where
one index is shared, to `TopicDelays.appended` when it is stored. `TopicDelays` is the door to the index: one
for each subscription, or one for the topic with a view for each. It makes them by `open_index.py`. From there
it is `View` and `DelayedIndex` (`tracker/index`), `Buckets` and `BucketStore` (`tracker/buckets`): five steps
from a topic to a bucket. Read `SubscriptionDelays` in `subscription_delays.py` first, then `topic_delays.py`.

This is the place of Pulsar's DelayedDeliveryTrackerFactory and of the delayed part of its Shared dispatcher
(PIP-26; PIP-195 with buckets). A dispatcher asks only `SubscriptionDelays` and its `View`, so that it does
not know whether the index is in memory, in buckets, own or shared.

Must not be broken: an entry is held back exactly while the tracker contains it, and what the index lost or
had no room for is in the ranges to be read again; between the two no entry may fall through. Each object gets
what it needs in its constructor, and nothing is assigned into another. The tracker is imported with the first
delayed message, since numpy costs more than a start may take. Times, buckets and bytes belong to `tracker`,
sending to `dispatch`.
"""
