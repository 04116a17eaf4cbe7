"""What is said of a stored entry without parsing it."""

from __future__ import annotations

import pytest

from geminga.errors import ProtocolError
from geminga.wire import client_commands
from geminga.wire.message_metadata import peek, peek_or_none, stamp
from geminga.wire.stored_entry import may_be_delayed

PLAIN = client_commands.entry(client_commands.metadata("p", 0, 1_785_500_000_000), b"\x98\x01" * 9)
DELAYED = client_commands.entry(
    client_commands.metadata("p", 0, 1_785_500_000_000, deliver_at_ms=1_785_500_001_000), b"hello"
)
STAMPS = {
    "usual": stamp(1_785_500_000_000),
    "with an index": stamp(1_785_500_000_000, 7),
    "none": b"",
}


@pytest.mark.parametrize("head", STAMPS.values(), ids=STAMPS)
@pytest.mark.parametrize("has_checksum", [True, False])
def test_only_metadata_says_that_an_entry_may_be_delayed(head: bytes, has_checksum: bool) -> None:
    for entry, is_delayed in ((PLAIN, False), (DELAYED, True)):
        stored = head + (entry if has_checksum else entry[6:])
        assert may_be_delayed(stored) is is_delayed
        assert (peek(stored).deliver_at_ms > 0) is is_delayed
        payload = b"hello" if is_delayed else b"\x98\x01" * 9
        for cut in range(len(stored) - len(payload)):
            assert may_be_delayed(stored[:cut]) is False, "its metadata is not all there"
            assert peek_or_none(stored[:cut]) is None


def test_what_cannot_be_read_is_none() -> None:
    assert peek_or_none(PLAIN) == peek(PLAIN)
    with pytest.raises(ProtocolError):
        peek(b"\x0e\x01nothing")
    assert peek_or_none(b"\x0e\x01nothing") is None
