"""The broker's own cursors: Pulsar's names for them, and what each one is for.

A system cursor holds ledgers back like any durable cursor, and is on disk as one. It is no subscription: no
client joins it, nothing is dispatched by it, and it is not in backlogs, quotas, expiry or lists.
`internalStats` shows it, as in Pulsar. All of that follows from `Cursor.is_system`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from geminga.errors import NotAllowed

DEDUPLICATION_CURSOR: Final = "pulsar.dedup"
COMPACTION_CURSOR: Final = "__compaction"
HOLDER: Final = "geminga-restored"
"""The subscription that keeps what `geminga bookie unrecorded restore` brought back, until an operator
deletes it; the next one of a topic has a number behind it. It is no system cursor: clients may consume it.
"""

SYSTEM_CURSORS: Final[Mapping[str, str]] = {
    DEDUPLICATION_CURSOR: "it keeps the state of deduplication",
    COMPACTION_CURSOR: "it keeps all messages of a topic for which compaction was asked, until it is deleted",
}
"""By name, what the cursor does, in words for a client."""


def is_holder(subscription: str) -> bool:
    """Whether a subscription of this name keeps what was restored."""
    return subscription == HOLDER or subscription.startswith(f"{HOLDER}-")


def check_is_no_system_cursor(name: str) -> None:
    """Raise NotAllowed if a subscription may not have this name, because a system cursor has it."""
    purpose = SYSTEM_CURSORS.get(name)
    if purpose is not None:
        raise NotAllowed(f"{name} is the broker's own cursor and no subscription: {purpose}")
