"""The kinds of events: what each tells, and what its counts mean. `docs/events.md` is tested against this."""

from __future__ import annotations

from typing import Final, NamedTuple


class Kind(NamedTuple):
    text: str
    """What has happened."""
    counts: tuple[str, ...] = ()
    """The names of its counts, in the order in which they are shown."""
    joins: bool = False
    """Whether events of this kind about the same thing are joined, as many may come in a second."""


KINDS: Final[dict[str, Kind]] = {
    "started": Kind("The broker answers on both of its ports."),
    "restored": Kind("Another state has replaced all data. The text says which."),
    "restore-undone": Kind("A restore or a reset came to no end; the state from before is back."),
    "stopped": Kind("The broker has closed its topics, on request."),
    "bucket-sealed": Kind(
        "Delayed messages were written as a bucket, and left memory.", ("messages", "segments", "bytes")
    ),
    "bucket-merged": Kind("Buckets were written as one.", ("sources", "messages", "segments", "bytes")),
    "bucket-loaded": Kind(
        "A segment of a bucket was read, since its messages are due soon.", ("segment", "messages"), True
    ),
    "bucket-lost": Kind(
        "A bucket is gone or damaged; its messages are read again from the topic. The text says how that was "
        "found.",
        ("messages", "first_ledger", "last_ledger"),
    ),
    "bucket-deleted": Kind("All messages of a bucket are delivered, so its ledger is deleted."),
    "index-recovered": Kind("The buckets that a start found are taken over.", ("buckets", "lost")),
    "reading-again": Kind(
        "Ledgers are read for what the index of a topic lacks, lost or never read; so far has that come.",
        ("ledger", "entry", "messages"),
        True,
    ),
    "bucket-rebuilt": Kind("A new bucket has messages of a lost one.", ("messages", "segments", "bytes")),
    "caught-up": Kind("All that the index lacked has been read.", ("messages",)),
    "fault-set": Kind("A rule of faults is in force. The text is its id, place and kind."),
    "fault-hit": Kind("A rule took effect.", ("hits",), True),
    "fault-cleared": Kind("A rule was removed.", ("hits",)),
    "clock-moved": Kind(
        "The virtual clock was moved. The text says if that ended early.", ("from_ms", "to_ms", "stops")
    ),
    "entries-missing": Kind(
        "A start did not find entries that a topic has confirmed. The text names the first of their ranges.",
        ("entries",),
    ),
    "files-mismatched": Kind(
        "A start found index, entry logs and journals of several moments, as of a copy of a running broker's "
        "files. It deletes no entry log. The text says how they differ.",
        ("found", "missing"),
    ),
    "disk-read-only": Kind(
        "The bookie takes no entries: its disk is full. The text says how full, and what has to be "
        "free again."
    ),
    "disk-writable": Kind("The bookie takes entries again."),
    "backlog-evicted": Kind(
        "A check took messages from a topic's backlog, which had exceeded a quota. The text says which.",
        ("entries",),
    ),
    "topic-fenced": Kind("A topic's ledger has failed; the next request loads the topic again."),
}
