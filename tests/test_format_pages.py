"""The examples of the pages that are not the bookie's own, byte for byte; and that every page has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyroaring import BitMap

from geminga.config.config import Config
from geminga.config.memory_budget import MemoryParts, memory_parts
from geminga.limits import MIB
from geminga.managed_ledger.cursor import cursor_state_format
from geminga.managed_ledger.cursor.cursor_state_format import CursorState
from geminga.metadata.keys import key_of
from geminga.metadata.node import Stored, encode_row
from geminga.metadata.records import TenantRecord, encode
from geminga.wire.commands import Send, singly
from geminga.wire.decoder import Decoder
from geminga.wire.message_metadata import broker_timestamp_ms, peek, stamp, strip

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted((DOCS / "formats").glob("*.md"))


def examples(page: str) -> list[bytes]:
    """The hexadecimal blocks of a page, in order."""
    text = (DOCS / "formats" / page).read_text() + "\n"
    blocks = re.findall(r"(?:^    (?:[0-9a-f]{2} ?)+\n)+", text, re.MULTILINE)
    return [bytes.fromhex(block) for block in blocks]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_has_an_example_that_a_test_reads(page: Path) -> None:
    assert examples(page.name)
    tests = [path.read_text() for path in Path(__file__).parent.rglob("*.py")]
    assert any(f'examples("{page.name}")' in test for test in tests)


def test_the_cursor_page() -> None:
    state = CursorState((7, 41), {7: BitMap([43, 44])}, {(7, 46): 0b101})
    shortest, whole = examples("cursor.md")
    assert whole == cursor_state_format.encode(state, 1000).data
    decoded = cursor_state_format.decode(whole)
    assert decoded.mark_delete == (7, 41)
    assert dict(decoded.acknowledged) == {7: BitMap([43, 44])}
    assert dict(decoded.batches) == {(7, 46): 0b101}
    assert cursor_state_format.decode(shortest) == CursorState((7, 41), {}, {})


def test_the_metadata_page() -> None:
    value = encode(TenantRecord(allowed_clusters=["standalone"]))
    assert examples("metadata.md") == [key_of("/tenants/public"), encode_row(Stored(value, 0))]


def test_the_wire_page() -> None:
    frame, stored = examples("wire.md")
    (send,) = singly(Decoder().feed(frame))
    assert isinstance(send, Send)
    assert (send.producer_id, send.sequence_id, send.checksum_ok) == (1, 7, True)
    assert stored == stamp(1234567890200) + send.headers_and_payload
    assert strip(stored) == send.headers_and_payload
    assert broker_timestamp_ms(stored) == 1234567890200
    assert (peek(stored).publish_time_ms, peek(stored).producer_name) == (1234567890123, "p")
    assert stored.endswith(b"hello")


def test_the_table_of_the_memory_is_what_the_broker_does() -> None:
    table = re.findall(
        r"^\| ([a-z ]+) \|[^|]*\| ([0-9.]+) \|", (DOCS / "memory.md").read_text(), re.MULTILINE
    )
    sizes = {name.replace(" ", "_"): float(size) for name, size in table}
    total = sizes.pop("sum")
    parts = memory_parts(Config())
    assert sizes == {name: round(size / MIB, 1) for name, size in parts._asdict().items()}
    assert set(sizes) == set(MemoryParts._fields)
    assert total == Config().memory_mb == round(sum(sizes.values())), "each is rounded"
