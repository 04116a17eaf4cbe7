"""Work done once at the edges of each turn of the event loop, without a task.

A single message costs little compared with the turns of the loop that it needs. So the output of a turn
leaves at its end: one write to each client with unsent bytes, and one wake-up of each journal's thread with
work. Durable groups of the journals are reported before the next turn's tasks run, so that all their
consequences follow in that turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from geminga.bookie.journal.journal_set import JournalSet
from geminga.broker.flow.broker_figures import LoopTurns
from geminga.broker.flow.coalescing import Coalescing
from geminga.broker.flow.outbox import Outgoing
from geminga.clock import block


class LoopEdges(trio.abc.Instrument):
    """trio calls this before and after the loop waits for events, which is when it may sleep."""

    def __init__(
        self,
        journals: JournalSet,
        outgoing: Outgoing,
        turns: LoopTurns,
        coalescing: Coalescing | None = None,
    ) -> None:
        """`coalescing` says when to pause; None: never."""
        self._turns = turns
        self._journals = journals
        self._outgoing = outgoing
        self._coalescing = coalescing

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Call both edges, from the end of the turn that enters this context to the end of the turn that
        leaves it.
        """
        trio.lowlevel.add_instrument(self)
        try:
            with self._outgoing.sending(), self._journals.following_turns():
                yield
        finally:
            trio.lowlevel.remove_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        """The end of a turn. No task may be woken here: the loop has found none to run, and may sleep."""
        # Bytes first: the thread that is woken then takes the interpreter, when the loop has nothing left to
        # do.
        try:
            self._outgoing.send_all()
            self._journals.end_turn()
            self._pause(self._turns.end(), timeout)
        except BaseException as error:  # trio would log it and go on without these edges
            _end_run(error)

    def _pause(self, turn_s: float, timeout: float) -> None:
        if timeout > 0 and self._coalescing is not None:
            pause_s = self._coalescing.pause_s(turn_s, self._journals.is_writing)
            if pause_s:
                self._turns.pause()
                # The loop itself sleeps: this saves the turns that messages would cause one by one.
                block(min(pause_s, timeout))

    def after_io_wait(self, timeout: float) -> None:
        """The beginning of a turn: tasks that are woken here run in this turn."""
        # Syncs were once reported through trio's queue of callbacks, which cost each a turn of its own.
        try:
            self._turns.begin()
            self._journals.begin_turn()
        except BaseException as error:
            _end_run(error)


def _end_run(error: BaseException) -> None:
    """End the loop with this bug, as a bug in any callback does."""
    trio.lowlevel.current_trio_token().run_sync_soon(_raise, error)


def _raise(error: BaseException) -> None:
    raise error
