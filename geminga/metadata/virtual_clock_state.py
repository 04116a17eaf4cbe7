"""Where a virtual clock stands, across restarts."""

from __future__ import annotations

from geminga.clock import VirtualClock
from geminga.metadata.node import MUST_NOT_EXIST
from geminga.metadata.records import ClockRecord, decode, encode
from geminga.metadata.store import MetadataStore


def restored_clock(store: MetadataStore) -> VirtualClock:
    """The clock, at least where the last jump led. Raises CorruptData for a record that cannot be read."""
    stored = store.get(ClockRecord.path)
    if stored is None:
        return VirtualClock()
    record = decode(ClockRecord, stored.value, ClockRecord.path)
    return VirtualClock(record.offset_ms, record.reached_ms)


async def save_clock(store: MetadataStore, clock: VirtualClock, at_ms: int) -> None:
    """The clock will show `at_ms` now; durable on return. Raises StorageError, and BadVersion if another call
    is under way.
    """
    stored = store.get(ClockRecord.path)
    version = MUST_NOT_EXIST if stored is None else stored.version
    offset_ms = clock.offset_ms + at_ms - clock.now_ms()
    await store.put(ClockRecord.path, encode(ClockRecord(offset_ms=offset_ms, reached_ms=at_ms)), version)
