"""Work done once at the edges of each turn of the event loop, without a task.

A message that comes alone costs little beside the turns of the loop that it takes. So what a turn has put
together leaves at its end: one write to each client that is to hear something, and one wake-up of each
journal's thread that has something to do. And what the journals have made durable is taken in before the next
turn's tasks run, so that all that follows from it belongs to this turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from geminga.bookie.journal.journal_set import JournalSet
from geminga.broker.flow.outbox import Outgoing


class LoopEdges(trio.abc.Instrument):
    """Called by trio before and after the loop looks for events, which is where it may sleep."""

    def __init__(self, journals: JournalSet, outgoing: Outgoing) -> None:
        self._journals = journals
        self._outgoing = outgoing

    @contextmanager
    def followed(self) -> Iterator[None]:
        """From the end of the turn that enters it to that of the one that leaves it."""
        trio.lowlevel.add_instrument(self)
        try:
            with self._outgoing.sending(), self._journals.following_turns():
                yield
        finally:
            trio.lowlevel.remove_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        """The end of a turn. No task may be woken here: the loop has seen that none waits, and may sleep."""
        try:
            self._outgoing.send_all()
            self._journals.end_turn()
        except BaseException as error:  # trio would log it and go on without these edges
            _end_run(error)

    def after_io_wait(self, timeout: float) -> None:
        """The beginning of one: tasks that are woken here have their turn in it."""
        try:
            self._journals.begin_turn()
        except BaseException as error:
            _end_run(error)


def _end_run(error: BaseException) -> None:
    """Have the loop end with this bug, as it does with that of any callback."""
    trio.lowlevel.current_trio_token().run_sync_soon(_raise, error)


def _raise(error: BaseException) -> None:
    raise error
