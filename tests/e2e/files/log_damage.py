"""Entry logs of a killed broker, damaged in every way, with the journals and without: what is served then.

    python -m tests.e2e.files.log_damage        all of the table

Either a message comes as it was sent, or the broker's log names its entry; with the journals all come.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Final, NamedTuple

import pulsar

from geminga.bookie.entry_logs.entry_log_format import TRAILER_BYTES, decode_trailer
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.waiting import eventually

MESSAGES: Final = 240
MESSAGE_BYTES: Final = 10_000
SETTINGS: Final = {"logSizeLimit": str(1 << 20), "flushInterval": "200"}
TOPIC: Final = "persistent://public/default/orders"
RUN: Final = re.compile(r"entr(?:y|ies) (\d+)(?: to (\d+))? of ledger (\d+)")
READ_MS: Final = 20_000


def sent(number: int) -> str:
    return f"message {number:05} ".ljust(MESSAGE_BYTES, ".")


def records_end(data: bytearray) -> int:
    trailer = decode_trailer(bytes(data[-TRAILER_BYTES:]))
    assert trailer is not None, "the log is not closed"
    return trailer[0]


def _flip(data: bytearray, offset: int) -> None:
    data[offset] ^= 4


def _zero(data: bytearray, offset: int) -> None:
    data[offset:] = bytes(len(data) - offset)


DAMAGES: Final[dict[str, Callable[[bytearray], object]]] = {
    "cut to nothing": lambda data: data.clear(),
    "cut in half": lambda data: data.__delitem__(slice(len(data) // 2, None)),
    "cut in the last record": lambda data: data.__delitem__(slice(records_end(data) - 1, None)),
    "zeros from half": lambda data: _zero(data, len(data) // 2),
    "footer cut off": lambda data: data.__delitem__(slice(records_end(data), None)),
    "footer flipped": lambda data: _flip(data, records_end(data) + 9),
    "trailer flipped": lambda data: _flip(data, len(data) - 1),
    "header flipped": lambda data: _flip(data, 9),
    "bit flipped in the middle": lambda data: _flip(data, len(data) // 2),
    "deleted": lambda data: None,
}


class Outcome(NamedTuple):
    served: int
    named: int
    """Messages that did not come, and that the broker's log names as not to be read."""
    healed: int
    """Entries that the start or the scrub took from journals."""
    log: str


def metric(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"{broker.endpoints.web_url.rstrip('/')}/metrics", timeout=20) as response:
        lines = response.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(name + " ")).split()[-1])


def wait_for(broker: BrokerProcess, name: str, least: float) -> None:
    eventually(lambda: metric(broker, name) >= least, 30, what=f"{name} to be {least}")


def fill(data_dir: Path, *, keep_journals: bool) -> list[tuple[int, int]]:
    """A broker's directory after a kill: closed logs, one that was open, and all of it in entry logs. Without
    journals: after one more start, which lets them go. Returns (ledger, entry) of each message.
    """
    places = []
    with BrokerProcess(data_dir, settings=SETTINGS) as broker:
        client = pulsar.Client(
            broker.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(MESSAGES):
            place = producer.send(sent(number).encode())
            places.append((place.ledger_id(), place.entry_id()))
            if len(places) % (MESSAGES // 2) == 0:  # the second flush closes the first one's log
                wait_for(broker, "geminga_bookie_flushed_bytes", len(places) * MESSAGE_BYTES)
        broker.kill()
        broker.start()
        client.close()
    if not keep_journals:
        with BrokerProcess(data_dir, settings={**SETTINGS, "journalMaxBackups": "0"}) as broker:
            broker.kill()
            broker.start()
    return places


def damaged_log(data_dir: Path, name: str) -> None:
    """Damage the first closed log that holds messages."""
    for path in sorted((data_dir / "bookie" / "entry-logs").iterdir()):
        if path.stat().st_size > 1 << 20:
            break
    if name == "deleted":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        DAMAGES[name](data)
        path.write_bytes(data)


def outcome(data_dir: Path, places: Sequence[tuple[int, int]]) -> Outcome:
    """Start a broker on it, let it check all logs, kill it and start it again, then read all."""
    log = data_dir.with_name(data_dir.name + ".log")
    settings = {**SETTINGS, "gemingaScrubRateByBytes": "1000000000"}
    with BrokerProcess(data_dir, settings=settings, log_path=log) as broker:
        wait_for(broker, "geminga_bookie_scrub_passes", 1)
        healed = metric(broker, "geminga_bookie_damaged_entries_healed")
        healed += metric(broker, "geminga_bookie_recovery_entries_moved")
        broker.kill()
        broker.start()
        named = {
            (int(ledger), entry)
            for line in log.read_text().splitlines()
            if "cannot be read" in line
            for first, last, ledger in RUN.findall(line)
            for entry in range(int(first), int(last or first) + 1)
        }
        served = read(broker, places, named)
    return Outcome(served, len(named.intersection(places)), int(healed), log.read_text())


def read(broker: BrokerProcess, places: Sequence[tuple[int, int]], named: Set[tuple[int, int]]) -> int:
    """Read all that is not named, checking every payload, and see that what is named does not come."""
    client = pulsar.Client(
        broker.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    served, at = 0, 0
    try:
        while at < len(places):
            if places[at] in named:
                at += 1
                continue
            start = pulsar.MessageId(-1, *places[at], -1)
            reader = client.create_reader(TOPIC, start, start_message_id_inclusive=True)
            while at < len(places) and places[at] not in named:
                message = reader.read_next(READ_MS)
                place = message.message_id().ledger_id(), message.message_id().entry_id()
                assert place == places[at], f"{place} came, and {places[at]} was to come"
                assert message.data().decode() == sent(at), f"{place} has another payload"
                served, at = served + 1, at + 1
            reader.close()
    finally:
        client.close()
    return served


def main() -> int:
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for keep_journals in (True, False):
            golden = Path(scratch) / f"golden-{keep_journals}"
            places = fill(golden, keep_journals=keep_journals)
            for name in DAMAGES:
                data_dir = Path(scratch) / f"{keep_journals}-{name.replace(' ', '-')}"
                shutil.copytree(golden, data_dir)
                damaged_log(data_dir, name)
                served, named, healed, _ = outcome(data_dir, places)
                whole = served + named == MESSAGES and not (keep_journals and named)
                failed |= not whole
                kept = "kept" if keep_journals else "gone"
                print(
                    f"journals {kept}  {name:26}{served:5} served {named:5} named {healed:5} healed",
                    flush=True,
                )
                shutil.rmtree(data_dir)
    return failed


if __name__ == "__main__":
    sys.exit(main())
