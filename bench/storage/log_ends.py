"""What looking at the ends of entry logs adds to a start.

    python bench/storage/log_ends.py                       10 GiB in logs of 256 MiB, entries of 1 KiB
    python bench/storage/log_ends.py --gib 10 --bytes 128

The logs are sparse files with headers, last records, footers and trailers, and an index that names all of
them. A bookie is opened three times: with no log, with all logs closed, and with none closed, as if a kill
had ended each. Seconds of wall time and of CPU; the page cache is dropped before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.storage import storage_process as storage
from geminga.bookie.entry_logs.entry_log_format import (
    HEADER_BYTES,
    FooterLedger,
    encode_footer,
    encode_header,
)
from geminga.bookie.index.index_format import Row, Usage
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.records import RECORD_PREFIX_BYTES, compact, pack_records
from geminga.bookie.records.settings import BookieSettings

LOG_BYTES = BookieSettings().entry_log_bytes
ROW_ENTRIES = BookieSettings().row_entries_max
LEDGER_ENTRIES = 50_000


def make_logs(directory: Path, gib: int, entry_bytes: int, *, closed: bool) -> None:
    logs = directory / "bookie" / "entry-logs"
    logs.mkdir(parents=True)
    key_value = storage.open_index(directory)
    index = LedgerIndex(key_value)
    entry = 0
    lengths = [entry_bytes + RECORD_PREFIX_BYTES + number % 7 for number in range(ROW_ENTRIES)]
    ends = compact([sum(lengths[: number + 1]) for number in range(ROW_ENTRIES)])
    for log_id in range(1, gib * (1 << 30) // LOG_BYTES + 1):
        end, rows = HEADER_BYTES, []
        usage: dict[int, FooterLedger] = {}
        while end < LOG_BYTES:
            ledger_id = 1 + entry // LEDGER_ENTRIES
            rows.append(LedgerRow(ledger_id, Row(entry % LEDGER_ENTRIES, log_id, end, ends)))
            before = usage[ledger_id].usage if ledger_id in usage else Usage(0, 0)
            usage[ledger_id] = FooterLedger(
                Usage(before.entries + ROW_ENTRIES, before.bytes + ends[-1]),
                LedgerName("data", "/managed-ledgers/public/default/persistent/t"),
            )
            end, entry = end + ends[-1], entry + ROW_ENTRIES
        with (logs / f"{log_id:020}.log").open("wb") as file:
            file.write(encode_header(log_id))
            ledger_id, row = rows[-1]
            last: list[bytes] = []
            pack_records(
                ledger_id, row.last, [bytes(row.ends[-1] - row.ends[-2] - RECORD_PREFIX_BYTES)], last
            )
            record = b"".join(last)
            file.seek(end - len(record))
            file.write(record)
            if closed:
                file.write(encode_footer(end, usage, rows))
        index.add_rows(rows)
    index.flushed([], (JournalPosition(1, 0),))
    key_value.close()


async def opened(directory: Path) -> tuple[float, float, str]:
    index = storage.open_index(directory)
    wall, cpu = time.perf_counter(), time.process_time()
    bookie = await storage.open_bookie(directory, index, BookieSettings())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    report = bookie.recovery
    await bookie.close()
    index.close()
    assert not report.entries_missing, report
    return wall, cpu, str(report)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gib", type=int, default=10)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    try:
        for name, gib, closed in (
            ("none", 0, True),
            ("closed", options.gib, True),
            ("open", options.gib, False),
        ):
            directory = scratch / name
            directory.mkdir()
            make_logs(directory, gib, options.bytes, closed=closed)
            os.sync()
            storage.drop_page_cache(directory / "bookie")
            wall, cpu, report = trio.run(opened, directory)
            logs = len(list((directory / "bookie" / "entry-logs").iterdir()))
            print(f"{name:8}{logs:5} logs  {wall:7.3f} s  {cpu:7.3f} s CPU   {report}", flush=True)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
