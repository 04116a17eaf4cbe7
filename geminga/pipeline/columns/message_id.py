"""Message ids: ledger, entry and batch index, and their text in options and checkpoints."""

from __future__ import annotations

import re
from typing import NamedTuple

from geminga.pipeline.errors import PipelineError
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import signed

_TEXT = re.compile(r"(-?\d+):(-?\d+)(?::(-?\d+))?")


class MessageId(NamedTuple):
    """One message: ledger, entry, index in its batch (0 if it is alone). Compares in the order of the topic.

    As the end of a range it names the first message that is not in it; that one need not exist.
    """

    ledger_id: int
    entry_id: int
    batch_index: int

    @property
    def entry(self) -> tuple[int, int]:
        return self.ledger_id, self.entry_id

    def after(self) -> MessageId:
        """The id directly after this one, whether or not another message of its batch follows."""
        return MessageId(self.ledger_id, self.entry_id, self.batch_index + 1)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.batch_index}"


EARLIEST = MessageId(-1, -1, 0)
LATEST = MessageId(2**63 - 1, 2**63 - 1, 0)


def parse(text: str) -> MessageId:
    """From "ledger:entry" or "ledger:entry:batch index". Raises `PipelineError`."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise PipelineError(f"{text!r} is not an offset; expected LEDGER:ENTRY or LEDGER:ENTRY:BATCH_INDEX")
    ledger_id, entry_id, batch_index = match.groups(default="0")
    return MessageId(int(ledger_id), int(entry_id), max(int(batch_index), 0))


def of_message_id(message_id: pb.MessageIdData) -> MessageId:
    return MessageId(signed(message_id.ledgerId), signed(message_id.entryId), max(message_id.batch_index, 0))
