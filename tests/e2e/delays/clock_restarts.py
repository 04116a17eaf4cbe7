"""A virtual clock over restarts: how far it leaps at orderly stops, and where it stands after kills in moves.

    python -m tests.e2e.delays.clock_restarts --restarts 50 --kills 50

Every second stop comes in the middle of a move. After every fifth kill the broker is killed once more, to see
that the clock goes to the target of the move only once. Prints a line for each, then the figures; exit code 1
if one is out of bounds.
"""

from __future__ import annotations

import argparse
import http.client
import random
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pulsar

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.waiting import eventually, now_ms

TOPIC = "persistent://public/default/reminders"
DAY_MS = 86_400_000
STOPS = 8
ACKNOWLEDGED_AFTER_S = 0.03
"""What a stop of a move takes at least."""
LEAP_MS_MAX = 50


class Shown(NamedTuple):
    """Both clocks at one moment."""

    broker_ms: int
    wall_ms: int

    @property
    def offset_ms(self) -> int:
        return self.broker_ms - self.wall_ms


def shown(broker: BrokerProcess) -> Shown:
    answer = Admin(broker.endpoints.web_url).get("/geminga/clock").json()
    return Shown(answer["now_ms"], answer["wall_ms"])


class Moving(threading.Thread):
    """A move over `STOPS` days, each with a message that takes its consumer a moment."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self.from_ms = shown(broker).broker_ms
        self.to_ms = self.from_ms + STOPS * DAY_MS + DAY_MS // 2
        self.answer: Mapping[str, Any] | None = None
        self._broker = broker

    def run(self) -> None:
        body = {"to_ms": self.to_ms, "wait": "acknowledged"}
        try:
            self.answer = Admin(self._broker.endpoints.web_url).post("/geminga/clock", body).json()
        except (OSError, EOFError, http.client.HTTPException):
            pass  # the broker has ended, which is what this is about

    def reaches(self, day: int) -> None:
        """Return within the move, when the clock has gone so far, or after it."""
        eventually(lambda: shown(self._broker).broker_ms >= self.from_ms + day * DAY_MS or self.answer)


@contextmanager
def application(broker: BrokerProcess) -> Iterator[None]:
    """A client that acknowledges slowly, and has a message due on each of the next days."""

    def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        threading.Event().wait(ACKNOWLEDGED_AFTER_S)
        with suppress(pulsar.PulsarException):  # its broker has ended, or the client
            consumer.acknowledge(message)

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.endpoints.service_url, logger=logger)
    client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared, message_listener=listen)
    producer = client.create_producer(TOPIC)
    for day in range(1, STOPS + 1):
        producer.send(b"%d" % day, deliver_after=timedelta(days=day))
    yield
    with suppress(pulsar.PulsarException):  # its producer may be on its way to a broker that is gone
        client.close()


def leap_after_a_move_ms(broker: BrokerProcess) -> int:
    """By how much broker time and real time differ more, or less, after an orderly restart."""
    with application(broker):
        moving = Moving(broker)
        moving.run()
        assert moving.answer is not None
        before = shown(broker)
    assert broker.stop() == 0
    broker.start()
    return shown(broker).offset_ms - before.offset_ms


def leap_within_a_move_ms(broker: BrokerProcess, day: int) -> int:
    """The same where the stop ends a move: the last event has both clocks as they were then."""
    with application(broker):
        moving = Moving(broker)
        moving.start()
        moving.reaches(day)
        assert broker.stop() == 0
        moving.join()
    broker.start()
    events = Admin(broker.endpoints.web_url).get("/geminga/events?kind=stopped&limit=1").json()
    return shown(broker).offset_ms - (events[-1]["time_ms"] - events[-1]["wall_ms"])


class Killed(NamedTuple):
    beyond_target_ms: int
    """How far the clock was beyond the target after the start."""
    since_start_ms: int
    """Real time since that start began: the clock may be beyond the target by so much."""
    leap_ms: int | None
    """At another kill and start, if there was one."""

    @property
    def is_within_bounds(self) -> bool:
        return 0 <= self.beyond_target_ms <= self.since_start_ms and abs(self.leap_ms or 0) <= LEAP_MS_MAX


def killed_within_a_move(broker: BrokerProcess, day: int, *, twice: bool) -> Killed | None:
    """None: the move was over before the kill."""
    with application(broker):
        moving = Moving(broker)
        moving.start()
        moving.reaches(day)
        broker.kill()
        moving.join()
    began_ms = now_ms()
    broker.start()
    first, leap_ms = shown(broker), None
    if twice:
        broker.kill()
        broker.start()
        leap_ms = shown(broker).offset_ms - first.offset_ms
    if moving.answer is not None:
        return None
    return Killed(first.broker_ms - moving.to_ms, first.wall_ms - began_ms, leap_ms)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--restarts", type=int, default=50)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args(arguments)
    chance = random.Random(flags.seed)
    leaps: dict[str, list[int]] = {"after a move": [], "within a move": []}
    killed: list[Killed] = []
    too_late = 0
    with (
        tempfile.TemporaryDirectory() as directory,
        BrokerProcess(Path(directory, "data"), arguments=["--clock", "virtual"]) as broker,
    ):
        for number in range(flags.restarts):
            if number % 2:
                when, leap_ms = "within a move", leap_within_a_move_ms(broker, chance.randint(1, STOPS))
            else:
                when, leap_ms = "after a move", leap_after_a_move_ms(broker)
            leaps[when].append(leap_ms)
            print(f"restart {number + 1} {when}: a leap of {leap_ms} ms", flush=True)
        while len(killed) < flags.kills:
            # Not before the first stop, nor near the end: a move may be over and not answered yet.
            found = killed_within_a_move(broker, chance.randint(1, STOPS - 2), twice=len(killed) % 5 == 0)
            if found is None:
                too_late += 1
            else:
                killed.append(found)
                print(f"kill {len(killed)}: {found}", flush=True)
    for when, found_ms in leaps.items():
        if found_ms:
            print(
                f"{len(found_ms)} orderly restarts {when}: leaps from {min(found_ms)} to {max(found_ms)} ms"
            )
    if killed:
        print(f"{len(killed)} kills within a move (and {too_late} that came after its end):")
        beyond = [one.beyond_target_ms for one in killed]
        least = min(one.since_start_ms - one.beyond_target_ms for one in killed)
        print(
            f"  beyond the target: {min(beyond)} to {max(beyond)} ms, and each time at least {least} ms less"
        )
        print("  than the real time since the start")
        again_ms = [one.leap_ms for one in killed if one.leap_ms is not None]
        print(f"  leaps at {len(again_ms)} further kills: from {min(again_ms)} to {max(again_ms)} ms")
    is_good = all(abs(leap) <= LEAP_MS_MAX for found in leaps.values() for leap in found)
    return 0 if is_good and all(one.is_within_bounds for one in killed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
