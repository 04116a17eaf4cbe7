"""A process that writes is killed at a random moment; another one opens what it left."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import trio

from geminga.bookie.running.bookie import Bookie
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue
from tests.e2e.child_process import running

WRITER = """
import os, sys, trio
from geminga.bookie.running.bookie import Bookie
from geminga.bookie.records.settings import BookieSettings
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

LEDGERS = (1, 2, 3)
SMALL = BookieSettings(journal_file_bytes=1 << 20, journal_allocate_bytes=1 << 18, write_cache_bytes=2 << 20,
                       queue_bytes_max=1 << 18, entry_log_bytes=1 << 20)

async def main(directory):
    index = RocksKeyValue(directory + "/index")
    bookie = await Bookie.open(RealDisk(), index, directory + "/bookie", SMALL)
    def teller(ledger_id):
        return lambda last: os.write(1, b"%d %d\\n" % (ledger_id, last))
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        writers = [bookie.create_ledger(i, on_durable=teller(i), on_failed=print) for i in LEDGERS]
        while True:
            for writer in writers:
                for _ in range(7):
                    entry_id = writer.next_entry_id
                    writer.append(b"%d/%d/" % (writer.ledger_id, entry_id) * (entry_id % 90 + 1))
            await bookie.wait_room()
            await trio.lowlevel.checkpoint()

trio.run(main, sys.argv[1])
"""


def kill_while_writing(directory: Path, after_lines: int) -> dict[int, int]:
    """What the writer had reported durable of each ledger when it was killed."""
    durable = dict.fromkeys((1, 2, 3), -1)
    with running([sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for count, line in enumerate(process.stdout):
            if line.endswith(b"\n"):
                ledger_id, last = map(int, line.split())
                assert last > durable[ledger_id]
                durable[ledger_id] = last
            if count == after_lines:
                process.send_signal(signal.SIGKILL)
    return durable


async def test_nothing_reported_durable_is_lost_by_a_kill(tmp_path: Path) -> None:
    for attempt in range(2):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        lines = random.Random(attempt).randrange(20, 2000)
        durable = await trio.to_thread.run_sync(kill_while_writing, directory, lines)
        index = RocksKeyValue(str(directory / "index"))
        bookie = await Bookie.open(RealDisk(), index, str(directory / "bookie"))
        assert bookie.recovery.damages == ()
        for ledger_id, promised in durable.items():
            last = bookie.last_entry_id(ledger_id)
            assert last >= promised >= 0
            found: list[bytes] = []
            while len(found) <= last:
                found += await bookie.read(ledger_id, len(found), last, bytes_max=1 << 20)
            assert found == [b"%d/%d/" % (ledger_id, i) * (i % 90 + 1) for i in range(last + 1)]
        await bookie.close()
        index.close()
