"""Events of the delivery log: each is a tuple in the order of the format's columns, with names instead of
table indexes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from geminga.managed_ledger.cursor.batch_index import bits_of
from geminga.wire.message_metadata import peek_or_none

if TYPE_CHECKING:
    from geminga.managed_ledger.chain.entry import Entry
    from geminga.wire.peek import Peek

Event = tuple[int, int, str | None, str | None, str | None, int, int, int, int, int, int, int, int, int, int]

OPENED, PUBLISHED, DISPATCHED, ACKED, ACKED_UP_TO, SKIPPED_UP_TO = range(1, 7)
SUBSCRIBED, UNSUBSCRIBED, SOUGHT, DUPLICATE, MISSED, CLOSED, RELEASED = range(7, 14)
"""The values of `log_format.Kind`, which needs numpy and is imported with the first segment."""


AT_ANY_TIME: Final = -1
"""The bound for messages whose delivery time does not count."""


class DueTimes(Protocol):
    """The due times of messages for a subscription."""

    @property
    def overrides(self) -> Mapping[int, int]:
        """Due times that differ from those of the entries, by ledger id << 32 | entry id."""
        ...

    def early_max_ms(self) -> int:
        """How early an entry may be sent now; `AT_ANY_TIME` for no bound."""
        ...


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class PublishedRun(Protocol):
    """The fields to log of entries that one producer has published together."""

    @property
    def producer(self) -> _Named: ...
    @property
    def sequence_ids(self) -> Sequence[int]: ...
    @property
    def parsed(self) -> Sequence[Peek | None] | None:
        """None in place of an entry's metadata that cannot be read, or of all."""
        ...


class SubscriptionNotes:
    """Notes the events of one subscription."""

    __slots__ = ("_due_times", "_name", "_note_all", "_now_ms", "_step_ms", "_topic")

    def __init__(
        self,
        note_all: Callable[[Iterable[Event]], None],
        now_ms: Callable[[], int],
        step_ms: Callable[[], int],
        topic: str,
        name: str,
        due_times: DueTimes,
    ) -> None:
        """`note_all` takes events in the order in which they happen; `step_ms` is the clock's."""
        self._due_times = due_times
        self._note_all = note_all
        self._now_ms = now_ms
        self._step_ms = step_ms
        self._topic = topic
        self._name = name

    def dispatched(
        self,
        consumer: str,
        entries: Sequence[Entry],
        now_ms: int,
        ack_sets: Mapping[Any, tuple[int, list[int]]],
        counts: Mapping[Any, int],
    ) -> None:
        """These entries were sent to a consumer; for those in `ack_sets` only the messages whose bits are
        set. Changed delivery times replace those of the entries.
        """
        topic, name, events = self._topic, self._name, []
        changed = self._due_times.overrides
        early_ms: int | None = None
        step_ms = self._step_ms()
        for entry in entries:
            position = entry.position
            seen = entry.peek if entry.peek is not None else peek_or_none(entry.body)
            size, deliver_at_ms, publish_ms = noted_of(seen)
            count = counts.get(position, 0) if counts else 0
            head = (DISPATCHED, now_ms, topic, name, consumer, position[0], position[1])
            if deliver_at_ms:
                if early_ms is None:
                    early_ms = self._due_times.early_max_ms()
                if changed:
                    deliver_at_ms = changed.get(position[0] << 32 | position[1], deliver_at_ms)
            bounds = (early_ms or 0, step_ms) if deliver_at_ms else (0, 0)
            rest = (size, count, deliver_at_ms, publish_ms, -1, *bounds)
            if position in ack_sets:
                left = bits_of(ack_sets[position][1])
                events += [(*head, index, *rest) for index in range(size) if left >> index & 1]
            else:
                events.append((*head, -1, *rest))
        self._note_all(events)

    def acked(self, consumer: str | None, positions: Iterable[tuple[int, int]]) -> None:
        """Whole entries were acknowledged. A consumer of None means the broker (expiry, quota)."""
        now_ms, topic, name = self._now_ms(), self._topic, self._name
        self._note_all(
            (ACKED, now_ms, topic, name, consumer, ledger_id, entry_id, -1, 0, 0, 0, 0, -1, 0, 0)
            for ledger_id, entry_id in positions
        )

    def acked_messages(self, consumer: str, position: tuple[int, int], bits: int, size: int) -> None:
        """The messages of a batch whose bits are set were acknowledged."""
        now_ms, topic, name = self._now_ms(), self._topic, self._name
        self._note_all(
            (ACKED, now_ms, topic, name, consumer, position[0], position[1], index, size, 0, 0, 0, -1, 0, 0)
            for index in range(size)
            if bits >> index & 1
        )

    def acked_up_to(self, consumer: str, position: tuple[int, int], batch_index: int = -1) -> None:
        self._note(ACKED_UP_TO, position, consumer, batch_index)

    def skipped_up_to(self, position: tuple[int, int]) -> None:
        self._note(SKIPPED_UP_TO, position)

    def subscribed(self, mark_delete: tuple[int, int]) -> None:
        self._note(SUBSCRIBED, mark_delete)

    def unsubscribed(self) -> None:
        self._note(UNSUBSCRIBED, (0, 0))

    def sought(self, mark_delete: tuple[int, int]) -> None:
        self._note(SOUGHT, mark_delete)

    def released(self, consumer: str) -> None:
        self._note(RELEASED, (0, 0), consumer)

    def _note(
        self, kind: int, position: tuple[int, int], client: str | None = None, batch_index: int = -1
    ) -> None:
        now_ms = self._now_ms()
        ledger_id, entry_id = position
        event = (
            kind,
            now_ms,
            self._topic,
            self._name,
            client,
            ledger_id,
            entry_id,
            batch_index,
            0,
            0,
            0,
            0,
            -1,
            0,
            0,
        )
        self._note_all((event,))


def noted_of(seen: Peek | None) -> tuple[int, int, int]:
    """Messages in the entry, due time, publish time."""
    if seen is None:
        return 1, 0, 0
    return seen.num_messages_in_batch, seen.deliver_at_ms, seen.publish_time_ms
