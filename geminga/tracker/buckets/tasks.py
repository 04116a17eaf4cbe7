"""The tasks of one index on the bookie: buckets are taken over, sealed, loaded, merged, inspected, deleted.

What is read and does not match its checksum costs the bucket, and the bucket only: its ledgers are read again
from the backlog. What cannot be written or deleted is tried again, at growing intervals.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from geminga.tracker.buckets.buckets import Buckets
from geminga.tracker.buckets.loading import Loader
from geminga.tracker.buckets.merge_task import run_merging
from geminga.tracker.buckets.recovery import Recovery
from geminga.tracker.buckets.sealing import run_sealing
from geminga.tracker.buckets.verify import run_inspections


async def run_buckets(
    buckets: Buckets,
    recovery: Recovery | None = None,
    on_recovered: Callable[[], None] | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Until `Buckets.stop`, or cancelled, at any moment: each index is then in a named bucket or in the
    backlog, and what nothing names is swept at the next start. `on_recovered` is called once all that
    `recovery` found is taken over.
    """
    with buckets.until_stopped():
        async with trio.open_nursery() as nursery:
            if buckets.keeps:
                # A task for each, so that none waits for another: a merge of millions of rows holds up no
                # segment that is due.
                nursery.start_soon(run_sealing, buckets)
                # Before recovery is through: a bucket that is taken over first may have messages that are due
                # now.
                nursery.start_soon(Loader(buckets).run)
                nursery.start_soon(run_merging, buckets)
                nursery.start_soon(buckets.run_deletions)
                nursery.start_soon(run_inspections, buckets)
            task_status.started()
            if recovery is not None:
                await recovery.run()
                buckets.end_recovery()
                buckets.events.recovered(len(buckets.serving), buckets.losses.by["start"])
                # Only after `end_recovery`: dispatching does not wait for what could not be read.
                nursery.start_soon(recovery.run_late)
            if on_recovered is not None:
                on_recovered()
