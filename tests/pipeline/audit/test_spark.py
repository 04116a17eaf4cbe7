"""The audit on Spark finds what the same parts find in one process, and names the file that is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geminga.errors import CorruptData
from geminga.pipeline.audit.audit import audit_logs
from geminga.pipeline.audit.events import SCHEMA, WrongLog
from geminga.pipeline.audit.logs import Log
from geminga.pipeline.audit.report import WRONG
from geminga.pipeline.audit.settings import AuditSettings

TOPIC = "persistent://public/default/t"
START_MS = 1_700_000_040_000


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files: 0 to 999 published; all but every 100th delivered, every 150th twice, some out of order."""
    directory = tmp_path_factory.mktemp("logs")
    published: list[dict[str, Any]] = []
    given: list[dict[str, Any]] = []
    for i in range(1000):
        row = {"time_ms": START_MS + 100 * i, "topic": TOPIC, "ledger_id": i // 300, "entry_id": i % 300}
        published.append(row | {"kind": "published"})
        row |= {"kind": "dispatched", "subscription": "s", "client": "c", "publish_time_ms": row["time_ms"]}
        given += [row] * (0 if i % 100 == 0 else 2 if i % 150 == 0 else 1)
    given[300], given[600] = given[600], given[300]
    for name, rows in (("p0", published), ("d0", given[:500]), ("d1", given[500:])):
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), directory / f"{name}.parquet", row_group_size=250)
    return directory


def test_spark_finds_what_one_process_finds(spark: Any, logs: Path) -> None:
    from geminga.pipeline.spark.audit import audit

    settings = AuditSettings(settle_ms=0)
    report, plain = audit(spark, [str(logs)], settings), audit_logs([Log(str(logs))], settings)
    assert report.minutes.equals(plain.minutes)
    assert report.totals.equals(plain.totals)
    found = {what: list(report.positions(what)) for what in WRONG}
    assert found == {what: list(plain.positions(what)) for what in WRONG}
    assert [place[2:4] for place in found["lost"]] == [divmod(i, 300) for i in range(0, 1000, 100)]
    assert found["reordered"]


def test_a_damaged_file_is_named(spark: Any, logs: Path, tmp_path: Path) -> None:
    from geminga.pipeline.spark.audit import audit

    path = tmp_path / "log.parquet"
    rows = pq.read_table(logs / "p0.parquet")
    pq.write_table(rows, path, write_page_checksum=True)
    whole = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    whole[(column.dictionary_page_offset or column.data_page_offset) + 100] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CorruptData, match=r"log\.parquet"):
        audit(spark, [str(path)])
    pq.write_table(rows.set_column(0, "kind", pa.array(["made"] * len(rows))), path)
    with pytest.raises(WrongLog, match=r"log\.parquet: row 0.*unknown kind"):
        audit(spark, [str(path)])
