"""Bugs of snapshots, of restores and of what a crash leaves of one."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SWAP = "geminga/server/snapshots/swap.py"
HANDOVER = "geminga/server/snapshots/handover.py"
SNAPSHOTS = "geminga/server/snapshots/snapshots.py"
MANIFEST = "geminga/server/snapshots/manifest.py"
SWAP_TESTS = ("tests/server/snapshots/test_swap.py",)
E2E = "tests/e2e/chaos/test_e2e_snapshots.py::"

MUTANTS = (
    Mutant(
        "restore-without-its-record",
        SWAP,
        "    disk.replace_file(os.path.join(swap, _INTENT), msgspec.json.encode(intent))\n",
        "",
        SWAP_TESTS,
        "that a start knows of a restore that a crash has interrupted",
    ),
    Mutant(
        "restore-that-is-committed-before-its-old-state-is-back",
        SWAP,
        "        if disk.exists(os.path.join(outgoing, name)):\n"
        "            _move(disk, data_dir, incoming(data_dir), name)\n",
        "        if disk.exists(os.path.join(outgoing, name)):\n            commit(disk, data_dir)\n"
        "            _move(disk, data_dir, incoming(data_dir), name)\n",
        SWAP_TESTS,
        "that a crash while a restore is undone leaves it to the next start",
    ),
    Mutant(
        "restore-deletes-what-the-next-one-has-prepared",
        SWAP,
        "    outgoing = os.path.join(data_dir, SWAP, _OUTGOING)\n    if disk.exists(outgoing):",
        "    outgoing = os.path.join(data_dir, SWAP)\n    if disk.exists(outgoing):",
        SWAP_TESTS,
        "that the state before is deleted beside a later restore",
    ),
    Mutant(
        "snapshot-with-flipped-bytes-is-restored",
        MANIFEST,
        "            if crc32 != file.crc32:",
        "            if False:",
        (E2E + "test_what_is_no_snapshot_of_this_broker_is_refused",),
        "that the bytes of a snapshot are those that were saved",
    ),
    Mutant(
        "snapshot-without-the-last-acknowledgements",
        SNAPSHOTS,
        "        await state.persist_cursors()\n",
        "",
        ("tests/server/snapshots/test_save.py::test_acknowledgements_are_written_before_the_copy",),
        "that what was acknowledged just before a save is in it",
    ),
    Mutant(
        "restored-clock-goes-on-from-the-offset-alone",
        HANDOVER,
        "        if self.opening.shown_ms is not None:",
        "        if False:",
        (E2E + "test_a_virtual_clock_begins_where_it_was_saved",),
        "that a snapshot of last month is restored with the clock of last month",
    ),
    Mutant(
        "reset-with-a-real-clock",
        HANDOVER,
        "return configured if self.opening is None else self.opening.clock",
        "return configured",
        ("tests/testing/test_snapshots.py::test_a_reset_keeps_the_kind_of_clock",),
        "that a broker whose directory has a virtual clock keeps it",
    ),
    Mutant(
        "ledgers-are-numbered-again-after-a-reset",
        HANDOVER,
        "        await skip_ledger_ids(metadata, self.opening.next_ledger_id)",
        "        await skip_ledger_ids(metadata, 1)",
        (E2E + "test_a_reset_leaves_a_new_broker",),
        "that a message id never means two messages",
    ),
)
