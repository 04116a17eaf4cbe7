"""Writes down the changed cursors of all topics, at ticks that they share.

Each topic with a clock of its own would cost a journal group, and so a sync, four times a second and topic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import trio

from geminga.errors import GemingaError
from geminga.limits import KIB, MIB
from geminga.managed_ledger.chain.tasks import StartsTasks
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.cursor.cursor_state_format import EncodedState
from geminga.managed_ledger.cursor_set import CursorSet

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie

GROUP_STATES_MAX: Final = 1000
GROUP_BYTES_MAX: Final = 1 * MIB
"""Of one group. They are queued in one turn of the loop, and reported in one."""
GROUPS_APART_S: Final = 0.2
"""Five groups a second, at any number of topics: with more changed cursors than fit in one group, a round of
them takes longer than the interval.
"""
TURN_STATES_MAX: Final = 50
TURN_BYTES_MAX: Final = 64 * KIB
"""What is encoded, or taken note of, in one turn."""
ALONE_AT_ONCE: Final = 100
"""Cursors that begin a ledger, each with writes to the metadata. A thousand tasks at once would make one long
turn.
"""


_Save = tuple[Cursor, EncodedState]


class CursorSaver:
    """One for all managed ledgers of a broker. Its task is only there while something has changed."""

    def __init__(self, bookie: Bookie, tasks: StartsTasks, interval_ms: int) -> None:
        """A cursor that has changed is written `interval_ms` later at the earliest."""
        self._bookie = bookie
        self._tasks = tasks
        self._interval_s = interval_ms / 1000
        self._changed: dict[CursorSet, None] = {}
        self._is_running = False

    def note(self, cursors: CursorSet) -> None:
        """Something of these has changed. Call it once for each `take_changed`."""
        self._changed[cursors] = None
        if not self._is_running:
            self._is_running = True
            self._tasks.start_soon(self._run)

    async def _run(self) -> None:
        try:
            while self._changed:
                # The first change sets the time, later ones do not move it: under a steady stream of
                # acknowledgments it would never come.
                await trio.sleep(self._interval_s)
                changed, self._changed = self._changed, {}
                await self._save(changed)
        finally:
            self._is_running = False

    async def _save(self, changed: Iterable[CursorSet]) -> None:
        group: list[_Save] = []
        alone: list[Cursor] = []
        turn_states = turn_bytes = group_bytes = 0
        try:
            for cursors in changed:
                for cursor in cursors.take_changed():
                    state = cursor.begin_save()
                    if state is None:
                        alone.append(cursor)
                        continue
                    group.append((cursor, state))
                    group_bytes += len(state.data)
                    turn_bytes += len(state.data)
                    turn_states += 1
                    if len(group) == GROUP_STATES_MAX or group_bytes >= GROUP_BYTES_MAX:
                        await self._save_group(group)
                        turn_states = turn_bytes = group_bytes = 0
                        await trio.sleep(min(self._interval_s, GROUPS_APART_S))
                    elif turn_states >= TURN_STATES_MAX or turn_bytes >= TURN_BYTES_MAX:
                        turn_states = turn_bytes = 0
                        await trio.lowlevel.checkpoint()
            if group:
                await self._save_group(group)
        finally:
            # Cancelled: these stay due.
            for cursor, _ in group:
                cursor.give_up_save()
        for first in range(0, len(alone), ALONE_AT_ONCE):
            # In parallel, so that their records meet in one group of the metadata store and share a sync.
            async with trio.open_nursery() as nursery:
                for cursor in alone[first : first + ALONE_AT_ONCE]:
                    nursery.start_soon(_save_alone, cursor)

    async def _save_group(self, group: list[_Save]) -> None:
        """Make them durable, and take each out of `group` that is done with."""
        # A state is up to 4 MiB, and many may be due at once: they wait for room like publishers do.
        await self._bookie.wait_room()
        # All are encoded by now, and no turn comes in between: the journal would begin a group with the first
        # ones.
        for cursor, state in group:
            cursor.add_state(state)
        group.reverse()
        while group:
            cursor, state = group.pop()
            await cursor.end_save(state)
            if len(group) % TURN_STATES_MAX == 0:
                await trio.lowlevel.checkpoint()


async def _save_alone(cursor: Cursor) -> None:
    # The cursor has told its managed ledger, or is due again after a full disk.
    with contextlib.suppress(GemingaError):
        await cursor.persist_if_open()
