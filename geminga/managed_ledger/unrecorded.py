"""The comparison of metadata and bookie: do they belong together, and the words for the operator if not.

By the order in which things are written no crash leaves a ledger without a record: a ledger's record is
synced before its first entry, and goes only when the ledger's mark "deleted" is synced in the index; the mark
goes only together with the rows, once no replay can meet an entry of the ledger. Nor does a record of a topic
or cursor name a ledger with that mark: a name is synced away before its ledger is deleted. Nor is an id used
that the metadata has not given durably. So each of these says that the metadata is behind: an older copy, a
copy made file by file while a broker ran, or one whose write-ahead log was cut. The change note counts what
leaves no trace in ledgers, as policies do (`metadata/change_note.py`).

An index that was rebuilt from the entry logs is the exception: it knows of no deletion. A ledger without a
record may have been deleted then, or not; it is set aside, where it costs space and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from geminga.bookie.offline.held_ledgers import HeldLedgers
from geminga.bookie.records.ledger_name import LedgerName
from geminga.managed_ledger.orphans import named_by_topic
from geminga.metadata import records
from geminga.metadata.records import LedgerIdsRecord, LedgerRecord

if TYPE_CHECKING:
    from geminga.bookie.index.index_format import Usage
    from geminga.bookie.running.bookie import Bookie
    from geminga.metadata.store import MetadataStore

log = logging.getLogger("geminga.managed_ledger")

TOPICS_NAMED_MAX = 20
RANGES_NAMED_MAX = 20


class Comparison(NamedTuple):
    """What metadata and bookie say of the same ledgers. Ids are ascending."""

    unrecorded: list[int]
    """Held, and without a record: the metadata is behind."""
    doubtful: list[int]
    """Held, without a record, and to be set aside: their index is rebuilt."""
    aside: list[int]
    """Set aside earlier, and without a record still."""
    deleted: dict[str, list[int]]
    """By path of their topic: ledgers that its records name, and that the bookie has deleted."""
    last_id: int
    """The greatest id that the bookie knows of; -1 if there is none."""
    next_id: int
    """All ids from here on were never given, by the metadata."""
    changes_missing: int = 0
    """By the change note: how many of its changes the metadata lacks."""

    @property
    def is_behind(self) -> bool:
        # Each of the four is impossible after any crash, by the order of writes: one is enough.
        return bool(self.unrecorded or self.deleted or self.changes_missing) or self.last_id >= self.next_id


def compare(held: HeldLedgers, metadata: MetadataStore | None) -> Comparison:
    """`metadata` is None if there is none. Reads the list of all ledgers once. CorruptData."""
    recorded: set[int] = set()
    next_id = 0
    if metadata is not None:
        recorded = {records.ledger_id_of(component) for component in metadata.children(records.LEDGERS)}
        stored = metadata.get(LedgerIdsRecord.path)
        if stored is not None:
            next_id = records.decode(LedgerIdsRecord, stored.value, LedgerIdsRecord.path).next_id
    without = sorted(held.held.keys() - recorded)
    # An id that the metadata has not given yet is no deleted ledger: the metadata is behind, rebuilt index or
    # not.
    doubtful = [each for each in without if each in held.doubtful and each < next_id]
    # Not doubtful once more: an operator has been told of these, and they wait for a decision.
    aside = [each for each in without if each in held.aside]
    apart = {*doubtful, *aside}
    return Comparison(
        [each for each in without if each not in apart],
        [each for each in doubtful if each not in held.aside],
        aside,
        _named_though_deleted(metadata, held.deleted & recorded) if metadata is not None else {},
        held.last_id,
        next_id,
    )


def _named_though_deleted(metadata: MetadataStore, deleted: Iterable[int]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for ledger_id in sorted(deleted):
        path = records.ledger_path(ledger_id)
        stored = metadata.get(path)
        if stored is not None:
            topic = records.decode(LedgerRecord, stored.value, path).topic
            by_topic.setdefault(topic, []).append(ledger_id)
    # A ledger's own record may outlive its deletion for a moment. Only a topic or cursor that still names it
    # says that the metadata is behind.
    named = {
        topic: sorted(named_by_topic(metadata, topic).intersection(ids)) for topic, ids in by_topic.items()
    }
    return {topic: ids for topic, ids in named.items() if ids}


async def set_aside_unrecorded(bookie: Bookie, metadata: MetadataStore) -> list[int]:
    """What a start does once the bookie is recovered, before topics are opened: ledgers without a record in
    an index that was rebuilt are set aside, and those that have a record again are served again. Durable on
    return. Returns the ids of those that were set aside. StorageError.
    """
    aside, unsorted = bookie.inventory.aside(), bookie.inventory.unsorted()
    # The usual start ends here without reading the list of ledgers, which grows with the topics.
    if unsorted is None and not aside:
        return []
    recorded = {records.ledger_id_of(component) for component in metadata.children(records.LEDGERS)}
    unknown = sorted((unsorted or set()) - recorded)
    back = sorted(aside & recorded)
    # Lifted in the same write: an operator has put the right metadata back, and no second command is needed.
    await bookie.inventory.set_aside(unknown, lift=back)
    if back:
        log.info("%d ledgers have a record again and are served: %s", len(back), ranges_text(back))
    return unknown


# ---- for people


def topic_text(path: str) -> str:
    """The name of a topic as users know it; `path` is its metadata path, or the name already."""
    if path.startswith(f"{records.MANAGED_LEDGERS}/"):
        return str(records.topic_of(path))
    return path


def ranges_text(ids: Sequence[int]) -> str:
    """Ascending ids with neighbours drawn together: `3, 5-7`."""
    ranges: list[list[int]] = []
    for each in ids:
        if ranges and ranges[-1][1] == each - 1:
            # Metadata that is lost takes thousands of neighbouring ids with it; a list of each would fill the
            # log.
            ranges[-1][1] = each
        else:
            ranges.append([each, each])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:RANGES_NAMED_MAX]]
    if len(ranges) > RANGES_NAMED_MAX:
        texts.append(f"and {sum(last - first + 1 for first, last in ranges[RANGES_NAMED_MAX:])} more")
    return ", ".join(texts)


def ledgers_by_topic(
    ids: Iterable[int], held: Mapping[int, Usage], names: Mapping[int, LedgerName]
) -> list[str]:
    """A line for each topic: its ledgers, and how many entries the bookie has of them."""
    by_topic: dict[str, list[int]] = {}
    for ledger_id in ids:
        name = names.get(ledger_id)
        text = f"{topic_text(name.topic)}" if name is not None and name.topic else ""
        if text and name is not None and name.purpose and name.purpose != "data":
            text += f" ({name.purpose}s)"
        by_topic.setdefault(text, []).append(ledger_id)
    lines = []
    for topic, of_topic in sorted(by_topic.items(), key=lambda item: (not item[0], item[0])):
        entries = sum(held[ledger_id].entries for ledger_id in of_topic if ledger_id in held)
        lines.append(
            f"{topic or 'of a topic that no file names'}: {_counted(len(of_topic), 'ledger')} "
            f"({ranges_text(sorted(of_topic))}), {entries} {'entry' if entries == 1 else 'entries'}"
        )
    return _bounded(lines)


def deleted_by_topic(deleted: Mapping[str, Sequence[int]]) -> list[str]:
    lines = [
        f"{topic_text(path)}: {_counted(len(ids), 'ledger')} ({ranges_text(ids)})"
        for path, ids in sorted(deleted.items())
    ]
    return _bounded(lines)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _bounded(lines: list[str]) -> list[str]:
    if len(lines) <= TOPICS_NAMED_MAX:
        return lines
    return [*lines[:TOPICS_NAMED_MAX], f"... and {len(lines) - TOPICS_NAMED_MAX} more topics"]
