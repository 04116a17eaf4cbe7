"""What a recovery found, for the log, metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass, fields

from geminga.bookie.journal.scan import Damage


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What `Bookie.open` found. Counts of this one start."""

    journals_read: int = 0
    groups_read: int = 0
    entries_replayed: int = 0
    entries_known: int = 0
    """Met in the journal and skipped, because the index had them already."""
    entries_of_deleted_ledgers: int = 0
    entries_lost: int = 0
    """Known to have been durable once, and damaged now."""
    torn_bytes: int = 0
    """Of a last group that was never promised, and was cut."""
    damages: tuple[Damage, ...] = ()
    headers_restored: tuple[str, ...] = ()
    """Journals with a damaged header that were read all the same: by its copy, or by what their groups
    say.
    """
    index_rebuilt: str = ""
    """Why the index was made anew from the entry logs, if it was."""
    entries_indexed: int = 0
    """Found in entry logs by that."""
    entries_moved: int = 0
    """Found elsewhere than in the log that the index named: in another one, if the index is an old copy; in
    a journal, if the log is lost.
    """
    logs_missing: tuple[int, ...] = ()
    """Entry logs that the index names and that are not there; reads of what they held fail."""

    def __str__(self) -> str:
        """What is not zero, for the log."""
        found = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value:
                shown = "; ".join(map(str, value)) if isinstance(value, tuple) else value
                found.append(f"{field.name.replace('_', ' ')}: {shown}")
        return ", ".join(found) or "nothing to do"

    @property
    def clean(self) -> bool:
        """Nothing had to be replayed, cut or given up."""
        return not (
            self.entries_replayed
            or self.torn_bytes
            or self.damages
            or self.headers_restored
            or self.index_rebuilt
            or self.entries_moved
            or self.logs_missing
        )
