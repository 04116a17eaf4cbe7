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
    encode = consumer.encoder.encode
    frames: list[bytes | memoryview] = []
    for entry in entries:
        position = entry.position
        bits = ack_sets[position][1] if position in ack_sets else None
        # Redelivery count 0 always, as Pulsar tells for these types: its tracker is switched off for them.
        encode(frames, position[0], position[1], 0, bits, epoch, entry.body)
    if consumer.notes is not None:
        consumer.notes.dispatched(consumer.name, entries, now_ms, ack_sets, NO_COUNTS)
    return _sent(consumer, entries, sizes, frames, now_ms)


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
    encode = consumer.encoder.encode
    pending_of = consumer.pending.of_ledger
    frames: list[bytes | memoryview] = []
    current_id = -1
    pending: dict[int, int] = {}
    for number, entry in enumerate(entries):
        position = entry.position
        ledger_id, entry_id = position
        if ledger_id != current_id:
            current_id = ledger_id
            # Once for a run of entries of one ledger: a read of new entries never spans two ledgers.
            pending = pending_of(ledger_id)
        size = sizes[number]
        bits = None
        if position in ack_sets:
            size, bits = ack_sets[position]
        # Its messages would be counted twice and settled once: the consumer would end blocked for good.
        assert entry_id not in pending, "an entry is sent again while it is pending"
        pending[entry_id] = slots[number] << SIZE_BITS | size if slots is not None else size
        encode(frames, ledger_id, entry_id, counts.get(position, 0) if counts else 0, bits, None, entry.body)
    if consumer.notes is not None:
        consumer.notes.dispatched(consumer.name, entries, now_ms, ack_sets, counts)
    return _sent(consumer, entries, sizes, frames, now_ms)


def _sent(
    consumer: Consumer,
    entries: Sequence[Entry],
    sizes: Sequence[int],
    frames: list[bytes | memoryview],
    now_ms: int,
) -> int:
    messages = sum(sizes)
    # The encoder adds two buffers for each entry, the second is what the client sent.
    payload_bytes = sum(map(len, frames[1::2]))
    consumer.sent(len(entries), messages, payload_bytes, now_ms)
    # Not before the entries are pending, as in Pulsar's Consumer.sendMessages: a consumer that is
    # disconnected by its write gives back what is pending, and nothing else.
    consumer.outbox.write(frames)
    return messages
