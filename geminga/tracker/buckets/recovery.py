"""What a start finds of the buckets that an earlier process has sealed: read, checked, and taken over.

Beside the dispatch path: which ledgers the properties speak of is known at once, and until a bucket has been
read its ledgers are *unknown* (`is_unknown`). Whoever dispatches skips entries of such ledgers, and when
`on_known` names a range reads what is unacknowledged in it and not in the index: that is everything, where
the bucket is lost. So undelayed messages flow meanwhile, and no bucket is waited for.

A bucket that is missing, torn or damaged costs a re-read of its own ledgers. Buckets may span the same
positions: what two of them have is tracked once.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import trio
from pyroaring import BitMap

from geminga.errors import CorruptData, LedgerNotFound, StorageError
from geminga.managed_ledger.cursor.acknowledged import Acknowledged
from geminga.tracker.buckets.bucket_set import BucketSet
from geminga.tracker.buckets.retrying import BackOff
from geminga.tracker.format.bucket_format import Directory
from geminga.tracker.format.stored_bucket import KeyRange, StoredBucket, bucket_text, range_of_key

log = logging.getLogger("geminga.tracker")

OPENED_AT_ONCE: Final = 8
READS_MAX: Final = 5

Members = Mapping[int, BitMap]
"""Entry ids by ledger."""


@dataclass(slots=True, repr=False)
class _Named:
    """What one property says."""

    key: str
    ledger_id: int
    covered: KeyRange

    def __repr__(self) -> str:
        return bucket_text(self.covered, self.ledger_id)


class Recovery:
    """Made before anything of the topic is dispatched; then `run` beside it, once.

    `wanted` says which members are not acknowledged, `on_known` hears of each range of ledgers, first and
    last, that is not unknown any more.
    """

    def __init__(
        self,
        buckets: BucketSet,
        *,
        wanted: Callable[[Members], dict[int, BitMap]],
        on_known: Callable[[int, int], None],
    ) -> None:
        self._buckets = buckets
        self._wanted = wanted
        self._on_known = on_known
        self._unread = deque(sorted(self._named(), key=lambda one: one.covered))
        self._unknown = {one.key: one.covered.ledgers for one in self._unread}
        """The ledgers of those that have not been read yet."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        """The same, ascending: for each the first ledger, and the last of all up to it."""
        self._order_unknown()

    def _named(self) -> list[_Named]:
        named, ledger_ids = [], set()
        owner_text = self._buckets.owner_text
        for key, ledger_id in self._buckets.named().items():
            covered = range_of_key(key)
            if covered is None or ledger_id in ledger_ids:
                log.error("%s: property %s=%d names no bucket; it is removed", owner_text, key, ledger_id)
                self._buckets.doom(key, ledger_id)
            else:
                ledger_ids.add(ledger_id)
                named.append(_Named(key, ledger_id, covered))
        return named

    def _order_unknown(self) -> None:
        ranges = sorted(self._unknown.values())
        self._firsts = [first for first, _ in ranges]
        self._lasts = list(accumulate((last for _, last in ranges), max))

    def is_unknown(self, ledger_id: int) -> bool:
        """Whether a bucket that has not been read yet may say when entries of this ledger are due."""
        if len(self._firsts) != len(self._unknown):
            self._order_unknown()
        place = bisect_right(self._firsts, ledger_id) - 1
        return place >= 0 and ledger_id <= self._lasts[place]

    async def run(self) -> None:
        """On return nothing is unknown. Cancelling leaves the rest unknown, and the disk as it was."""
        # In the order of the ledgers, as what was published first is most likely to be due: tasks that are
        # started together would run in this order or the other way round.
        generation = self._buckets.generation

        async def take_over_some() -> None:
            while self._unread:
                await self._take_over(self._unread.popleft(), generation)

        async with trio.open_nursery() as nursery:
            for _ in range(OPENED_AT_ONCE):
                nursery.start_soon(take_over_some)

    async def _take_over(self, one: _Named, generation: int) -> None:
        found = await self._open(one)
        if self._buckets.generation == generation:
            if found is None:
                self._buckets.doom(one.key, one.ledger_id)
            else:
                self._adopt(one.key, *found)
        self._on_known(*self._unknown.pop(one.key))

    def _adopt(self, key: str, bucket: StoredBucket, directory: Directory) -> None:
        members = self._wanted(directory.members)
        if any(members.values()):
            self._buckets.index.recovered(bucket, members)
            self._buckets.adopt(bucket)
        else:
            self._buckets.doom(key, bucket.ledger_id)

    async def _open(self, one: _Named) -> tuple[StoredBucket, Directory] | None:
        """None: it is lost."""
        back_off = BackOff()
        while True:
            try:
                return await self._buckets.store.open(one.ledger_id, one.covered)
            except (CorruptData, LedgerNotFound) as error:
                self._lost(one, error)
                return None
            except StorageError as error:
                if back_off.failures >= READS_MAX - 1:
                    self._lost(one, error)
                    return None
                await trio.sleep(back_off.next_s())

    def _lost(self, one: _Named, why: object) -> None:
        owner_text = self._buckets.owner_text
        log.error("%s: %r is lost, its messages are looked up again: %s", owner_text, one, why)
        self._buckets.count_lost("start", *one.covered)


def unacknowledged(cursors: Iterable[Acknowledged], members: Members) -> dict[int, BitMap]:
    """Those of the members that at least one of the cursors has not acknowledged."""
    wanted: dict[int, BitMap] = {}
    for cursor in cursors:
        state = cursor.state()
        ledger_id, entry_id = state.mark_delete
        for member_ledger, entry_ids in members.items():
            if member_ledger < ledger_id:
                continue
            left = entry_ids - state.acknowledged.get(member_ledger, BitMap())
            if member_ledger == ledger_id:
                left.remove_range(0, entry_id + 1)
            if left:
                wanted[member_ledger] = wanted.get(member_ledger, BitMap()) | left
    return wanted
