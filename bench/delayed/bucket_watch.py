"""What benches look at while buckets are lost and made again: buckets over REST, memory from /proc, names in
the metadata of a stopped broker. Linux only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import trio

from geminga.metadata import records
from geminga.metadata.node import Put
from geminga.metadata.records import CursorRecord, ManagedLedgerRecord
from geminga.metadata.store import MetadataStore
from geminga.names import TopicName
from geminga.server.metadata_check import METADATA
from geminga.storage.key_value import RocksKeyValue
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess

BUCKET_PREFIX = "#pulsar.internal.delayed.bucket_"
RESET_PEAK = "5"
"""To /proc/PID/clear_refs: VmHWM begins anew (proc(5))."""
SEALED = {"sealed", "loading"}
"""States of a part of the index that is a bucket on the bookie and serves; older brokers list only these."""


class CheckoutBroker(BrokerProcess):
    """The broker of another checkout, by its own code, on this Python."""

    def __init__(self, checkout: Path, data_dir: Path, **options: Any) -> None:
        super().__init__(data_dir, **options)
        self._checkout = checkout.resolve()

    def command(self) -> list[str]:
        python, *rest = super().command()
        # Without -P this checkout, which is the working directory, would come first.
        return ["env", f"PYTHONPATH={self._checkout}", python, "-P", *rest]


class Look(NamedTuple):
    """What the broker says at one moment; counts of messages."""

    at_s: float
    """Since the watch began."""
    buckets: list[tuple[int, int]]
    """On the bookie: the ledger of each, and how many of its messages wait."""
    waiting: int
    unread: int
    is_being_read: bool
    resident_mib: float
    peak_mib: float
    """Of the process so far, or since `reset_peak`."""

    @property
    def sealed(self) -> int:
        return sum(messages for _, messages in self.buckets)

    @property
    def ledgers(self) -> set[int]:
        return {ledger_id for ledger_id, _ in self.buckets}

    @property
    def sizes(self) -> list[int]:
        return sorted(messages for _, messages in self.buckets)

    def line(self) -> str:
        sizes = f"{self.sizes[0]:>8,}..{self.sizes[-1]:<9,}" if self.buckets else f"{'':19}"
        reading = "  being read" if self.is_being_read else ""
        return (
            f"  {self.at_s:7.1f} s {len(self.buckets):5} buckets {self.sealed:10,} sealed {sizes}"
            f" {self.waiting:10,} wait {self.unread:10,} unread"
            f" {self.resident_mib:6.0f} MiB (peak {self.peak_mib:.0f}){reading}"
        )


def process_mib(pid: int) -> tuple[float, float]:
    """VmRSS and VmHWM; 0 if the process is gone."""
    found = {}
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                found[name] = int(rest.split()[0]) / 1024
    except OSError:
        pass
    return found.get("VmRSS", 0.0), found.get("VmHWM", 0.0)


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK)


class Watch:
    """Looks at one subscription's index."""

    def __init__(self, broker: BrokerProcess, topic: str, subscription: str) -> None:
        self._broker = broker
        self._web = Admin(broker.endpoints.web_url)
        self._path = f"/geminga/delayed/{topic_path(topic)}/subscription/{subscription}"
        self._began_s = time.monotonic()
        self._last: list[tuple[int, int]] = []

    def buckets(self) -> list[tuple[int, int]] | None:
        """Those that are sealed; None: the broker cannot say now."""
        answer = self._web.get(self._path + "/buckets")
        if answer.status != 200:
            return None
        found = answer.json()
        listed = found if isinstance(found, list) else found["buckets"]
        return [
            (bucket["ledgerId"], bucket["messages"])
            for bucket in listed
            if bucket["ledgerId"] is not None and bucket.get("state", "sealed") in SEALED
        ]

    def look(self) -> Look:
        answer = self._web.get(self._path)
        summary = answer.json() if answer.status == 200 else {}
        buckets = self.buckets()
        if buckets is not None:
            self._last = buckets
        return Look(
            time.monotonic() - self._began_s,
            self._last,
            summary.get("messages", 0),
            summary.get("unread", 0),
            summary.get("isBeingRead", True) or buckets is None,
            *process_mib(self._broker.pid),
        )

    def until(
        self,
        ended: Callable[[Look], bool],
        *,
        timeout_s: float,
        every_s: float = 1.0,
        show: Callable[[str], None] = print,
    ) -> list[Look]:
        """Look until `ended`, or until the time is over; a line for each look that found something new."""
        looks: list[Look] = []
        deadline_s = time.monotonic() + timeout_s
        while True:
            look = self.look()
            if not looks or look.ledgers != looks[-1].ledgers or look.waiting > looks[-1].waiting:
                show(look.line())
            looks.append(look)
            if ended(look) or time.monotonic() > deadline_s:
                return looks
            time.sleep(every_s)

    def lose(self, ledger_id: int) -> None:
        """The broker has to run with `--chaos`."""
        answer = self._web.post(self._path + "/lose-bucket", {"ledgerId": ledger_id})
        # 404, 409: it was rebuilt, or merged, or is lost already.
        assert answer.status in (200, 204, 404, 409), answer


class Settled:
    """Whether there were the same buckets for a while, and nothing to read: a condition for `Watch.until`."""

    def __init__(self, seconds: float, waiting_min: int = 0) -> None:
        self._seconds = seconds
        self._waiting_min = waiting_min
        self._before: object = None
        self._since_s = 0.0

    def __call__(self, look: Look) -> bool:
        now = look.ledgers, look.unread > 0
        if now != self._before or look.is_being_read or look.waiting < self._waiting_min:
            self._before, self._since_s = now, look.at_s
        return look.at_s - self._since_s >= self._seconds


# -- a stopped broker's metadata -------------------------------------------------------------------------


def named_buckets(data_dir: Path, topic: str) -> dict[str, int]:
    """Properties of the topic and of its cursors that name buckets: the ledger of each."""
    values = RocksKeyValue(os.path.join(data_dir, METADATA), read_only=True)
    try:
        return {
            key: int(value)
            for _, record in _records(MetadataStore(values), topic)
            for key, value in record.properties.items()
            if key.startswith(BUCKET_PREFIX)
        }
    finally:
        values.close()


def drop_bucket_properties(data_dir: Path, topic: str) -> int:
    """Let no property of the topic or of its cursors name a bucket any more; how many did. The broker's next
    start finds ledgers that nothing names, and deletes them.
    """

    async def drop() -> int:
        values = RocksKeyValue(os.path.join(data_dir, METADATA))
        store, dropped = MetadataStore(values), 0
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            for path, record in list(_records(store, topic)):
                kept = {k: v for k, v in record.properties.items() if not k.startswith(BUCKET_PREFIX)}
                if len(kept) < len(record.properties):
                    dropped += len(record.properties) - len(kept)
                    changed: Any = msgspec.structs.replace(record, properties=kept)
                    await store.transact([Put(path, records.encode(changed))])
            nursery.cancel_scope.cancel()
        values.close()
        return dropped

    return trio.run(drop)


def chain_record_bytes(data_dir: Path, topic: str) -> int:
    """The size of the topic's managed-ledger record."""
    values = RocksKeyValue(os.path.join(data_dir, METADATA), read_only=True)
    try:
        stored = MetadataStore(values).get(records.managed_ledger_path(TopicName.parse(topic)))
        return len(stored.value) if stored is not None else 0
    finally:
        values.close()


def _records(store: MetadataStore, topic: str) -> list[tuple[str, ManagedLedgerRecord | CursorRecord]]:
    path = records.managed_ledger_path(TopicName.parse(topic))
    found: list[tuple[str, ManagedLedgerRecord | CursorRecord]] = []
    stored = store.get(path)
    if stored is not None:
        found.append((path, records.decode(ManagedLedgerRecord, stored.value, path)))
    for component in store.children(path):
        cursor_path = f"{path}/{component}"
        held = store.get(cursor_path)
        assert held is not None
        found.append((cursor_path, records.decode(CursorRecord, held.value, cursor_path)))
    return found


def parse_settings(pairs: list[str]) -> Mapping[str, str]:
    """`KEY=VALUE` of a command line."""
    return dict(pair.split("=", 1) for pair in pairs)


class Verdicts:
    """Lines with their figures; `all_met` says what the command returns."""

    def __init__(self) -> None:
        self.all_met = True

    def line(self, what: str, figure: str, *, met: bool | None = None) -> None:
        if met is False:
            self.all_met = False
        print(f"{'' if met is None else 'ok  ' if met else 'FAIL':5}{what:58}{figure}", flush=True)


def say(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
