"""Turns entries that were given to a consumer into MESSAGE frames in its outbox, and books them as sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from geminga.broker.dispatch.consumer import Consumer
from geminga.broker.dispatch.pending_acks import SIZE_BITS
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.managed_ledger.chain.entry import Entry

AckSets = Mapping[Position, tuple[int, list[int]]]
NO_ACK_SETS: AckSets = {}
NO_COUNTS: Mapping[tuple[int, int], int] = {}


def send(
    consumer: Consumer,
    entries: Sequence[Entry],
    sizes: Sequence[int],
    now_ms: int,
    *,
    ack_sets: AckSets = NO_ACK_SETS,
    epoch: int | None = None,
) -> int:
    """Send to the one consumer of an Exclusive or Failover subscription; returns the messages sent.

    Nothing is kept of what was sent: acknowledgements there move the cursor and nothing else. One write for
    all.
    """
    # Redelivery count 0 always, as Pulsar tells for these types: its tracker is switched off for them.
    if not ack_sets and epoch is None:
        frames, payload_bytes = consumer.encoder.encode_plain(
            [entry.position for entry in entries], [entry.body for entry in entries]
        )
    else:
        frames, payload_bytes = _encode(consumer, entries, ack_sets, NO_COUNTS, epoch)
    if consumer.notes is not None:
        consumer.notes.dispatched(consumer.name, entries, now_ms, ack_sets, NO_COUNTS)
    return _sent(consumer, sizes, frames, payload_bytes, now_ms)


def send_tracked(
    consumer: Consumer,
    entries: Sequence[Entry],
    sizes: Sequence[int],
    now_ms: int,
    *,
    slots: Sequence[int] | None = None,
    ack_sets: AckSets = NO_ACK_SETS,
    counts: Mapping[tuple[int, int], int] = NO_COUNTS,
) -> int:
    """Send to a consumer of a Shared or Key_Shared subscription; returns the messages sent.

    Each entry is pending at the consumer before the outbox gets it. `slots` are the entries' Key_Shared
    slots, `counts` says how often an entry was asked for again.
    """
    positions = [entry.position for entry in entries]
    # Of a batch all messages are pending, those too that were acknowledged before.
    packed: Sequence[int] = sizes
    if ack_sets:
        packed = [
            ack_sets[position][0] if position in ack_sets else size
            for position, size in zip(positions, sizes, strict=True)
        ]
    if slots is not None:
        packed = [slot << SIZE_BITS | size for slot, size in zip(slots, packed, strict=True)]
    consumer.pending.add(positions, packed)
    if not ack_sets and (not counts or counts.keys().isdisjoint(positions)):
        frames, payload_bytes = consumer.encoder.encode_plain(positions, [entry.body for entry in entries])
    else:
        frames, payload_bytes = _encode(consumer, entries, ack_sets, counts, None)
    if consumer.notes is not None:
        consumer.notes.dispatched(consumer.name, entries, now_ms, ack_sets, counts)
    return _sent(consumer, sizes, frames, payload_bytes, now_ms)


def _encode(
    consumer: Consumer,
    entries: Sequence[Entry],
    ack_sets: AckSets,
    counts: Mapping[tuple[int, int], int],
    epoch: int | None,
) -> tuple[list[bytes | memoryview], int]:
    """As `MessageEncoder.encode_plain`, with the optional fields of each entry."""
    encode = consumer.encoder.encode
    frames: list[bytes | memoryview] = []
    for entry in entries:
        position = entry.position
        bits = ack_sets[position][1] if position in ack_sets else None
        encode(frames, position[0], position[1], counts.get(position, 0), bits, epoch, entry.body)
    # The encoder adds two buffers for each entry, the second is what the client sent.
    return frames, sum(map(len, frames[1::2]))


def _sent(
    consumer: Consumer,
    sizes: Sequence[int],
    frames: list[bytes | memoryview],
    payload_bytes: int,
    now_ms: int,
) -> int:
    messages = sum(sizes)
    consumer.sent(len(sizes), messages, payload_bytes, now_ms)
    # Not before the entries are pending, as in Pulsar's Consumer.sendMessages: a consumer that is
    # disconnected by its write gives back what is pending, and nothing else.
    consumer.outbox.write(frames)
    return messages
