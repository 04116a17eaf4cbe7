"""Where a virtual clock stands, across restarts."""

from __future__ import annotations

from collections.abc import Callable

from geminga.clock import RealClock, VirtualClock
from geminga.metadata.node import MUST_NOT_EXIST
from geminga.metadata.records import ClockRecord, decode, encode
from geminga.metadata.store import MetadataStore


def restored_clock(
    store: MetadataStore, make: Callable[[int, int], VirtualClock] = VirtualClock
) -> VirtualClock:
    """The clock, at least where the last jump led. Raises CorruptData for a record that cannot be read."""
    stored = store.get(ClockRecord.path)
    if stored is None:
        return make(0, 0)
    record = decode(ClockRecord, stored.value, ClockRecord.path)
    return make(record.offset_ms, record.reached_ms)


async def save_clock(store: MetadataStore, clock: VirtualClock, at_ms: int) -> None:
    """The clock will show `at_ms` now; durable on return. Raises StorageError, and BadVersion if another call
    is under way.
    """
    stored = store.get(ClockRecord.path)
    version = MUST_NOT_EXIST if stored is None else stored.version
    offset_ms = clock.offset_ms + at_ms - clock.now_ms()
    await store.put(ClockRecord.path, encode(ClockRecord(offset_ms=offset_ms, reached_ms=at_ms)), version)


async def resume_clock(store: MetadataStore, at_ms: int) -> None:
    """The clock that is restored next begins at `at_ms`; durable on return. Raises StorageError."""
    stored = store.get(ClockRecord.path)
    version = MUST_NOT_EXIST if stored is None else stored.version
    record = ClockRecord(offset_ms=at_ms - RealClock().now_ms(), reached_ms=at_ms)
    await store.put(ClockRecord.path, encode(record), version)
