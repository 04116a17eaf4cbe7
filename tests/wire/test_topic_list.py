"""The digest of a topic list: what the protocol's other implementations compute."""

from __future__ import annotations

from geminga.wire.topic_list import topics_hash


def test_known_digests() -> None:
    topics = ["persistent://public/default/b", "persistent://public/default/a"]
    assert topics_hash(topics) == topics_hash(reversed(topics)) == "c7559e98"
    assert topics_hash(["persistent://public/default/wire-check"]) == "72500948"
    assert topics_hash([]) == "00000000"
