"""The record of a restore that is under way, as its page has it."""

from __future__ import annotations

import msgspec

from geminga.server.snapshots.manifest import Manifest
from geminga.server.snapshots.swap import Intent
from tests.test_format_pages import DOCS, examples


def test_the_record_of_a_restore_is_as_its_page_has_it() -> None:
    [example] = examples("snapshot.md")
    intent = Intent(what="restore", source="/tmp/seeded")
    assert msgspec.json.encode(intent) == example
    assert msgspec.json.decode(example, type=Intent) == intent


def test_the_list_of_files_is_as_its_page_has_it() -> None:
    page = (DOCS / "formats" / "snapshot.md").read_text()
    text = page[page.index("    {\n") : page.index("    }\n") + 6]
    manifest = msgspec.json.decode(text, type=Manifest)
    assert msgspec.json.decode(msgspec.json.encode(manifest)) == msgspec.json.decode(text)
