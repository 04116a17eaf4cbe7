"""What a broker confirmed is rescued from its files alone, after a kill and without index and metadata.

    python -m tests.pipeline.buckets.rescue_workload
    python -m tests.pipeline.buckets.rescue_workload --seconds 60 --spark

Official clients write plain and partitioned topics in every codec, single and in batches, while the backlog
of another topic is cleared all the time, so that its ledgers go and entry logs are compacted. Entry logs and
journals are small and roll all the time. The broker is killed with SIGKILL while all of them write, what is
not a journal or an entry log is deleted, and the files are rescued: every message that was confirmed
has to be there, with its bytes, under its topic where a footer names it.
"""

from __future__ import annotations

import argparse
import shutil
import struct
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa

from geminga.pipeline.buckets.rescue import rescue_batches
from geminga.pipeline.buckets.rescue_columns import ENTRIES
from geminga.pipeline.buckets.rescue_files import Hole
from geminga.pipeline.columns.payloads import inflate
from geminga.pipeline.spark import make_session
from geminga.pipeline.spark.rescue import rescue
from geminga.storage.disk import RealDisk
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.stored_entry import metadata_range, parse_metadata
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess, Endpoints

SETTINGS = {
    "logSizeLimit": "4000000",
    "journalMaxSizeMB": "4",
    "journalPreAllocSizeMB": "1",
    "dbStorage_writeCacheMaxSizeMb": "8",
    "flushInterval": "3000",
    "gcWaitTime": "1500",
    "retentionCheckIntervalInSeconds": "1",
    "minorCompactionInterval": "3",
    "majorCompactionInterval": "5",
    "majorCompactionThreshold": "0.9",
    "managedLedgerMaxEntriesPerLedger": "400",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "brokerDeleteInactiveTopicsEnabled": "false",
}
NAMESPACE = "persistent://public/default"
KEPT = (f"{NAMESPACE}/plain", f"{NAMESPACE}/parts", f"{NAMESPACE}/größe ,1")
"""Nobody reads these; a subscription holds them. The second has partitions."""
CLEARED = f"{NAMESPACE}/cleared"
PARTITIONS = 3
CODECS = (
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
)

Place = tuple[int, int, int]
"""Ledger, entry, index in the batch (0: alone)."""


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Writers:
    """Threads that write until they are stopped or the broker is gone, and remember what it confirmed."""

    def __init__(self, broker: Endpoints) -> None:
        self._client = pulsar.Client(
            broker.service_url,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            operation_timeout_seconds=5,
        )
        self._admin = Admin(broker.web_url)
        self.confirmed: dict[str, dict[Place, bytes]] = {}
        """By topic or partition."""
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for topic in KEPT:
            self._client.subscribe(topic, "keeper").close()
        self._client.subscribe(CLEARED, "keeper").close()
        self._threads.append(threading.Thread(target=self._clear, daemon=True))
        for topic in (*KEPT, CLEARED):
            for codec in CODECS:
                for is_batched in (False, True):
                    arguments = (topic, codec, is_batched)
                    self._threads.append(threading.Thread(target=self._write, args=arguments, daemon=True))
        for thread in self._threads:
            thread.start()

    def _write(self, topic: str, codec: Any, is_batched: bool) -> None:
        producer = self._client.create_producer(
            topic,
            compression_type=codec,
            batching_enabled=is_batched,
            batching_max_messages=50,
            max_pending_messages=200,
            block_if_queue_full=True,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
            send_timeout_millis=2000,
        )
        number = 0
        while not self._done.is_set():
            value = b"%s %s %d " % (str(codec).encode(), b"batched" if is_batched else b"single", number)
            value += b"x" * (number * 37 % 600)

            def sent(result: Any, message_id: Any, value: bytes = value) -> None:
                if result == pulsar.Result.Ok:
                    self._remember(topic, message_id, value)

            try:
                producer.send_async(value, sent, partition_key=f"k{number % 9}" if number % 3 else None)
            except pulsar.PulsarException:
                return
            number += 1
            if number % 50 == 0:
                self._done.wait(0.05)

    def _remember(self, topic: str, message_id: Any, value: bytes) -> None:
        index = message_id.partition()
        own = topic if index < 0 else f"{topic}-partition-{index}"
        place = message_id.ledger_id(), message_id.entry_id(), max(message_id.batch_index(), 0)
        with self._lock:
            assert place not in self.confirmed.setdefault(own, {}), (own, place)
            self.confirmed[own][place] = value

    def _clear(self) -> None:
        path = "/admin/v2/persistent/public/default/cleared/subscription/keeper/skip_all"
        while not self._done.wait(1.0):
            try:
                self._admin.post(path)
            except OSError:
                return

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(10)
        self._client.close()


def messages_of(body: bytes) -> list[bytes]:
    """The values in a stored entry, by protobuf alone."""
    begin, end = metadata_range(body)
    metadata = parse_metadata(body, begin, end)
    payload = body[end:]
    if metadata.compression:
        payload = inflate(metadata.compression, payload, metadata.uncompressed_size, "?")
    if not metadata.HasField("num_messages_in_batch"):
        return [payload]
    found = []
    at = 0
    for _ in range(metadata.num_messages_in_batch):
        (size,) = struct.unpack_from(">I", payload, at)
        at += 4 + size
        one = pb.SingleMessageMetadata.FromString(payload[at - size : at])
        found.append(payload[at : at + one.payload_size])
        at += one.payload_size
    return found


def keep_records_only(data: Path) -> dict[str, int]:
    """Delete everything but journals and entry logs; how many there are."""
    for path in sorted(data.rglob("*"), reverse=True):
        if path.is_file() and path.suffix not in (".journal", ".log"):
            path.unlink()
        elif path.is_dir() and ("index" in path.name or "metadata" in path.name):
            shutil.rmtree(path)
    return Counter(path.suffix for path in data.rglob("*") if path.is_file())


def newest(data: Path, suffix: str) -> int:
    """The number of the last file."""
    return max(int(path.stem) for path in data.rglob(f"*{suffix}"))


def rescued(data: Path, with_spark: bool) -> pa.Table:
    """The DataFrame, or what it is made of."""
    holes: list[Hole] = []
    if with_spark:
        spark = make_session("rescue", settings={"spark.log.level": "ERROR", "spark.ui.enabled": "false"})
        try:
            found = rescue(spark, str(data), progress=tell)
            holes, table = found.holes, found.entries.toArrow()
        finally:
            spark.stop()
    else:
        table = pa.Table.from_batches(rescue_batches(RealDisk(), [str(data)], holes), ENTRIES)
    assert not holes, "\n".join(map(str, holes))
    return table.select(["topic", "ledger_id", "entry_id", "path", "body"])


def check(rows: pa.Table, confirmed: dict[str, dict[Place, bytes]], gone: str) -> None:
    """Everything confirmed is there, under its topic; of the topic `gone`, what was not cleared away with its
    ledger.
    """
    bodies: dict[tuple[int, int], tuple[str | None, bytes]] = {}
    for row in rows.to_pylist():
        place = row["ledger_id"], row["entry_id"]
        assert place not in bodies, f"{place} came twice"
        bodies[place] = row["topic"], row["body"]
    total = lost_of_gone = 0
    for topic, messages in confirmed.items():
        for (ledger_id, entry_id, index), value in messages.items():
            entry = bodies.get((ledger_id, entry_id))
            if entry is None and topic == gone:
                lost_of_gone += 1
                continue
            assert entry is not None, f"{topic}: {ledger_id}:{entry_id} is not there"
            assert messages_of(entry[1])[index] == value, f"{topic}: {ledger_id}:{entry_id}:{index}"
            assert entry[0] == topic, (topic, entry[0], ledger_id)
            total += 1
    journaled = sum(path.endswith(".journal") for path in rows["path"].to_pylist())
    tell(f"{len(bodies):,} entries rescued, {journaled:,} of them from journals")
    tell(
        f"{total:,} confirmed messages are there with their bytes, under their topic; "
        f"{lost_of_gone:,} cleared ones went with their ledgers"
    )


def fill(data: Path, seconds: float) -> dict[str, dict[Place, bytes]]:
    with BrokerProcess(data, settings=SETTINGS) as process:
        broker = process.endpoints
        Admin(broker.web_url).create_partitions(KEPT[1], PARTITIONS)
        writers = Writers(broker)
        writers.start()
        threading.Event().wait(seconds)
        process.kill()
    writers.stop()
    return writers.confirmed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to write before the kill")
    parser.add_argument("--spark", action="store_true", help="as a DataFrame; else without Spark")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rescue-workload-") as directory:
        data = Path(directory) / "data"
        confirmed = fill(data, flags.seconds)
        total = sum(map(len, confirmed.values()))
        tell(f"killed; {total:,} messages were confirmed in {len(confirmed)} topics")
        files = keep_records_only(data)
        tell(
            f"left: {files['.log']} of {newest(data, '.log')} entry logs, {files['.journal']} of "
            f"{newest(data, '.journal')} journals, nothing else"
        )
        check(rescued(data, flags.spark), confirmed, CLEARED)


if __name__ == "__main__":
    main()
