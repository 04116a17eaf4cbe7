"""What the wire room costs: CPU time per command or entry, one core, 1 KiB messages.

`python bench/cpu/wire.py [seconds per row]`. Each figure is the best of many short runs, in process time, so
that a busy machine disturbs it little; the loop around the call is in it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.wire import client_commands, encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.decoder import Decoder
from geminga.wire.hot_encoder import MessageEncoder, ReceiptEncoder
from geminga.wire.message_metadata import peek, stamp, sticky_key_hash

NOW_MS = 1_785_500_000_000
COUNT = 200
LEDGER = 1234
PAYLOAD = os.urandom(1024)


def best_us(work: Callable[[], int], seconds: float) -> float:
    """`work` returns how many it did."""
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.process_time_ns()
        count = work()
        best = min(best, (time.process_time_ns() - begin) / count)
    return best / 1000


def an_entry(number: int, **fields: object) -> bytes:
    metadata = client_commands.metadata("standalone-0-12", 100_000 + number, NOW_MS + number)
    metadata.MergeFrom(pb.MessageMetadata(**fields))  # type: ignore[arg-type]
    return client_commands.entry(metadata, PAYLOAD)


def decoding(frames: list[bytes], cut_bytes: int = 0, each: int = 1) -> Callable[[], int]:
    data = b"".join(frames)
    size = cut_bytes or len(data)
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    decoder = Decoder()

    def work() -> int:
        for _ in range(10):
            for chunk in chunks:
                decoder.feed(chunk)
        return len(frames) * 10 * each

    return work


def receipts() -> int:
    encode = ReceiptEncoder(3).encode
    for n in range(100_000, 102_000):
        encode(n, 0, LEDGER, n)
    return 2000


def messages(body: bytes, redelivery_count: int = 0) -> Callable[[], int]:
    def work() -> int:
        encode = MessageEncoder(5).encode
        for first in range(100_000, 102_000, 100):
            out: list[bytes | memoryview] = []
            for n in range(first, first + 100):
                encode(out, LEDGER, n, redelivery_count, None, None, body)
        return 2000

    return work


def peeking(bodies: list[bytes]) -> Callable[[], int]:
    def work() -> int:
        for _ in range(10):
            for body in bodies:
                peek(body)
        return len(bodies) * 10

    return work


def hashing(bodies: list[bytes]) -> Callable[[], int]:
    peeks = [peek(body) for body in bodies]

    def work() -> int:
        for found in peeks:
            sticky_key_hash(found)
        return len(peeks)

    return work


def rows() -> dict[str, Callable[[], int]]:
    mark = stamp(NOW_MS)
    sends = [client_commands.send(3, 100_000 + n, an_entry(n)) for n in range(COUNT)]
    batches = [
        client_commands.send(3, 100_000 + n, an_entry(n, num_messages_in_batch=10), num_messages=10)
        for n in range(COUNT)
    ]
    positions = [(LEDGER, 100_000 + n) for n in range(COUNT)]
    keyed = [mark + an_entry(n, partition_key=f"key-{n % 50}") for n in range(COUNT)]
    return {
        "SEND decoded, checksum and slice": decoding(sends),
        "SEND of a batch decoded": decoding(batches),
        "SEND decoded, chunks of 1,500 bytes": decoding(sends, 1500),
        "ACK of one position decoded": decoding([client_commands.ack(5, [one]) for one in positions]),
        "ACK with request id decoded": decoding(
            [client_commands.ack(5, [one], request_id=9) for one in positions]
        ),
        "ACK of 200 decoded, per position": decoding([client_commands.ack(5, positions)], each=COUNT),
        "FLOW decoded": decoding([client_commands.flow(5, 500)] * COUNT),
        "PING decoded (by protobuf)": decoding([encoder.ping()] * COUNT),
        "receipt encoded": receipts,
        "MESSAGE encoded": messages(mark + an_entry(0)),
        "MESSAGE encoded, redelivered": messages(mark + an_entry(0), 1),
        "peek": peeking([mark + an_entry(n) for n in range(COUNT)]),
        "peek, delayed": peeking([mark + an_entry(n, deliver_at_time=NOW_MS + n) for n in range(COUNT)]),
        "peek, batch": peeking([mark + an_entry(n, num_messages_in_batch=10) for n in range(COUNT)]),
        "peek, key": peeking(keyed),
        "peek, the long way": peeking(long_way(mark)),
        "key's hash, from the cache": hashing(keyed),
    }


def long_way(mark: bytes) -> list[bytes]:
    """Entries whose metadata has a field that the scan does not know."""
    metadata = (
        client_commands.metadata("standalone-0-12", 100_000, NOW_MS).SerializeToString() + b"\xf8\x3f\x01"
    )
    return [mark + b"\x0e\x01\0\0\0\0" + len(metadata).to_bytes(4, "big") + metadata + PAYLOAD] * COUNT


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    for name, work in rows().items():
        print(f"{name:40} {best_us(work, seconds):7.3f} us", flush=True)


if __name__ == "__main__":
    main()
