"""A search for the words of Pulsar and of the articles about it ends at the class that does it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUCKETS, INDEX = "geminga/tracker/buckets/", "geminga/tracker/index/"
CURSOR = "geminga/managed_ledger/cursor/"


@pytest.mark.parametrize(
    ("word", "path", "name"),
    [
        ("BucketDelayedDeliveryTracker", BUCKETS + "buckets.py", "Buckets"),
        ("InMemoryDelayedDeliveryTracker", INDEX + "index.py", "DelayedIndex"),
        ("DelayedDeliveryTracker", INDEX + "view.py", "View"),
        ("DelayedDeliveryTrackerFactory", "geminga/broker/delays/topic_delays.py", "TopicDelays"),
        ("LastMutableBucket", INDEX + "part.py", "Part"),
        ("LastMutableBucket", INDEX + "feed.py", "Feed"),
        ("ImmutableBucket", INDEX + "sources.py", "Bucket"),
        ("SharedBucketPriorityQueue", INDEX + "sources.py", "Queue"),
        ("BucketSnapshotStorage", BUCKETS + "bucket_store.py", "BucketStore"),
        ("markDelete", CURSOR + "cursor.py", "Cursor"),
        ("markDelete", CURSOR + "acknowledged.py", "Acknowledged"),
        ("readPosition", CURSOR + "cursor.py", "Cursor"),
    ],
)
def test_a_word_is_in_the_docstring_of_the_class_that_does_it(word: str, path: str, name: str) -> None:
    classes = [node for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.ClassDef)]
    (found,) = [node for node in classes if node.name == name]
    assert word in (ast.get_docstring(found) or "")
