"""Wake-ups between the journal's thread and the loop: none is lost, on any way that a system offers."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from geminga.bookie.journal import bell as bell_module
from geminga.bookie.journal import edges as edges_module
from geminga.bookie.journal import journal_set
from geminga.bookie.journal.bell import Bell
from geminga.bookie.journal.edges import Edges, edges_of_loop
from geminga.bookie.journal.journal import Journal
from geminga.bookie.records.settings import BookieSettings
from geminga.broker.flow.broker_figures import LoopTurns
from geminga.broker.flow.outbox import Outgoing
from geminga.server.loop_edges import LoopEdges
from tests.bookie.journal.test_group_wait import LONG_S, Owner, running

HUNG_S = 100
EAGER = BookieSettings(journal_spacing_s=0.0)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="epoll")


@pytest.fixture(params=["edges", "trio"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the thread and the loop wake each other."""
    if request.param == "trio":
        monkeypatch.setattr(bell_module, "edges_of_loop", lambda: None)
    elif sys.platform != "linux":
        pytest.skip("epoll")
    return str(request.param)


class Sleeps:
    """A thread that sleeps until it is told to end, and counts the wake-ups."""

    def __init__(self, edges: Edges) -> None:
        self.edges = edges
        self.woken = 0
        self.ends = False
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self.ends:
            self.edges.sleep()
            self.woken += 1

    async def until_asleep(self) -> None:
        """Until the thread waits for a token that nothing has sent."""
        unread = bytearray(4)
        with trio.fail_after(HUNG_S):
            while True:
                fcntl.ioctl(self.edges._ours, termios.TIOCOUTQ, unread)
                if not any(unread):
                    return
                await trio.sleep(0.001)


@pytest.fixture
async def sleeps() -> AsyncIterator[Sleeps]:
    edges = edges_of_loop()
    assert edges is not None
    sleeps = Sleeps(edges)
    sleeps.thread.start()
    await sleeps.until_asleep()
    yield sleeps
    sleeps.ends = True
    edges.wake()
    await trio.to_thread.run_sync(sleeps.thread.join)
    edges.close()


# -- the descriptors ---------------------------------------------------------------------------------------


@on_linux
async def test_trio_has_the_epoll_object_that_is_looked_for() -> None:
    edges = edges_of_loop()
    assert edges is not None
    edges.close()


@on_linux
async def test_a_trio_that_is_not_as_it_is_known_gets_no_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would fail at the first event of a descriptor that it does not know."""
    monkeypatch.setattr(edges_module, "defaultdict", Sleeps)
    assert edges_of_loop() is None


@on_linux
async def test_a_kernel_that_tells_nothing_of_a_sleep_gets_no_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edges_module.socket, "MSG_WAITALL", edges_module.socket.MSG_PEEK)
    assert edges_of_loop() is None


@on_linux
async def test_each_wake_up_ends_one_sleep(sleeps: Sleeps) -> None:
    for count in range(1, 100):
        sleeps.edges.wake()
        await sleeps.until_asleep()
        assert sleeps.woken == count


@on_linux
async def test_wake_ups_before_a_sleep_are_kept(sleeps: Sleeps) -> None:
    for _ in range(50):
        sleeps.edges.wake()
    await sleeps.until_asleep()
    assert sleeps.woken == 50


@on_linux
async def test_more_wake_ups_than_the_socket_takes_are_as_good_as_those_that_it_takes() -> None:
    edges = edges_of_loop()
    assert edges is not None
    for _ in range(10_000):
        edges.wake()
    edges.sleep()
    edges.close()


@on_linux
async def test_a_signal_ends_no_sleep(sleeps: Sleeps) -> None:
    came = []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
    try:
        for count in range(1, 20):
            assert sleeps.thread.ident is not None
            signal.pthread_kill(sleeps.thread.ident, signal.SIGUSR1)
            while len(came) < count:  # noqa: ASYNC110 - the handler cannot set an event
                await trio.sleep(0.001)
            sleeps.edges.wake()
            await sleeps.until_asleep()
            assert sleeps.woken == count
    finally:
        signal.signal(signal.SIGUSR1, before)


class Turns(trio.abc.Instrument):
    """Tells when the loop has slept."""

    def __init__(self) -> None:
        self.slept = trio.Event()

    def after_io_wait(self, timeout: float) -> None:
        if timeout:
            self.slept.set()


@on_linux
@pytest.mark.parametrize("call", ["ring", "sleep"])
async def test_a_ring_and_a_sleep_end_the_wait_of_a_loop_that_follows_its_turns(call: str) -> None:
    answers: list[None] = []
    with Bell(lambda: answers.append(None)) as bell:
        bell.follow(True)
        for _ in range(200):
            turns = Turns()
            trio.lowlevel.add_instrument(turns)
            thread = threading.Thread(target=bell.ring if call == "ring" else lambda: bell.sleep(rings=True))
            thread.start()
            with trio.fail_after(HUNG_S):
                await turns.slept.wait()
            trio.lowlevel.remove_instrument(turns)
            bell.wake()
            thread.join()
            if call == "ring":
                bell.sleep(rings=False)  # takes the token
    assert answers == []


# -- the journal -------------------------------------------------------------------------------------------


async def test_no_entry_waits_for_ever_when_each_comes_after_the_receipt_of_the_last(
    tmp_path: Path, way: str
) -> None:
    """Many, because a wake-up that is lost is lost in a window of a few instructions."""
    async with running(tmp_path, EAGER) as bookie:
        owner = Owner(bookie)
        with trio.fail_after(HUNG_S), LoopEdges(bookie.journals, Outgoing(), LoopTurns()).followed():
            for number in range(500):
                owner.writer.append(b"one")
                await owner.until_durable(number)


async def test_no_entry_waits_for_ever_when_entries_come_beside_a_sync(tmp_path: Path, way: str) -> None:
    async with running(tmp_path, EAGER) as bookie:
        owner = Owner(bookie)
        with trio.fail_after(HUNG_S), LoopEdges(bookie.journals, Outgoing(), LoopTurns()).followed():
            for number in range(0, 1500, 3):
                for _ in range(3):
                    owner.writer.append(b"one of three")
                    await trio.lowlevel.checkpoint()
                await owner.until_durable(number)
            await owner.until_durable(1499)


async def test_no_entry_waits_for_ever_when_turns_cease_to_be_followed(tmp_path: Path, way: str) -> None:
    async with running(tmp_path, EAGER) as bookie:
        owner = Owner(bookie)
        with trio.fail_after(HUNG_S):
            for number in range(0, 600, 3):
                with LoopEdges(bookie.journals, Outgoing(), LoopTurns()).followed():
                    owner.writer.append(b"followed")
                    await owner.until_durable(number)
                    owner.writer.append(b"followed for a while")
                    await trio.lowlevel.checkpoint()
                await owner.until_durable(number + 1)
                owner.writer.append(b"not followed")
                await owner.until_durable(number + 2)


class Racing(Journal):
    """An entry comes each time that the thread has announced its sleep and not looked again."""

    on_idle: Callable[[], None] = staticmethod(lambda: None)

    @property
    def idle(self) -> bool:
        return self._idle

    @idle.setter
    def idle(self, idle: bool) -> None:
        self._idle = idle
        if idle:
            Racing.on_idle()


@pytest.fixture
def ringers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that have rung. A ring that is missing is hard to see by its effect: the loop wakes up for
    some clock a little later.
    """
    found: list[threading.Thread] = []
    ring = Bell.ring

    def noted(bell: Bell) -> None:
        found.append(threading.current_thread())
        ring(bell)

    monkeypatch.setattr(Bell, "ring", noted)
    return found


async def test_a_receipt_does_not_wait_for_the_group_of_an_entry_that_keeps_the_thread_from_its_sleep(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch, ringers: list[threading.Thread]
) -> None:
    monkeypatch.setattr(journal_set, "Journal", Racing)
    loop_slept = []
    async with running(tmp_path, BookieSettings(journal_spacing_s=LONG_S)) as bookie:
        owner, journal = Owner(bookie), bookie.journals.of(1)

        def come() -> None:
            if not loop_slept:
                loop_slept.append(journal._loop_sleeps)
                owner.writer.append(b"while the thread falls asleep")

        with trio.fail_after(HUNG_S), LoopEdges(bookie.journals, Outgoing(), LoopTurns()).followed():
            monkeypatch.setattr(Racing, "on_idle", staticmethod(come))
            owner.writer.append(b"first")
            await owner.until_durable(0)
            assert owner.durable == 0
            # A loop that some clock has woken looks for itself.
            assert not loop_slept[0] or set(ringers) - {threading.current_thread()}


async def test_the_loop_rings_for_a_group_that_was_done_within_its_turn(
    tmp_path: Path, way: str, ringers: list[threading.Thread]
) -> None:
    async with running(tmp_path, EAGER) as bookie:
        owner = Owner(bookie)
        with trio.fail_after(HUNG_S), LoopEdges(bookie.journals, Outgoing(), LoopTurns()).followed():
            owner.writer.append(b"first")
            await owner.until_durable(0)  # or the thread may not have begun
            for number in range(1, 20):
                owner.writer.append(b"one")
                await trio.lowlevel.checkpoint()
                while owner.durable < number and not bookie.journals.queued_counts()[1]:
                    os.sched_yield()
                was_late = owner.durable < number
                del ringers[:]
                await owner.until_durable(number)
                assert threading.current_thread() in ringers or not was_late


async def test_without_turns_each_group_is_answered(tmp_path: Path, way: str) -> None:
    async with running(tmp_path, EAGER) as bookie:
        owner = Owner(bookie)
        with trio.fail_after(HUNG_S):
            for number in range(100):
                owner.writer.append(b"alone")
                await owner.until_durable(number)
