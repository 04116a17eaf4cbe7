"""What a journal says of its queue: the bytes that are not durable yet, which bound what publishers send."""

from __future__ import annotations

from pathlib import Path

from geminga.bookie.records.records import RECORD_PREFIX_BYTES
from geminga.bookie.records.settings import BookieSettings
from tests.bookie.journal.test_group_wait import Owner, running


async def test_the_queue_counts_records_until_they_are_reported_durable(tmp_path: Path) -> None:
    async with running(tmp_path, BookieSettings()) as bookie:
        owner = Owner(bookie)
        sizes = (0, 1, 1000)
        for size in sizes:
            owner.writer.append(bytes(size))
        # The loop has not run since, so nothing can have been reported.
        assert bookie.queued_bytes == sum(sizes) + len(sizes) * RECORD_PREFIX_BYTES
        await owner.until_durable(2)
        assert bookie.queued_bytes == 0
        assert bookie.durable_bytes == sum(sizes) + len(sizes) * RECORD_PREFIX_BYTES
