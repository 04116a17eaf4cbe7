"""Message ids as the admin API writes and reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from geminga.broker.policies.values import Int32, Int64
from geminga.position import Position


class MessageId(msgspec.Struct, frozen=True):
    """A place as a body names it, or the one behind it."""

    ledger_id: Int64 = msgspec.field(default=0, name="ledgerId")
    entry_id: Int64 = msgspec.field(default=0, name="entryId")
    partition_index: Int32 = msgspec.field(default=-1, name="partitionIndex")
    excluded: bool = False
    is_excluded: bool = msgspec.field(default=False, name="isExcluded")

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)


def shown_id(position: Position, partition_index: int = -1, *, batch_index: int = -1) -> dict[str, Any]:
    """As Pulsar prints one; of a message of a batch it prints more."""
    shown = {
        "ledgerId": position.ledger_id,
        "entryId": position.entry_id,
        "partitionIndex": partition_index,
        "batchIndex": batch_index,
        "batchSize": 0,
    }
    return shown if batch_index < 0 else {**shown, "outstandingAcksInSameBatch": 0, "originalBatchSize": 0}
