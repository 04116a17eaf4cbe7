"""The findings of a recovery, for the log, metrics and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from geminga.bookie.journal.scan import Damage
from geminga.bookie.records.records import Run

# A lost log may hold entries of thousands of ledgers; a line with all of them would bury the part that says
# what to do.
RUNS_NAMED_MAX: Final = 20
"""The limit of runs of missing entries that a warning names; `geminga bookie verify` names all."""
# The steps are ordered by what they cost: a copy of the file loses nothing, skipping loses the entries for
# one subscription, and only the operator can know whether a copy exists.
WHAT_TO_DO: Final = (
    "if there is a copy of the file, stop the broker, put the copy in its place and start again; if there is"
    " none, `geminga topics skip` takes a subscription past the entries"
)


class RecoveryReport(Struct, frozen=True):
    """The findings of `Bookie.open`: counts of this start."""

    journals_read: int = 0
    groups_read: int = 0
    entries_replayed: int = 0
    # Not a fault: most starts after a kill skip entries, since a flush is durable before its journal is
    # released.
    entries_known: int = 0
    """Entries in the journal that were skipped, because the index had them already."""
    entries_of_deleted_ledgers: int = 0
    entries_lost: int = 0
    """Entries that were durable once and are damaged now."""
    # Not damage either: the publisher never had a receipt, and sends again.
    torn_bytes: int = 0
    """Bytes of last groups that were never confirmed, and were cut off."""
    damages: tuple[Damage, ...] = ()
    headers_restored: tuple[str, ...] = ()
    """Journals with a damaged header that were read with its copy, or with a header reconstructed from their
    groups.
    """
    index_rebuilt: str = ""
    """Why the index was rebuilt from the entry logs; "" if it was not."""
    entries_indexed: int = 0
    """Entries that the rebuild found in entry logs."""
    mismatch: str = ""
    """Why index, entry logs and journals are not of one moment, if no earlier start has seen that; "" if they
    are. No entry log that was there is deleted then (`LedgerIndex.kept`).
    """
    entries_found: int = 0
    """Entries that were in entry logs, and neither in the index nor in a journal: the index is older."""
    entries_moved: int = 0
    """Entries that were not in the log that the index named. They were in another log, if the index is an
    old copy, or in a journal, if the log is lost.
    """
    logs_missing: tuple[int, ...] = ()
    """Entry logs that the index names and that are missing; reads of their entries fail."""
    logs_cut: tuple[int, ...] = ()
    """Entry logs that end before the last record that the index has in them; reads beyond their end fail."""
    entries_missing: int = 0
    """Entries that the files name and do not have: of missing or truncated logs, or between others of their
    ledger.
    """
    logs_damaged: tuple[str, ...] = ()
    """Where headers, footers and trailers of entry logs are damaged. All entries can be read."""

    def __str__(self) -> str:
        """All values that are not zero, for the log."""
        found = []
        for name in self.__struct_fields__:
            # By field, so that a count added later is in the log without anybody thinking of it here.
            value = getattr(self, name)
            if value:
                shown = "; ".join(map(str, value)) if isinstance(value, tuple) else value
                found.append(f"{name.replace('_', ' ')}: {shown}")
        return ", ".join(found) or "nothing to do"

    @property
    def clean(self) -> bool:
        """Whether nothing was replayed, cut or lost."""
        # `entries_known`, deleted ledgers' entries and counts of what was read are left out: no fault is
        # needed for them, and a WARNING at each start would hide the one that matters. `entries_lost` and
        # `entries_missing` never come without a damage or a missing log.
        return not (
            self.entries_replayed
            or self.torn_bytes
            or self.damages
            or self.headers_restored
            or self.index_rebuilt
            or self.mismatch
            or self.entries_moved
            or self.logs_missing
            or self.logs_cut
            or self.logs_damaged
        )


def missing_text(report: RecoveryReport, missing: Sequence[Run], topic_of: Callable[[int], str]) -> str:
    """Text about entries that cannot be read. `missing` are their runs; `topic_of` may return ""."""
    logs = [f"entry log {log_id} is not there" for log_id in report.logs_missing]
    logs += [f"entry log {log_id} is cut short" for log_id in report.logs_cut]
    if len(logs) > RUNS_NAMED_MAX:
        logs[RUNS_NAMED_MAX:] = [f"{len(logs) - RUNS_NAMED_MAX} more logs are not there or cut short"]
    why = f"{', '.join(logs)}, and no journal has all that was in it any more: " if logs else ""
    runs = [run_text(run, topic_of) for run in missing[:RUNS_NAMED_MAX]]
    if len(missing) > RUNS_NAMED_MAX:
        runs.append(f"{len(missing) - RUNS_NAMED_MAX} more runs")
    return (
        f"{why}{report.entries_missing} entries are in no file of the bookie and cannot be read"
        f" ({', '.join(runs)}); {WHAT_TO_DO}"
    )


def run_text(run: Run, topic_of: Callable[[int], str]) -> str:
    """Text such as "entries 5 to 9 of ledger 3 (persistent://public/default/orders)"."""
    topic = topic_of(run.ledger_id)
    entries = f"entry {run.first}" if run.first == run.last else f"entries {run.first} to {run.last}"
    return f"{entries} of ledger {run.ledger_id}" + (f" ({topic})" if topic else "")
