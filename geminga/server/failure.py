"""The failure of a disk ends the broker."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from geminga.errors import StorageError

log = logging.getLogger("geminga.server")

FAILURE_SECONDS = 0.5
"""How long pending publishers have to read the error after a disk has failed."""


class Failure:
    """The first failure of a room below; the service stops for it."""

    def __init__(self, service: trio.CancelScope) -> None:
        self._service = service
        self.error: StorageError | None = None

    async def watch(
        self,
        run: Callable[..., object],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            await run(task_status=task_status)  # type: ignore[misc]
        except StorageError as error:
            # After a failed write or sync nothing is retried: what the disk has is not known any longer, and
            # only a recovery from what it gives back can tell.
            log.critical("storage failed, stopping: %s", error)
            self.error = self.error or error
            await trio.sleep(FAILURE_SECONDS)
            self._service.cancel()


def storage_error(failure: BaseException) -> StorageError | None:
    """The first error of a failure of the storage; None if anything else has failed, too."""
    while isinstance(failure, BaseExceptionGroup) and failure.split(StorageError)[1] is None:
        failure = failure.exceptions[0]
    return failure if isinstance(failure, StorageError) else None
