"""What the broker does with a damaged index, which it can make anew, and with damaged metadata, which it
cannot.
"""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import pytest
import trio

from geminga.bookie.index.database import IndexDatabase
from geminga.config.config import Config
from geminga.errors import CorruptData, StorageError
from geminga.server import fault_parts, server
from tests.e2e.broker_process import BrokerProcess, run_client

pytestmark = pytest.mark.skipif("GEMINGA_TEST_URL" in os.environ, reason="looks into Geminga's files")


def metric(web_url: str, name: str) -> float:
    with urllib.request.urlopen(f"{web_url.rstrip('/')}/metrics", timeout=20) as response:
        lines = response.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[-1])


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_broker_makes_its_damaged_index_anew(tmp_path: Path, kill: bool) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        sent = [f"message {number}" for number in range(30)]
        run_client(broker, "produce", "orders", "--stdin", text="\n".join(sent) + "\n")
        broker.kill() if kill else broker.stop()
        manifest = next((tmp_path / "data" / "index").glob("MANIFEST-*"))
        content = bytearray(manifest.read_bytes())
        content[20] ^= 1
        manifest.write_bytes(content)
        broker.start()
        assert metric(broker.endpoints.web_url, "geminga_bookie_recovery_index_rebuilt") == 1
        got = run_client(
            broker, "consume", "orders", "-s", "check", "--from", "earliest", "-n", "30", "--timeout", "10s"
        )
        assert [line for line in sent if line not in got] == []
    log = broker.log_path.read_text()
    assert f"{tmp_path}/data/index/{manifest.name}: damaged at offset" in log
    assert f"the damaged one is in {tmp_path}/data/index.damaged" in log


def test_a_broker_refuses_damaged_metadata(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        pass
    (tmp_path / "data" / "metadata" / "CURRENT").write_text("MANIFEST-000999\n")
    with pytest.raises(AssertionError, match="no ready line"), broker:
        pass
    assert f"{tmp_path}/data/metadata: damaged, a file is missing, cannot open" in broker.log_path.read_text()
    assert not (tmp_path / "data" / "metadata.damaged").exists()


async def test_damage_met_while_running_ends_the_broker_and_the_next_start_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[IndexDatabase] = []

    class Watched(IndexDatabase):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            opened.append(self)

    monkeypatch.setattr(fault_parts, "IndexDatabase", Watched)
    config = Config(broker_service_port=0, web_service_port=0)
    ended: list[StorageError] = []

    async def serve(task_status: trio.TaskStatus[server.Addresses]) -> None:
        try:
            await server.serve(config, data_dir=str(tmp_path / "data"), task_status=task_status)
        except* StorageError as errors:
            ended.extend(error for error in errors.exceptions if isinstance(error, StorageError))

    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: serve(task_status))
        await trio.to_thread.run_sync(opened[0]._note, CorruptData("block 7 is damaged"))
    assert [str(error) for error in ended] == [
        "block 7 is damaged; start again: the index is then rebuilt from the entry logs"
    ]
    ended.clear()
    async with trio.open_nursery() as nursery:
        ports = await nursery.start(lambda task_status: serve(task_status))
        web = f"http://127.0.0.1:{ports.web_port}"
        assert await trio.to_thread.run_sync(metric, web, "geminga_bookie_recovery_index_rebuilt") == 1
        nursery.cancel_scope.cancel()
    assert ended == []
