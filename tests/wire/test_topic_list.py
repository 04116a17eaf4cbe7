"""The digest of a topic list, as Pulsar's TopicList computes it."""

from __future__ import annotations

import json

import pytest

from geminga.wire.topic_list import topics_hash
from tests.oracle.tables import rows


@pytest.mark.parametrize(("topics", "digest"), rows("topic_lists"))
def test_known_digests(topics: str, digest: str) -> None:
    assert topics_hash(json.loads(topics)) == digest
