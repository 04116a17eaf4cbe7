"""The memory of what publishers send: bytes received, or about to be, that are not durable yet.

Nothing is counted for a message: the journal knows what it has queued, `AppendRoom` what waits for a ledger,
and here are the frames that are being received. A frame too large to come with its header is reserved before
its body is read. Who finds no room queues up; one after the other, in the order of their coming, each gets
the next room that is large enough, so that a small or slow producer is never passed over.

A reservation is made on a promise: that its bytes come. Whoever is slow to keep it lends the room to those
who wait, and asks again when it sends on; who stays slow is disconnected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from geminga.limits import KIB

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie
    from geminga.managed_ledger.chain.append_room import AppendRoom

UNRESERVED_BYTES_MAX = 16 * KIB
"""A frame up to this size is not reserved: it will be here before anybody could wait for it."""
PROMISE_CHECK_S = 1.0
"""So long the first in the queue waits before it is looked for who is slow..."""
PROMISE_BYTES = 16 * KIB
"""...which is who has sent less than this since..."""
BROKEN_PROMISES_MAX = 10
"""...and who was slow so many times in a row is disconnected."""


class Reservation:
    """One connection's, for the frame that it is receiving. Give it back with `PublishMemory.release`."""

    __slots__ = (
        "_disconnect",
        "_received",
        "broken_promises",
        "held_bytes",
        "is_lent",
        "is_waiting",
        "seen_bytes",
    )

    def __init__(self, received: Callable[[], int], disconnect: Callable[[], None]) -> None:
        """`received()` says how much of the frame is here; `disconnect()` ends the connection."""
        self._received = received
        self._disconnect = disconnect
        self.held_bytes = 0
        self.seen_bytes = 0
        self.broken_promises = 0
        self.is_lent = False
        self.is_waiting = False
        """It is we who do not read, so no promise is broken."""

    def check(self) -> int:
        """Look whether the sender keeps its promise; returns how many bytes are lent to others if not."""
        received = self._received()
        if self.is_waiting:
            return 0
        if received - self.seen_bytes >= PROMISE_BYTES:
            self.seen_bytes = received
            self.broken_promises = 0
            return 0
        self.broken_promises += 1
        if self.broken_promises > BROKEN_PROMISES_MAX:
            self._disconnect()
        lent = max(0, self.held_bytes - received)
        self.held_bytes -= lent
        self.is_lent = True
        return lent


class PublishMemory:
    """One per broker; all connections share it."""

    def __init__(self, bytes_max: int, bookie: Bookie, waiting: AppendRoom) -> None:
        self.bytes_max = bytes_max
        self.receiving_bytes = 0
        """Reserved for frames that are not whole yet."""
        self.waits = 0
        """How often a connection was not read because there was no room."""
        self._bookie = bookie
        self._waiting = waiting
        self._turn = trio.StrictFIFOLock()
        self._reservations: set[Reservation] = set()
        self._changed = trio.Event()
        bookie.call_on_change(self._wake)
        waiting.on_freed = self._wake

    @property
    def pending_bytes(self) -> int:
        """Of whole entries that are not durable."""
        return self._waiting.waiting_bytes + self._bookie.queued_bytes

    @property
    def used_bytes(self) -> int:
        """Received or reserved, and not durable."""
        return self.receiving_bytes + self.pending_bytes

    def has_room(self) -> bool:
        """Whether a connection with a producer may be read without waiting."""
        return self._fits(1) and not self._turn.locked()

    def is_tight(self) -> bool:
        """Whether to read in small pieces: more than half is used."""
        return self.used_bytes * 2 > self.bytes_max

    async def wait_room(self) -> None:
        """Return once it is the caller's turn and something fits. Cancelling leaves nothing behind."""
        async with self._turn:
            await self._wait_until_fits(1)

    def try_reserve(self, reservation: Reservation, frame_bytes: int) -> bool:
        """Hold `frame_bytes` in all, if they fit now and nobody waits."""
        if self._turn.locked() or not self._fits(frame_bytes - reservation.held_bytes):
            return False
        self._hold(reservation, frame_bytes)
        return True

    async def reserve(self, reservation: Reservation, frame_bytes: int) -> None:
        """Hold `frame_bytes` in all, after those who came earlier. Cancelling leaves what was held before."""
        reservation.is_waiting = True
        try:
            async with self._turn:
                await self._wait_until_fits(frame_bytes - reservation.held_bytes)
                self._hold(reservation, frame_bytes)
        finally:
            reservation.is_waiting = False

    def release(self, reservation: Reservation) -> None:
        """The frame is whole (and counted elsewhere), or will never be. May be repeated."""
        self.receiving_bytes -= reservation.held_bytes
        assert self.receiving_bytes >= 0
        reservation.held_bytes = 0
        self._reservations.discard(reservation)
        self._wake()

    def _hold(self, reservation: Reservation, frame_bytes: int) -> None:
        if reservation not in self._reservations:
            self._reservations.add(reservation)
            reservation.seen_bytes = reservation.broken_promises = 0
        reservation.is_lent = False
        self.receiving_bytes += frame_bytes - reservation.held_bytes
        reservation.held_bytes = frame_bytes

    def _fits(self, size_bytes: int) -> bool:
        if not self._bookie.has_room():
            return False
        return self.used_bytes + size_bytes <= self.bytes_max or not self._will_change()

    def _will_change(self) -> bool:
        """Whether room will come without our doing. If not, the first in the queue gets it all the same: else
        nobody would ever go on.
        """
        if self.pending_bytes:
            return True
        return any(not reservation.is_lent for reservation in self._reservations)

    async def _wait_until_fits(self, size_bytes: int) -> None:
        if self._fits(size_bytes):
            return
        self.waits += 1
        check_at_s = trio.current_time() + PROMISE_CHECK_S
        while not self._fits(size_bytes):
            with trio.move_on_at(check_at_s) as waiting:
                self._changed = trio.Event()
                await self._changed.wait()
            if waiting.cancelled_caught:
                for reservation in tuple(self._reservations):
                    self.receiving_bytes -= reservation.check()
                check_at_s = trio.current_time() + PROMISE_CHECK_S

    def _wake(self) -> None:
        self._changed.set()
