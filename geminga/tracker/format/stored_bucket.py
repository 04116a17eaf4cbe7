"""A bucket of the delayed index that lies in a ledger, and the property that names it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from geminga.managed_ledger.cursor.bucket_properties import DELAYED_PREFIX
from geminga.tracker.format.bucket_format import Directory
from geminga.tracker.format.rows import ENTRY_MASK, LEDGER_ID_END, code_of, position_of

KEY_PREFIX: Final = DELAYED_PREFIX + "bucket_"
# Bounded digits: properties come from metadata that an operator can edit, and `int` of a long text is slow.
_KEY: Final = re.compile(re.escape(KEY_PREFIX) + r"(\d{1,10})(?::(\d{1,10}))?_(\d{1,10})(?::(\d{1,10}))?")


class KeyRange(NamedTuple):
    """The positions that a property's name speaks of, as codes, both included."""

    first_code: int
    last_code: int

    @property
    def ledgers(self) -> tuple[int, int]:
        return position_of(self.first_code)[0], position_of(self.last_code)[0]

    @property
    def is_whole(self) -> bool:
        """Whether it speaks of whole ledgers."""
        return position_of(self.first_code)[1] == 0 and position_of(self.last_code)[1] == ENTRY_MASK


def whole_ledgers(start_ledger: int, end_ledger: int) -> KeyRange:
    return KeyRange(code_of(start_ledger, 0), code_of(end_ledger, ENTRY_MASK))


def bucket_key(covered: KeyRange) -> str:
    """The property's name: Pulsar's, to the letter, where whole ledgers are covered; else with entry ids."""
    start, end = covered.ledgers
    if covered.is_whole:
        # Pulsar's `BucketDelayedDeliveryTracker` names buckets by ledgers alone. That form cannot say "from
        # the middle of a ledger", where most of ours are cut.
        return f"{KEY_PREFIX}{start}_{end}"
    return (
        f"{KEY_PREFIX}{start}:{position_of(covered.first_code)[1]}_{end}:{position_of(covered.last_code)[1]}"
    )


def range_of_key(key: str) -> KeyRange | None:
    """What a bucket covers by its property's name; None if that is not one."""
    found = _KEY.fullmatch(key)
    # Half of a range with entry ids is no name of ours: taken for a bucket it would cover too much.
    if found is None or (found[2] is None) != (found[4] is None):
        return None
    start, end = int(found[1]), int(found[3])
    first, last = (0, ENTRY_MASK) if found[2] is None else (int(found[2]), int(found[4]))
    if not start <= end < LEDGER_ID_END or max(first, last) > ENTRY_MASK:
        return None
    covered = KeyRange(code_of(start, first), code_of(end, last))
    # It must be the very name that we would give: of two spellings of one range, removing one would leave the
    # other.
    return covered if covered.first_code <= covered.last_code and key == bucket_key(covered) else None


def bucket_text(covered: KeyRange, ledger_id: int) -> str:
    """A bucket in the log, whether it could be read or not."""
    return f"<bucket {bucket_key(covered).removeprefix(KEY_PREFIX)} in ledger {ledger_id}>"


class StoredBucket:
    """One bucket on the bookie. `directory` has no members here: the index has taken them over."""

    __slots__ = ("_covered", "bytes", "directory", "first_code", "last_code", "ledger_id", "retired")

    def __init__(
        self, ledger_id: int, directory: Directory, size_bytes: int, covered: KeyRange | None = None
    ) -> None:
        """`covered`: what its name speaks of, which may be more than it has; None: whole ledgers."""
        self.ledger_id = ledger_id
        self.first_code, self.last_code = directory.first_code, directory.last_code
        """Of its first and its last message in the order of the topic."""
        # The members are the largest part of a directory. Kept here as well, they would be in memory twice.
        self.directory = directory._replace(members={})
        self.bytes = size_bytes
        """Length of all its entries."""
        self._covered = covered or whole_ledgers(directory.start_ledger, directory.end_ledger)
        # A mark and no removal: a load of this bucket may be under way on a thread, and has to be told to
        # drop its rows.
        self.retired = False
        """Whether it is on its way out: released, merged away, lost or cleared."""

    @property
    def covered(self) -> KeyRange:
        return self._covered

    @property
    def key(self) -> str:
        return bucket_key(self._covered)

    def widen(self) -> None:
        """Take another name, as there is a bucket of this one already: one that speaks of an entry more."""
        # Properties are a map, so two buckets with the same bounds would overwrite each other's name and lose
        # a ledger.
        self._covered = KeyRange(self._covered.first_code, self._covered.last_code + 1)

    def retire(self) -> None:
        self.retired = True

    def move_to(self, ledger_id: int) -> None:
        """It is in another ledger now."""
        self.ledger_id = ledger_id

    @property
    def start_ledger(self) -> int:
        return self.directory.start_ledger

    @property
    def end_ledger(self) -> int:
        return self.directory.end_ledger

    def __repr__(self) -> str:
        return bucket_text(self._covered, self.ledger_id)
