"""`geminga pipeline` without Spark: what its commands print, write, refuse and return."""

from __future__ import annotations

import json
import pickle
import traceback
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geminga.bookie.entry_logs.entry_log_format import encode_header
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.records import pack_records
from geminga.cli.pipeline.pipeline import in_flags
from geminga.errors import GemingaError, StorageError
from geminga.pipeline.audit.events import SCHEMA
from geminga.pipeline.client.producing import NotSent
from geminga.pipeline.client.topics import missing
from geminga.pipeline.errors import (
    ADMIN_URL,
    SERVICE_URL,
    SET_RAW_VALUE,
    TOPICS_PATTERN,
    BadOption,
    BrokerUnreachable,
    DataLost,
    Option,
    PipelineError,
)
from geminga.pipeline.spark.failures import failure_of, note_parts
from geminga.storage.disk import RealDisk
from tests.pipeline.conftest import Call

TOPIC = "persistent://public/default/t"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows = []
    for entry_id in range(4):
        row = {"time_ms": 60_000 + entry_id, "topic": TOPIC, "ledger_id": 7, "entry_id": entry_id}
        rows.append(row | {"kind": "published"})
        if entry_id != 2:
            rows.append(row | {"kind": "dispatched", "subscription": "s", "publish_time_ms": 60_000})
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


def test_an_audit_tells_what_is_wrong_and_writes_it(call: Call, log: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    code, text, _ = call("audit", log, "--settle", "0s", "--master", "none", "--out", out)
    assert code == 1
    assert "lost: 7:2" in text
    assert sorted(path.name for path in out.iterdir()) == [
        "findings.parquet",
        "minutes.parquet",
        "totals.parquet",
    ]
    (finding,) = pq.read_table(out / "findings.parquet").to_pylist()
    assert (finding["what"], finding["ledger_id"], finding["entry_id"]) == ("lost", 7, 2)
    code, _, error = call("audit", log, "--settle", "0s", "--master", "none", "--out", out)
    assert (code, "exists already" in error) == (1, True)
    code, text, _ = call("audit", log, "--settle", "1s", "--master", "none", "--json")
    assert code == 0
    assert json.loads(text)["pending"] == 1


def test_an_audit_tells_of_what_was_asked_for_and_in_a_line_of_what_is_right(
    call: Call, log: Path, tmp_path: Path
) -> None:
    rows = pq.read_table(log).to_pylist()
    right = [row | {"subscription": "right"} for row in rows if row["kind"] != "published"]
    right += [right[0] | {"entry_id": 2, "time_ms": 60_002}]
    other = [row | {"topic": f"{TOPIC}2-partition-0"} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows + right + other, SCHEMA), log)
    audit = ("audit", log, "--settle", "0s", "--order", "none", "--master", "none")
    code, text, _ = call(*audit)
    assert (code, text.count("lost: 7:2"), text.count("nothing is wrong")) == (1, 2, 1)
    code, text, _ = call(*audit, "--subscription", "right", "--topic", "t")
    assert (code, text) == (0, f"{TOPIC}, right: nothing is wrong; 4 published, 4 dispatched\n")
    out = tmp_path / "report"
    code, text, _ = call(*audit, "--topic", "t2", "--json", "--out", out)
    assert (code, [json.loads(line)["topic"] for line in text.splitlines()]) == (1, [f"{TOPIC}2-partition-0"])
    (finding,) = pq.read_table(out / "findings.parquet").to_pylist()
    assert finding["topic"] == f"{TOPIC}2-partition-0"
    assert {*pq.read_table(out / "minutes.parquet")["topic"].to_pylist()} == {f"{TOPIC}2-partition-0"}
    code, _, error = call(*audit, "--topic", "nowhere")
    assert (code, "say nothing of nowhere" in error, TOPIC in error) == (1, True, True)


def test_a_damaged_log_leaves_no_output(call: Call, log: Path, tmp_path: Path) -> None:
    log.write_bytes(log.read_bytes()[:-9])
    code, text, error = call("audit", log, "--master", "none", "--out", tmp_path / "report")
    assert (code, text) == (1, "")
    assert "log.parquet" in error
    assert list(tmp_path.iterdir()) == [log]


def test_a_capacity_table_and_its_plot(call: Call, tmp_path: Path) -> None:
    png = tmp_path / "table.png"
    code, text, _ = call("capacity", "--messages", "200000", "--master", "none", "--png", png)
    assert code == 0
    assert len(text.splitlines()) == 7
    assert png.read_bytes().startswith(b"\x89PNG")
    code, text, _ = call("capacity", "--row", "8,10", "--delays", "uniform:1h", "--messages", "100000",
                         "--master", "none", "--json")  # fmt: skip
    assert json.loads(text)["bitmap_bytes"] > json.loads(text)["run_bytes"] * 0.9
    code, _, error = call("capacity", "--delays", "later", "--master", "none")
    assert (code, "unknown delays 'later'" in error) == (1, True)


def test_a_rescue_writes_what_is_left(call: Call, tmp_path: Path) -> None:
    logs = tmp_path / "data" / "bookie" / "entry-logs"
    logs.mkdir(parents=True)
    parts = [encode_header(1)]
    pack_records(9, 0, [b"a", b"bb", b"ccc"], parts)
    data = bytearray(b"".join(parts))
    data[-1 - 24 - 4] ^= 1
    Path(entry_log_path(str(logs), 1)).write_bytes(data)
    out = tmp_path / "out"
    code, text, _ = call("rescue", "--data-dir", tmp_path / "data", "--out", out, "--master", "none")
    assert code == 1
    assert "(no footer names it)" in text
    assert "26 bytes at offset" in text
    rows = pq.read_table(out).to_pylist()
    assert [(row["ledger_id"], row["entry_id"], row["body"]) for row in rows] == [
        (9, 0, b"a"),
        (9, 2, b"ccc"),
    ]


def test_a_directory_that_a_broker_holds_is_refused(call: Call, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    lock = RealDisk().lock(str(data))
    try:
        code, _, error = call("rescue", "--data-dir", data, "--master", "none")
    finally:
        lock.release()
    assert code == 1
    assert "stop the broker first" in error


def test_unknown_commands_get_a_hint(call: Call) -> None:
    code, _, error = call("audti")
    assert (code, "Did you mean audit?" in error) == (2, True)
    assert call()[0] == 2
    assert "rescue" in call("--help")[1]


def test_messages_name_flags_and_not_options_of_the_data_source(call: Call, tmp_path: Path) -> None:
    nowhere = "pulsar://127.0.0.1:1"
    code, _, error = call("export", "t", "--out", tmp_path / "out", "--url", nowhere)
    assert (code, error.partition("; ")[2]) == (1, "is it running, and is --url right?\n")
    code, _, error = call(
        "rebuild", "--admin-url", "http://127.0.0.1:1", "--topic", "t", "--subscription", "s"
    )
    assert (code, error.partition("; ")[2]) == (1, "is --admin-url right?\n")


SET_LOSS = Option("failOnDataLoss", "false", "Set")


@pytest.mark.parametrize(
    ("command", "error", "in_words_of_the_command"),
    [
        ("audit", missing("t"), "topic t is not there; check the name, create it, or give --option "
                                "waitingForNonExistedTopic=true"),
        ("audit", PipelineError("no JSON; ", SET_RAW_VALUE, " to get bytes"),
                  "no JSON; give --option rawValue=true to get bytes"),
        ("audit", DataLost("gone. ", SET_LOSS, " to go on"),
                  "gone. Give --option failOnDataLoss=false to go on"),
        ("export", DataLost("gone. ", SET_LOSS, " to go on"), "gone. Give --allow-loss to go on"),
        ("replay", PipelineError("it (", ADMIN_URL, ") or (", Option("by_key", "True"), ")"),
                   "it (--admin-url) or (--by-key)"),
        ("export", PipelineError("none is like ", TOPICS_PATTERN), "none is like --topics-pattern"),
        ("audit", PipelineError("none is like ", TOPICS_PATTERN), "none is like topicsPattern"),
        ("export", NotSent("t: away: ", BrokerUnreachable("is ", SERVICE_URL, " right?")),
                   "t: away: is --url right?"),
        ("export", StorageError("cannot write /data/topicsPattern/x: No space left"),
                   "cannot write /data/topicsPattern/x: No space left"),
        ("export", PipelineError("/data/topicsPattern/x.parquet exists, see ", SERVICE_URL),
                   "/data/topicsPattern/x.parquet exists, see --url"),
        ("export", PipelineError("topic service.url: set rawValue=true (--by-key, by_key=True)"),
                   "topic service.url: set rawValue=true (--by-key, by_key=True)"),
    ],
)  # fmt: skip
def test_an_error_names_its_options_as_flags_and_nothing_else(
    command: str, error: GemingaError, in_words_of_the_command: str
) -> None:
    assert in_flags(command, error).partition(" (brokers delete")[0] == in_words_of_the_command


def test_what_a_user_named_like_an_option_stays_as_it_is(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "topicsPattern"
    out.mkdir()
    (out / "service.url").write_bytes(b"")
    nowhere = ("--url", "pulsar://127.0.0.1:1", "--master", "none")
    code, _, error = call("export", "t", "--out", out, *nowhere)
    assert (code, f"{out} exists already" in error) == (1, True)
    assert "continue the export (--continue)\n" in error
    code, _, error = call("replay", out, *nowhere)
    assert (code, error.partition(":")[0], f"{out} holds no export" in error) == (
        1,
        "geminga pipeline replay",
        True,
    )


def test_an_error_of_a_worker_keeps_its_options() -> None:
    try:
        try:
            raise DataLost("persistent://public/default/failOnDataLoss=false: gone. ", SET_LOSS, " to go on")
        except PipelineError as error:
            note_parts(error)
            raise
    except PipelineError:
        from_spark = Exception(f"An exception was thrown from the Python worker.\n{traceback.format_exc()}")
    failed = failure_of(from_spark)
    assert isinstance(failed, DataLost)
    assert str(failed) == (
        "persistent://public/default/failOnDataLoss=false: gone. Set failOnDataLoss=false to go on"
    )
    assert in_flags("export", failed) == (
        "persistent://public/default/failOnDataLoss=false: gone. Give --allow-loss to go on"
    )


def test_an_error_travels_by_pickle_with_its_options() -> None:
    error = pickle.loads(pickle.dumps(BadOption("is ", SERVICE_URL, " right?")))
    assert (type(error), str(error)) == (BadOption, "is service.url right?")
    assert in_flags("export", error) == "is --url right?"


@pytest.mark.usefixtures("on_spark")
def test_a_command_on_spark_tells_nothing_of_how_spark_starts(
    call: Call, log: Path, spark_start_log: str
) -> None:
    code, out, err = call("audit", log, "--master", "local[2]")
    assert code == 0
    assert err.splitlines() == ["7 events in 1 pieces", "known where it ends; reading all of it"]
    assert "4 published, 3 dispatched, 1 pending" in out
    # What the JVM itself says of its modules does not come from Spark's log.
    lines = [line for line in spark_start_log.splitlines() if "incubator modules" not in line]
    assert lines == []
