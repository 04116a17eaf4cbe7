"""What the admin API needs of the process as a whole; `geminga.broker.operator.view` passes it through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Protocol

from geminga.broker.flow.snapshot_reports import SnapshotCalls
from geminga.broker.flow.statistics import BackupReport, DiskStatistics, MemoryStatistics
from geminga.broker.operator.health import HealthReport
from geminga.config.operator_token import OperatorToken
from geminga.events.event_log import EventLog


class ProcessView(Protocol):
    """Only the composition root knows all the rooms that these calls concern."""

    def snapshots(self) -> SnapshotCalls: ...

    @property
    def operator_token(self) -> OperatorToken: ...

    @property
    def events(self) -> EventLog | None: ...

    @property
    def disk(self) -> Callable[[], Awaitable[DiskStatistics]] | None:
        """Asks the file systems, on a thread; None where a test makes a view by itself."""
        ...

    def memory(self) -> MemoryStatistics:
        """Without the shares of `process`."""
        ...

    def memory_in_slices(self) -> Generator[None, None, MemoryStatistics]:
        """With these: looks at each loaded topic, and yields now and then."""
        ...

    def backup(self, directory: str, /) -> Awaitable[BackupReport]:
        """A consistent copy of all data in a new directory, durable on return. `Conflict` says why not."""
        ...

    def health(self) -> Awaitable[HealthReport]:
        """Whether a message could be published and read, a second ago at most, and if not, why."""
        ...

    def dropped_log_lines(self) -> int:
        """Lines of the log, since the start, that found no room or no reader."""
        ...
