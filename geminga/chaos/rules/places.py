"""The places where faults are injected, the kinds of faults of each, and the fields that a kind takes."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol


class HasKind(Protocol):
    @property
    def place(self) -> str: ...

    @property
    def kind(self) -> str: ...


class Kind(NamedTuple):
    """One kind of fault at a place."""

    text: str
    """What it does, in one line."""
    needs: frozenset[str] = frozenset()
    """Fields that a rule of this kind must have."""
    takes: frozenset[str] = frozenset()
    """Other fields that it may have."""
    at_once: bool = False
    """It acts once, when the rule is set, not at an operation of the broker."""
    lasts: bool = False
    """It acts all the time from when the rule is set until it ends, not at an operation."""

    @property
    def when(self) -> frozenset[str]:
        """The fields of a rule of this kind that say when it takes effect."""
        if self.lasts:
            return LASTING
        return frozenset() if self.at_once else WHEN


def _fields(*names: str) -> frozenset[str]:
    return frozenset(names)


WHEN: Final = _fields("probability", "after", "count", "duration_ms", "seed", "keep")
"""Fields that say when a rule takes effect: kinds that act at operations take all of them."""
LASTING: Final = _fields("duration_ms", "keep")
_WIRE = _fields("client", "version", "command", "direction")
_FILE = _fields("operation", "path")
_PATH = _fields("path")
_BUCKET = _fields("operation", "topic", "ledger_id")
_OF_TOPIC = _fields("topic", "subscription")
_WHICH = _fields("which", "ledger_id", "quietly")
_REQUEST = _fields("method", "path")


def _disk_kinds(selectors: frozenset[str]) -> dict[str, Kind]:
    return {
        "slow": Kind("delays an operation", _fields("latency_ms"), selectors),
        "eio": Kind("fails an operation as a broken disk does", takes=selectors),
        "enospc": Kind("fails a write, and reports no free space, as a full disk does", takes=selectors),
        "torn": Kind("writes half of the bytes, then SIGKILL to the broker", takes=selectors),
    }


PLACES: Final[dict[str, dict[str, Kind]]] = {
    "wire": {
        "latency": Kind("delays frames", _fields("latency_ms"), _WIRE | {"jitter_ms"}),
        "throttle": Kind("limits the rate of bytes", _fields("bytes_per_s"), _WIRE),
        "flip": Kind("flips one bit of a frame", takes=_WIRE),
        "cut": Kind("closes the connection with a reset, before the frame", takes=_WIRE),
        "half-close": Kind("ends one direction, before the frame; the other stays open", takes=_WIRE),
        "black-hole": Kind("takes frames and never passes them on; the connection stays open", takes=_WIRE),
        "slice": Kind("passes on a frame in pieces", _fields("slice_bytes"), _WIRE | {"latency_ms"}),
        "error": Kind(
            "answers a request with an error; it is not carried out",
            _fields("command", "error"),
            _fields("client", "version", "direction", "message"),
        ),
    },
    "journal": _disk_kinds(_FILE),
    "entry-log": _disk_kinds(_FILE),
    "index": _disk_kinds(_fields("operation")),
    "metadata": {
        "refused": Kind("refuses a write with a persistence error; nothing is written", takes=_PATH),
        "delayed": Kind("delays a write", _fields("latency_ms"), _PATH),
        "conflict": Kind("answers a write as if another writer had changed the node", takes=_PATH),
    },
    "bucket": {
        "fail": Kind("fails an operation on a bucket with a storage error", takes=_BUCKET),
        "lose": Kind("deletes the ledgers of buckets", _OF_TOPIC, _WHICH, at_once=True),
        "truncate": Kind("cuts off the second half of buckets", _OF_TOPIC, _WHICH, at_once=True),
        "corrupt": Kind("flips a bit in the next segment of buckets", _OF_TOPIC, _WHICH, at_once=True),
    },
    "topic": {
        "unload": Kind("closes a loaded topic; its clients open it again", _fields("topic"), at_once=True),
        "fence": Kind("fences a loaded topic as a failed write does", _fields("topic"), at_once=True),
    },
    "cursor": {
        "property-lost": Kind(
            "removes properties of a cursor, of its index all without a name",
            _OF_TOPIC,
            _fields("name"),
            at_once=True,
        ),
    },
    "process": {
        "kill": Kind("SIGKILL to the broker at a named point", _fields("name")),
        "pause": Kind("stops the event loop once, for a time", _fields("latency_ms"), at_once=True),
    },
    "admin": {
        "latency": Kind("delays a request", _fields("latency_ms"), _REQUEST | {"jitter_ms"}),
        "error": Kind(
            "answers a request with a status; it is not carried out",
            _fields("status"),
            _REQUEST | {"message"},
        ),
        "cut": Kind(
            "closes the connection without an answer; the request is not carried out", takes=_REQUEST
        ),
    },
    "clock": {
        "step": Kind("sets the broker's wall clock forward or back", _fields("step_ms"), lasts=True),
        "drift": Kind("has the broker's wall clock run faster or slower", _fields("ppm"), lasts=True),
    },
}
"""Kinds by place. `docs/faults.md` describes each."""

OPERATIONS: Final[dict[str, tuple[str, ...]]] = {
    "journal": ("read", "write", "sync", "space"),
    "entry-log": ("read", "write", "sync", "space"),
    "index": ("open", "read", "write", "sync"),
    "bucket": ("create", "load", "merge", "delete"),
}
"""The values of `operation` at each place that has it."""
POINTS: Final[dict[str, str]] = {
    "journal-written": "a group of entries is in the journal, not synced yet",
    "journal-synced": "a group of entries is durable in the journal, no receipt was sent",
    "receipt-sent": "a receipt was passed to the system",
    "entry-log-synced": "an entry log was synced, and the index does not know yet",
    "index-written": "rows were written to the index",
    "bucket-sealed-before-metadata": "a bucket is complete in its ledger, and no record names it yet",
    "bucket-sealed": "a record that names a bucket is durable",
    "ledger-rolled": "the record that names a topic's new ledger is durable",
    "cursor-written": "a cursor's record is durable",
    "metadata-written": "a write of the metadata is durable, and its caller does not know yet",
    "restore-copied": "a snapshot is copied and checked, and the broker still serves the state before",
    "restore-intended": "all is closed, and nothing of the state before has been moved yet",
    "restore-moving": "a part of the state before has been moved out; passed twice",
    "restore-moved-out": "the state before has been moved out",
    "restore-moved-in": "the new state has been moved in, and nothing of it has been opened",
    "restore-opened": "the new state has been opened, and no record says so",
    "restore-committed": "the new state is valid for good, and no client has reached it yet",
    "metadata-opened": "a start has opened the metadata, and has neither read nor written any",
    "index-opened": "a start has opened an index, and has read no journal; passed for each index",
    "journal-recovered": "what the journals had is in entry logs and indexes; no record has this start",
    "start-recorded": "the metadata have the id of this start, and the change note does not",
    "ledgers-swept": "a start has deleted ledgers that no topic has any more, and no port answers",
    "ready": "both ports are about to answer, and no client has been served",
    "topic-recovered": "a topic's ledgers and cursors are read, at its first use, and no client has it yet",
}
"""Where `process/kill` can end the broker: `name` of a rule."""


def kind_of(rule: HasKind) -> Kind:
    """The kind of a rule that was checked."""
    return PLACES[rule.place][rule.kind]
