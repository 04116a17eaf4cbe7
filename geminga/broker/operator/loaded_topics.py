"""The loaded topics, and since when the broker serves them."""

from __future__ import annotations

from geminga.broker.topic.rooms import Rooms
from geminga.broker.topic.topics import Topics


class LoadedTopics:
    def __init__(self, topics: Topics, rooms: Rooms) -> None:
        self._topics = topics
        self._clock = rooms.clock
        self.started_ms = rooms.clock.now_ms()
        self.clock_is_virtual = rooms.clock.is_virtual
        self._started_s = rooms.clock.monotonic_s()

    def __len__(self) -> int:
        return len(self._topics.loaded)

    def __contains__(self, full_name: str) -> bool:
        return full_name in self._topics.loaded

    def names(self) -> list[str]:
        """Full names, in no order."""
        return list(self._topics.loaded)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def uptime_s(self) -> float:
        """By I/O time, which a virtual clock does not move."""
        return self._clock.monotonic_s() - self._started_s
