"""Which entries a topic has had already: the highest sequence id of each producer name (Pulsar's PIP-6).

Pure. Two numbers for each name: what was handed to storage (*pushed*), and what is durable (*persisted*).
What is not above the second was stored; what is between the two may still fail, so nobody can say yet.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

NEVER: Final = -1
"""The sequence id of a producer that has published nothing."""
ESCAPE: Final = "#"
PROPERTIES_BYTES_MAX: Final = 512 * 1024
"""What the names in a snapshot may take; a metadata record has room for twice as much."""
_VALUE_BYTES: Final = 12


class Verdict(enum.Enum):
    NEW = enum.auto()
    DUPLICATE = enum.auto()
    """It is durable already."""
    UNDECIDED = enum.auto()
    """It was accepted before, and is not durable: it may yet fail."""


class _Ids:
    """One producer name's."""

    __slots__ = ("last_active_ms", "persisted", "pushed")

    def __init__(self, sequence_id: int, now_ms: int) -> None:
        self.pushed = self.persisted = sequence_id
        self.last_active_ms = now_ms


class SequenceIds:
    """Those of one topic. At most about twice `producers_max` names are held, connected ones aside.

    `connected()` gives the names of the producers that are connected now: they are never forgotten.
    """

    __slots__ = ("_by_name", "_connected", "_now_ms", "_producers_max", "changes")

    def __init__(
        self, producers_max: int, connected: Callable[[], Collection[str]], now_ms: Callable[[], int]
    ) -> None:
        self._producers_max = max(1, producers_max)
        self._connected = connected
        self._now_ms = now_ms
        self._by_name: dict[str, _Ids] = {}
        self.changes = 0
        """Entries recorded since whoever counts set it to 0."""

    def __len__(self) -> int:
        return len(self._by_name)

    # -- each entry ------------------------------------------------------------------------------------------

    def judge(self, name: str, sequence_id: int) -> Verdict:
        """Of an entry whose first message has this id. A batch that is known in part counts as known, as in
        Pulsar: who sends again sends the same batches.
        """
        ids = self._by_name.get(name)
        if ids is None or sequence_id > ids.pushed:
            return Verdict.NEW
        return Verdict.DUPLICATE if sequence_id <= ids.persisted else Verdict.UNDECIDED

    def pushed(self, name: str, sequence_id: int) -> None:
        """Storage has taken an entry whose last message has this id."""
        ids = self._by_name.get(name)
        if ids is None:
            ids = self._new(name)
        if sequence_id > ids.pushed:
            ids.pushed = sequence_id

    def persisted(self, name: str, sequence_id: int) -> None:
        """An entry that was `pushed`, or is found in the log, is durable."""
        self.changes += 1
        ids = self._by_name.get(name)
        if ids is None:
            ids = self._new(name)
        if sequence_id > ids.persisted:
            ids.persisted = sequence_id
            if sequence_id > ids.pushed:
                ids.pushed = sequence_id

    def failed(self, name: str, pending: Iterable[int]) -> None:
        """Entries of this name will not be durable; `pending` are the ids of those that still may be."""
        ids = self._by_name.get(name)
        if ids is not None:
            ids.pushed = max(ids.persisted, max(pending, default=NEVER))

    # -- producers -------------------------------------------------------------------------------------------

    def last_pushed(self, name: str) -> int:
        ids = self._by_name.get(name)
        return ids.pushed if ids is not None else NEVER

    def is_settled(self, name: str) -> bool:
        """Whether nothing of this name is on its way."""
        ids = self._by_name.get(name)
        return ids is None or ids.pushed <= ids.persisted

    def forget_inactive(self, timeout_ms: int) -> int:
        """Forget the names that were not connected for so long, and the longest absent ones of too many;
        returns how many. To be called now and then: between two calls a producer counts as active.
        """
        now_ms = self._now_ms()
        connected = self._connected()
        for name in connected:
            ids = self._by_name.get(name)
            if ids is not None:
                ids.last_active_ms = now_ms
        before = len(self._by_name)
        for name, ids in list(self._by_name.items()):
            if now_ms - ids.last_active_ms > timeout_ms and self._may_go(name, ids, connected):
                del self._by_name[name]
        self._forget_most(connected)
        return before - len(self._by_name)

    def _forget_most(self, connected: Collection[str]) -> None:
        excess = len(self._by_name) - self._producers_max
        if excess > 0:
            oldest_first = sorted(self._by_name.items(), key=lambda item: item[1].last_active_ms)
            gone = [name for name, ids in oldest_first if self._may_go(name, ids, connected)]
            for name in gone[:excess]:
                del self._by_name[name]

    @staticmethod
    def _may_go(name: str, ids: _Ids, connected: Collection[str]) -> bool:
        return ids.pushed <= ids.persisted and name not in connected

    def _new(self, name: str) -> _Ids:
        if len(self._by_name) >= 2 * self._producers_max:
            self._forget_most(self._connected())
        ids = self._by_name[name] = _Ids(NEVER, self._now_ms())
        return ids

    # -- snapshots -------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, int]:
        """The persisted ids, as properties of a cursor: those of the producers that were active last."""
        self.changes = 0
        properties: dict[str, int] = {}
        room_bytes = PROPERTIES_BYTES_MAX
        connected = self._connected()
        last_first = sorted(
            self._by_name.items(),
            key=lambda item: (item[0] in connected, item[1].last_active_ms),
            reverse=True,
        )
        for name, ids in last_first[: self._producers_max]:
            room_bytes -= len(name.encode()) + _VALUE_BYTES
            if room_bytes < 0:
                break
            if ids.persisted > NEVER:
                properties[property_of(name)] = ids.persisted
        return properties

    def restore(self, properties: Mapping[str, int]) -> None:
        """Take over a snapshot; the entries behind it are to be told by `persisted`."""
        now_ms = self._now_ms()
        for key, sequence_id in properties.items():
            self._by_name[name_of(key)] = _Ids(sequence_id, now_ms)


def property_of(name: str) -> str:
    """A producer's name as the key of a property: never one of the broker's own, which begin with `#`."""
    return ESCAPE + name if name.startswith(ESCAPE) else name


def name_of(key: str) -> str:
    return key.removeprefix(ESCAPE)
