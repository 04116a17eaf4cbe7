"""A writer of a stream that begins while the broker is away waits for it."""

from __future__ import annotations

import socket
from pathlib import Path

import pyarrow as pa
import pytest

from geminga.pipeline.client import producing
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.producing import NotSent
from geminga.pipeline.errors import BrokerUnreachable
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from tests.e2e.broker_process import BrokerProcess
from tests.pipeline.conftest import Topics

ROWS = [pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})]


def test_a_stream_that_writes_goes_on_when_the_broker_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started again by the third attempt at a connection."""
    settings = {"brokerDeleteInactiveTopicsEnabled": "false"}
    with BrokerProcess(tmp_path / "data", settings=settings) as process:
        topics = Topics(process.endpoints)
        process.kill()
        attempts = 0
        connect = socket.create_connection

        def start_before_the_third(*arguments: object, **named: object) -> socket.socket:
            nonlocal attempts
            attempts += 1
            if attempts == 3:
                process.start()
            return connect(*arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(socket, "create_connection", start_before_the_third)
        assert topics.write("t", ROWS[0].to_pydict(), task=Task("query", 0, 1)).rows == 2
        assert topics.values("t") == [b"a", b"b"]


def test_it_waits_for_so_long_and_a_job_that_begins_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's address may be wrong."""
    monkeypatch.setattr(producing, "_PAUSE_SECONDS", 0.01)

    def away(*_: object, **__: object) -> Connection:
        raise BrokerUnreachable("no broker answers at b")

    monkeypatch.setattr(Connection, "open", away)
    options = parse_options({"service.url": "pulsar://b:1", "topic": "t", "sendTimeoutMs": "50"})
    for task, kind, said in (
        (Task("query", 0, 1), NotSent, r"t: nothing was written: .* for 0 s \(sendTimeoutMs\): no broker"),
        (Task("job", 0, 0, in_order=False), BrokerUnreachable, "^no broker answers at b$"),
    ):
        with pytest.raises(kind, match=said):
            TaskWriter(options, task).write(ROWS)
