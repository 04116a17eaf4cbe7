"""The memory for bytes from publishers that are received, or about to be, and not durable yet.

No message is counted by itself: the journal counts its queue, `AppendRoom` the entries that wait for a
ledger, and this module the large frames. Small frames come in chunks, which have a share of the memory that
no large frame takes, so small frames never wait for large ones. A large frame is received in its turn. Turns
are in the order of the requests, each with room for the whole frame.

A turn relies on the sender to send the rest of the frame. A sender without progress loses its turn, and
requests another when it continues. The received part of its frame is kept until others need the memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from geminga.limits import KIB, RECEIVE_BYTES_FIRST

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie
    from geminga.managed_ledger.chain.append_room import AppendRoom

# Room for a frame used to be reserved from its header, whatever its size. A few dozen connections that sent
# the first half of a frame and stopped then stopped all publishers, also those with messages of 100 bytes.
SMALL_FRAME_BYTES_MAX = 64 * KIB
"""A frame up to this size needs no turn."""
SMALL_SHARE_DIVISOR = 8
"""Large frames never take this part of the memory."""
# 128 KiB a second while others wait was tried and taken back: a publisher that makes progress must not be cut
# off, however slow its link is. The price: with the default budget three senders of 20 KB/s hold all turns,
# four minutes for each of their messages.
PROGRESS_BYTES = 16 * KIB
"""A turn continues while at least this many bytes arrive in `PROGRESS_S`."""
PROGRESS_S = 1.0
"""See `PROGRESS_BYTES`."""


class LargeFrame:
    """The large frame that one connection is receiving, if any. Only `PublishMemory` changes it.

    The connection releases it with `PublishMemory.release` when it ends.
    """

    __slots__ = ("_disconnect", "_seen_bytes", "has_turn", "held_bytes", "is_waiting", "progress_due_s")

    def __init__(self, disconnect: Callable[[], None]) -> None:
        """`disconnect()` ends the connection, and may be called from any task."""
        self._disconnect = disconnect
        self._seen_bytes = 0
        self.held_bytes = 0
        """Counted bytes: the whole frame while it has its turn, else the received part."""
        self.has_turn = False
        self.is_waiting = False
        """Whether the frame waits for a turn. Its connection is not read meanwhile, so silence means
        nothing.
        """
        self.progress_due_s = 0.0
        """The turn is lost if there is no progress before this time (trio's clock)."""

    def begin_turn(self, frame_bytes: int, received_bytes: int) -> None:
        self.has_turn = True
        self.held_bytes = frame_bytes
        self.restart_watch(received_bytes)

    def end_turn(self, held_bytes: int) -> None:
        self.has_turn = False
        self.held_bytes = held_bytes

    def restart_watch(self, received_bytes: int) -> None:
        """Expect progress from now on."""
        self._seen_bytes = received_bytes
        self.progress_due_s = trio.current_time() + PROGRESS_S

    def is_progressing(self, received_bytes: int) -> bool:
        """Whether the turn continues. Call this after an attempt to receive."""
        # After, not before: bytes that came in time count even if the loop was late to look.
        if received_bytes - self._seen_bytes >= PROGRESS_BYTES:
            self.restart_watch(received_bytes)
            return True
        return trio.current_time() < self.progress_due_s

    def disconnect(self) -> None:
        self._disconnect()


class PublishMemory:
    """One per broker; all connections share it."""

    def __init__(self, bytes_max: int, bookie: Bookie, waiting: AppendRoom) -> None:
        self.bytes_max = bytes_max
        self.small_share_bytes = bytes_max // SMALL_SHARE_DIVISOR
        self.receiving_bytes = 0
        """Bytes of incomplete large frames: the whole size of a frame with a turn, else the
        received part.
        """
        self.waits = 0
        """How often a connection was not read for lack of room."""
        self._bookie = bookie
        self._waiting = waiting
        # First come, first served: woken all at once, the fastest connection would take the room each time.
        self._small_queue = trio.StrictFIFOLock()
        self._large_queue = trio.StrictFIFOLock()
        self._changed = trio.lowlevel.ParkingLot()
        self._turns = 0
        """The number of frames with a turn."""
        self._lost: dict[LargeFrame, None] = {}
        """Frames that have lost their turn, in that order, until they get another one or end."""
        self._lost_bytes = 0
        """The bytes held for frames in `_lost`."""
        # By the bookie's count of durable bytes, not by entry: the path of an entry knows nothing of frames.
        self._handed_on: deque[tuple[int, int]] = deque()
        """Whole large frames that may not be durable: (`Bookie.durable_bytes` once they are, size)."""
        self._handed_on_bytes = 0
        bookie.call_on_change(self._wake)
        waiting.call_when_freed(self._wake)

    @property
    def pending_bytes(self) -> int:
        """Bytes of complete entries that are not durable."""
        return self._waiting.waiting_bytes + self._bookie.queued_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that are received or reserved, and not durable."""
        return self.receiving_bytes + self.pending_bytes

    def is_tight(self) -> bool:
        """Whether connections should read in small pieces: more than half of the memory is used."""
        return self.used_bytes * 2 > self.bytes_max

    # -- chunks of small frames ------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether a connection with a producer may be read, outside a large frame, without waiting."""
        # A queue that is not empty counts as no room, or a busy connection would overtake those that wait.
        return not self._small_queue.locked() and self._small_fits()

    async def wait_room(self) -> None:
        """Return once it is the caller's turn and there is room. Cancelling releases everything."""
        async with self._small_queue:
            if not self._small_fits():
                self.waits += 1
            while not self._small_fits():
                await self._changed.park()

    def _small_fits(self) -> bool:
        """Whether a small frame fits. Small frames may use all memory that large frames leave free, but only
        their share while a large frame waits.
        """
        # The journal's queue and the write caches have bounds of their own. Beyond those an entry would only
        # wait in memory for its disk.
        if not self._bookie.has_room():
            return False
        if not self._large_queue.locked() and self.used_bytes < self.bytes_max:
            return True
        return self.pending_bytes - self._large_pending_bytes() < self.small_share_bytes

    # -- large frames ----------------------------------------------------------------------------------------

    def begin(self, frame: LargeFrame, received_bytes: int) -> None:
        """Count the received part of a frame that has no turn."""
        # Up to `RECEIVE_BYTES_FIRST` is not counted: every connection may hold as much of an unfinished
        # frame.
        held_bytes = received_bytes if received_bytes > RECEIVE_BYTES_FIRST else 0
        self._hold(frame, held_bytes)
        frame.end_turn(held_bytes)

    def try_take_turn(self, frame: LargeFrame, frame_bytes: int, received_bytes: int) -> bool:
        """Give the frame its turn, if all of it fits now and no other waits."""
        if self._large_queue.locked() or not self._large_fits(frame, frame_bytes):
            return False
        self._give_turn(frame, frame_bytes, received_bytes)
        return True

    async def take_turn(self, frame: LargeFrame, frame_bytes: int, received_bytes: int) -> None:
        """Give the frame its turn after those that have waited longer. Cancelling keeps the
        earlier state.
        """
        frame.is_waiting = True
        try:
            async with self._large_queue:
                if not self._large_fits(frame, frame_bytes):
                    self.waits += 1
                while not self._large_fits(frame, frame_bytes):
                    # Looked at again after each disconnect: one may be enough.
                    if not self._disconnect_lost(frame, frame_bytes):
                        await self._changed.park()
                self._give_turn(frame, frame_bytes, received_bytes)
        finally:
            frame.is_waiting = False
            self._wake()  # small frames may use the room that they left for it

    def leave_turn(self, frame: LargeFrame, received_bytes: int) -> None:
        """Reduce the reservation to the received part. The sender did nothing wrong."""
        self._turns -= 1
        self.begin(frame, received_bytes)
        self._wake()

    def lose_turn(self, frame: LargeFrame, received_bytes: int) -> None:
        """As `leave_turn`, for a sender without progress, whose frame is released first when others need
        room.
        """
        if frame.has_turn:
            self.leave_turn(frame, received_bytes)
        # A frame of which next to nothing has come holds nothing: closing its connection would free no
        # memory.
        if frame.held_bytes:
            self._lost[frame] = None
            self._lost_bytes += frame.held_bytes
            self._wake()

    def _found_again(self, frame: LargeFrame) -> None:
        """Remove a frame from the list of lost ones. Call this before its `held_bytes` change."""
        if frame in self._lost:
            del self._lost[frame]
            self._lost_bytes -= frame.held_bytes

    def hand_on(self, frame: LargeFrame) -> None:
        """The frame is complete. Its entry was appended, and counts as pending, or was refused."""
        # Its bytes stay large ones until they are durable. Otherwise a whole frame would use up the share of
        # the small ones at this moment.
        if frame.held_bytes:
            self._handed_on.append((self._bookie.durable_bytes + self.pending_bytes, frame.held_bytes))
            self._handed_on_bytes += frame.held_bytes
        self.release(frame)

    def release(self, frame: LargeFrame) -> None:
        """No frame is being received, or it will never be complete. May be repeated."""
        self._found_again(frame)
        if frame.has_turn:
            self._turns -= 1
        self._hold(frame, 0)
        frame.end_turn(0)
        self._wake()

    def _give_turn(self, frame: LargeFrame, frame_bytes: int, received_bytes: int) -> None:
        self._found_again(frame)
        self._turns += 1
        self._hold(frame, frame_bytes)
        frame.begin_turn(frame_bytes, received_bytes)

    def _hold(self, frame: LargeFrame, size_bytes: int) -> None:
        self.receiving_bytes += size_bytes - frame.held_bytes
        assert self.receiving_bytes >= 0

    def _large_pending_bytes(self) -> int:
        """Bytes of complete large frames that are not durable."""
        # The bookie counts durable bytes of all journals together. With several of them a frame may be taken
        # for durable too early, when others have written more meanwhile; the sum over all frames stays exact.
        handed_on, durable_bytes = self._handed_on, self._bookie.durable_bytes
        while handed_on and handed_on[0][0] <= durable_bytes:
            self._handed_on_bytes -= handed_on.popleft()[1]
        return min(self._handed_on_bytes, self.pending_bytes)

    def _large_fits(self, frame: LargeFrame, frame_bytes: int) -> bool:
        if not self._bookie.has_room():
            return False
        large_pending_bytes = self._large_pending_bytes()
        small_bytes = max(self.pending_bytes - large_pending_bytes, self.small_share_bytes)
        if self._with_frame_bytes(frame, frame_bytes) + large_pending_bytes + small_bytes <= self.bytes_max:
            return True
        # A frame that is larger than all of the memory would wait for ever. It comes when it is the only one.
        return (
            not self._turns
            and not large_pending_bytes
            and small_bytes == self.small_share_bytes
            and self._lost_others_bytes(frame) <= self.small_share_bytes
        )

    def _with_frame_bytes(self, frame: LargeFrame, frame_bytes: int) -> int:
        return self.receiving_bytes - frame.held_bytes + frame_bytes

    def _lost_others_bytes(self, frame: LargeFrame) -> int:
        return self._lost_bytes - (frame.held_bytes if frame in self._lost else 0)

    def _disconnect_lost(self, frame: LargeFrame, frame_bytes: int) -> bool:
        """If `frame` would get no room otherwise, disconnect a connection that has lost its turn: silent
        ones before waiting ones, and among these the one that lost its turn first. Returns False if none has
        to be disconnected.
        """
        # Frames with a turn, pending entries and a busy bookie all give room without being forced to.
        if self._turns or self._large_pending_bytes() or not self._bookie.has_room():
            return False
        if self._lost_others_bytes(frame) <= self.small_share_bytes:
            return False
        if self._with_frame_bytes(frame, frame_bytes) + self.small_share_bytes <= self.bytes_max:
            return False
        lost = min((each for each in self._lost if each is not frame), key=lambda each: each.is_waiting)
        self.release(lost)
        lost.disconnect()
        return True

    def _wake(self) -> None:
        # All of them look: which one fits depends on its size, and at most two tasks wait here (one of each
        # queue).
        self._changed.unpark_all()
