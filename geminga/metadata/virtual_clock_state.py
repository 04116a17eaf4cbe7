"""Where a virtual clock stands, across restarts."""

from __future__ import annotations

from collections.abc import Callable

from geminga.clock import RealClock, VirtualClock
from geminga.metadata.node import MUST_NOT_EXIST
from geminga.metadata.records import ClockRecord, decode, encode
from geminga.metadata.store import MetadataStore


async def restored_clock(
    store: MetadataStore, make: Callable[[int, int], VirtualClock] = VirtualClock
) -> VirtualClock:
    """The clock where it was, and as much further as the machine's has gone on; at the target of a jump that
    was under way. Durable on return. Raises CorruptData for a record that cannot be read, and StorageError.
    """
    stored = store.get(ClockRecord.path)
    if stored is None:
        return make(0, 0)
    record = decode(ClockRecord, stored.value, ClockRecord.path)
    if not record.moving_to_ms:
        return make(record.offset_ms, record.reached_ms)
    # The time since the jump began may have passed in it or after it: it is not counted. Saved before the
    # first look at the clock, so that the next start goes on from here and not from the target once more.
    clock = make(0, 0)
    clock.start_at(record.moving_to_ms)
    await save_clock(store, clock)
    return clock


async def save_jump(store: MetadataStore, clock: VirtualClock, to_ms: int) -> None:
    """A jump to `to_ms` begins: a start that finds it under way goes on from there; durable on return. Raises
    StorageError, and BadVersion if another call is under way.
    """
    offset_ms = clock.offset_ms + to_ms - clock.now_ms()
    await _put(store, ClockRecord(offset_ms=offset_ms, reached_ms=to_ms, moving_to_ms=to_ms))


async def save_clock(store: MetadataStore, clock: VirtualClock) -> int:
    """The clock stands where it stands, and no jump is under way; durable on return. Returns how far it is
    ahead of the machine's, as saved. Raises as `save_jump`.
    """
    offset_ms = clock.offset_ms
    await _put(store, ClockRecord(offset_ms=offset_ms, reached_ms=clock.now_ms()))
    return offset_ms


async def resume_clock(store: MetadataStore, at_ms: int) -> None:
    """The clock that is restored next begins at `at_ms`; durable on return. Raises StorageError."""
    await _put(store, ClockRecord(offset_ms=at_ms - RealClock().now_ms(), reached_ms=at_ms))


async def _put(store: MetadataStore, record: ClockRecord) -> None:
    stored = store.get(ClockRecord.path)
    version = MUST_NOT_EXIST if stored is None else stored.version
    await store.put(ClockRecord.path, encode(record), version)
