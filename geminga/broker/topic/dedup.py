"""The highest sequence id of each producer name, to detect stored entries (Pulsar's PIP-6).

Pure. Each name has two numbers: the last id passed to storage (*pushed*), and the last durable one
(*persisted*). Ids up to the persisted one were stored. An id between the two may still fail, so it is
undecided.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

NEVER: Final = -1
"""The sequence id of a producer that has published nothing."""
# A snapshot is the properties of a cursor, where the broker keeps its own under names with this beginning.
ESCAPE: Final = "#"
PROPERTIES_BYTES_MAX: Final = 512 * 1024
"""The limit of the names in a snapshot, in bytes; a metadata record has room for twice as many."""
_VALUE_BYTES: Final = 12


class Verdict(enum.Enum):
    NEW = enum.auto()
    DUPLICATE = enum.auto()
    """The entry is durable already."""
    UNDECIDED = enum.auto()
    """The entry was accepted before and is not durable: it may still fail."""


class _Ids:
    """The ids of one producer name."""

    __slots__ = ("last_active_ms", "persisted", "pushed")

    def __init__(self, sequence_id: int, now_ms: int) -> None:
        self.pushed = self.persisted = sequence_id
        self.last_active_ms = now_ms


class SequenceIds:
    """The sequence ids of one topic. Holds at most about twice `producers_max` names, and those of connected
    producers.

    `connected()` returns the names of the producers that are connected now, which are never forgotten.
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
        """Entries recorded since the last snapshot."""

    # Two numbers for each name and no list of entries: what is stored is known from the highest id alone, as
    # a producer's ids rise.

    def __len__(self) -> int:
        return len(self._by_name)

    # -- each entry ------------------------------------------------------------------------------------------

    def judge(self, name: str, sequence_id: int) -> Verdict:
        """Judge an entry whose first message has this id."""
        # A batch of which a part is known counts as known, as in Pulsar: a client that resends keeps the
        # batches that it has made.
        ids = self._by_name.get(name)
        if ids is None or sequence_id > ids.pushed:
            return Verdict.NEW
        return Verdict.DUPLICATE if sequence_id <= ids.persisted else Verdict.UNDECIDED

    def pushed(self, name: str, sequence_id: int) -> None:
        """Storage has accepted an entry whose last message has this id."""
        ids = self._by_name.get(name)
        if ids is None:
            ids = self._new(name)
        if sequence_id > ids.pushed:
            ids.pushed = sequence_id

    def persisted(self, name: str, sequence_id: int) -> None:
        """An entry that was `pushed`, or was found in the log, is durable."""
        self.changes += 1
        ids = self._by_name.get(name)
        if ids is None:
            ids = self._new(name)
        if sequence_id > ids.persisted:
            ids.persisted = sequence_id
            # Entries of the log, at a load, were never pushed by this process.
            if sequence_id > ids.pushed:
                ids.pushed = sequence_id

    def failed(self, name: str, pending: Iterable[int]) -> None:
        """Entries of this name will not be durable; `pending` are the ids of those that still may become
        durable.
        """
        # Back to the highest id that is stored or may be: the client sends the failed ones again, and they
        # must be new then.
        ids = self._by_name.get(name)
        if ids is not None:
            ids.pushed = max(ids.persisted, max(pending, default=NEVER))

    # -- producers -------------------------------------------------------------------------------------------

    def last_pushed(self, name: str) -> int:
        ids = self._by_name.get(name)
        return ids.pushed if ids is not None else NEVER

    def is_settled(self, name: str) -> bool:
        """Whether no entry of this name is pending."""
        ids = self._by_name.get(name)
        return ids is None or ids.pushed <= ids.persisted

    def forget_inactive(self, timeout_ms: int) -> int:
        """Forget names that have not been connected for `timeout_ms`, and beyond the limit those absent
        longest. Returns how many. Call it periodically: between two calls a producer counts as active.
        """
        # The price of forgetting: a client that comes back later and resends stores its messages twice.
        # Pulsar has both settings (brokerDeduplicationProducerInactivityTimeoutMinutes,
        # ...MaxNumberOfProducers), but its maximum limits only the snapshot; ours limits memory too.
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
        # Not while an entry is on its way: a retry of it would be judged as new, and stored a second time.
        return ids.pushed <= ids.persisted and name not in connected

    def _new(self, name: str) -> _Ids:
        # At twice the bound, as sorting all names for each new one would make a client that never uses a name
        # twice expensive for all others.
        if len(self._by_name) >= 2 * self._producers_max:
            self._forget_most(self._connected())
        ids = self._by_name[name] = _Ids(NEVER, self._now_ms())
        return ids

    # -- snapshots -------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, int]:
        """The persisted ids of the most recently active producers, as properties of a cursor."""
        self.changes = 0
        # Bounded in names and bytes: one metadata record has to hold it. Connected producers come first, as
        # they are the ones that resend soonest. Only persisted ids: what is pushed may fail, and a load that
        # took it for stored would lose the retry.
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
        """Load a snapshot. The caller reports the entries after it with `persisted`."""
        now_ms = self._now_ms()
        for key, sequence_id in properties.items():
            self._by_name[name_of(key)] = _Ids(sequence_id, now_ms)


def property_of(name: str) -> str:
    """A producer's name as the key of a property. Never a key of the broker's own, which begin with `#`."""
    return ESCAPE + name if name.startswith(ESCAPE) else name


def name_of(key: str) -> str:
    return key.removeprefix(ESCAPE)
