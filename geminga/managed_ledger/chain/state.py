"""The states of a managed ledger, as a table. Any other transition is a bug in Geminga."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class State(enum.Enum):
    """Values are the words that Pulsar's internal stats use."""

    OPENING = "None"
    OPEN = "LedgerOpened"
    """A ledger is being written."""
    ROLLING = "ClosingLedger"
    """The full ledger waits for its last confirmations; new entries queue."""
    CREATING = "CreatingLedger"
    """The next ledger's records are being made durable; new entries queue."""
    CLOSING = "Closing"
    CLOSED = "Closed"
    TERMINATED = "Terminated"
    FENCED = "Fenced"
    """The disk failed. Nothing is accepted or acknowledged until the ledger is opened again."""


ALLOWED: Mapping[State, frozenset[State]] = {
    State.OPENING: frozenset({State.CREATING, State.TERMINATED, State.FENCED}),
    # OPEN again only with the new ledger: the old one's writer is closed, and entries may wait for the new
    # one.
    State.CREATING: frozenset({State.OPEN, State.TERMINATED, State.CLOSING, State.FENCED}),
    State.OPEN: frozenset({State.ROLLING, State.TERMINATED, State.CLOSING, State.FENCED}),
    State.ROLLING: frozenset({State.CREATING, State.TERMINATED, State.CLOSING, State.FENCED}),
    State.TERMINATED: frozenset({State.CLOSING, State.FENCED}),
    State.CLOSING: frozenset({State.CLOSED, State.FENCED}),
    # Fenced is final for this object. What is on disk is unknown, and only opening the topic again finds out.
    State.FENCED: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}

QUEUEING = frozenset({State.ROLLING, State.CREATING})
"""In these states an appended entry waits for the next ledger."""
