"""The edges of the loop's turns: what was written in a turn has left when the loop sleeps, without its
connection's task, and in one write; what cannot leave is the task's again.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from geminga import limits
from geminga.bookie.journal.journal_set import JournalSet
from geminga.bookie.running.bookie import Bookie
from geminga.broker.flow.broker_figures import LoopTurns
from geminga.broker.flow.coalescing import ALONE_MIN, PAUSE_S, WINDOW_S, Coalescing
from geminga.broker.flow.outbox import LEAVING_BYTES_MAX, Outbox, Outgoing
from geminga.broker.flow.send_memory import SendMemory
from geminga.server.loop_edges import LoopEdges
from simulation.disk.sim_disk import SimDisk
from simulation.disk.sim_key_value import SimKeyValue
from tests.bookie.journal.test_group_wait import Owner


class CountingSocket:
    """A socket whose writes are counted, and may be kept small."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.writes: list[int] = []
        self.write_bytes_max = limits.MIB

    def send(self, data: bytes | memoryview) -> int:
        sent = self._sock.send(memoryview(data)[: self.write_bytes_max])
        self.writes.append(sent)
        return sent

    def fileno(self) -> int:
        return self._sock.fileno()


class TaskSteps(trio.abc.Instrument):
    """Counts how often the task of an outbox ran."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("Outbox.run")


@asynccontextmanager
async def connected(
    memory: SendMemory | None = None,
) -> AsyncIterator[tuple[Outbox, CountingSocket, socket.socket]]:
    bookie = await Bookie.open(SimDisk(), SimKeyValue(), "/bookie", threaded=False)
    outgoing = Outgoing()
    ours, theirs = socket.socketpair()
    with ours, theirs, LoopEdges(bookie.journals, outgoing, LoopTurns()).followed(), trio.fail_after(20):
        ours.setblocking(False)
        theirs.setblocking(False)
        outbox = Outbox(memory or SendMemory(64 * limits.MIB), outgoing)
        counting = CountingSocket(ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run, counting)
            await wait_all_tasks_blocked()
            yield outbox, counting, theirs
            nursery.cancel_scope.cancel()


async def received(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        await trio.lowlevel.wait_readable(sock)
        data += sock.recv(length - len(data))
    return data


async def test_what_a_turn_wrote_leaves_at_its_end_in_one_write_and_no_task_runs() -> None:
    steps = TaskSteps()
    async with connected() as (outbox, counting, theirs):
        trio.lowlevel.add_instrument(steps)
        for number in range(10):
            outbox.write(b"one ")
            outbox.write([b"two ", memoryview(b"three ")])
            assert await received(theirs, 14) == b"one two three "
            assert counting.writes == [14] * (number + 1)
        trio.lowlevel.remove_instrument(steps)
        assert steps.count == 0
        assert outbox.pending_bytes == 0
        assert outbox.bytes_sent == 140


async def test_what_the_socket_does_not_take_is_sent_by_the_task_in_order() -> None:
    block = bytes(range(256)) * (LEAVING_BYTES_MAX // 1024)
    wanted = b""
    async with connected() as (outbox, _, theirs):
        for number in range(40):
            part = bytes([number]) + block
            wanted += part
            outbox.write(part)
            await trio.lowlevel.checkpoint()
        assert 0 < outbox.bytes_sent < len(wanted)
        assert await received(theirs, len(wanted)) == wanted
        await outbox.drained()
        assert outbox.pending_bytes == 0


async def test_a_part_that_the_socket_took_is_not_sent_again_and_the_rest_follows() -> None:
    async with connected() as (outbox, counting, theirs):
        counting.write_bytes_max = 4
        for _ in range(3):
            outbox.write(b"0123456789")
            outbox.write(b"abcdef")
            assert await received(theirs, 16) == b"0123456789abcdef"
        assert counting.writes == [4] * 12


async def test_a_large_answer_is_the_tasks_to_send() -> None:
    steps = TaskSteps()
    async with connected() as (outbox, _, theirs):
        trio.lowlevel.add_instrument(steps)
        outbox.write(bytes(LEAVING_BYTES_MAX + 1))
        assert len(await received(theirs, LEAVING_BYTES_MAX + 1)) == LEAVING_BYTES_MAX + 1
        trio.lowlevel.remove_instrument(steps)
        assert steps.count > 0


async def test_outboxes_that_wait_for_memory_are_told_by_a_task_when_something_has_left() -> None:
    memory = SendMemory(10)
    told: list[str] = []
    async with connected(memory) as (outbox, _, theirs):
        waiting = Outbox(memory)
        waiting.on_writable.add(lambda: told.append(trio.lowlevel.current_task().name))
        outbox.write(b"x")
        memory.take(memory.full_bytes - 1)
        assert not waiting.is_writable()
        assert await received(theirs, 1) == b"x"
        assert told == [f"{Outbox.__module__}.Outbox.run"]
        memory.give(memory.full_bytes - 1)


async def test_drained_returns_although_nothing_has_left_yet() -> None:
    async with connected() as (outbox, _, theirs):
        outbox.write(b"last words")
        await outbox.drained()
        assert outbox.pending_bytes == 0
        assert theirs.recv(100) == b"last words"


async def test_a_peer_that_is_gone_ends_the_task() -> None:
    bookie = await Bookie.open(SimDisk(), SimKeyValue(), "/bookie", threaded=False)
    outgoing = Outgoing()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    outbox = Outbox(SendMemory(64 * limits.MIB), outgoing)
    with (
        ours,
        LoopEdges(bookie.journals, outgoing, LoopTurns()).followed(),
        trio.fail_after(20),
        pytest.RaisesGroup(OSError),
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run, ours)
            await wait_all_tasks_blocked()
            theirs.close()
            outbox.write(b"x")


def test_a_bug_at_an_edge_ends_the_loop() -> None:
    class Broken(JournalSet):
        def __init__(self) -> None:
            pass

        def following_turns(self):  # type: ignore[no-untyped-def]
            return trio.CancelScope()

        def begin_turn(self) -> None:
            pass

        def end_turn(self) -> None:
            raise ZeroDivisionError

    async def main() -> None:
        with LoopEdges(Broken(), Outgoing(), LoopTurns()).followed():
            await trio.sleep(60)

    with pytest.raises(trio.TrioInternalError):
        trio.run(main)


class RarePublishers:
    """So many that the loop pauses from now on, each with one message on its way."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self.coalescing = Coalescing(lambda: self._now_s)
        for _ in range(2):
            for publisher in range(ALONE_MIN):
                self.coalescing.sent(publisher, 1, is_alone=True)
            self._now_s += WINDOW_S
            pause_s = self.coalescing.pause_s(0.0, lambda: False)
        assert pause_s == PAUSE_S


async def test_the_loop_pauses_for_rare_publishers_but_not_while_their_entries_are_on_their_way() -> None:
    bookie = await Bookie.open(SimDisk(), SimKeyValue(), "/bookie", threaded=False)
    turns = LoopTurns()
    with LoopEdges(bookie.journals, Outgoing(), turns, RarePublishers().coalescing).followed():
        await trio.sleep(0.001)
        pauses = turns.statistics().pauses
        assert pauses > 0
        # Its journal does not run, so this entry stays on its way.
        Owner(bookie).writer.append(b"x")
        for _ in range(5):
            await trio.sleep(0.001)
        assert turns.statistics().pauses == pauses


async def test_no_pause_goes_beyond_the_next_deadline() -> None:
    bookie = await Bookie.open(SimDisk(), SimKeyValue(), "/bookie", threaded=False)
    asked_s: list[float] = []

    class Pausing(Coalescing):
        def pause_s(self, turn_s: float, is_writing: Callable[[], bool]) -> float:
            asked_s.append(trio.current_time())
            return 3600.0

    with LoopEdges(bookie.journals, Outgoing(), LoopTurns(), Pausing()).followed():
        await trio.sleep(0.001)
    assert asked_s
