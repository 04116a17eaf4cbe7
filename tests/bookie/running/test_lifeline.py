"""What the parts of a bookie tell each other: each change to every listener, and one failure for good."""

from __future__ import annotations

import pytest

from geminga.bookie.running.lifeline import Lifeline
from geminga.errors import ReadOnly, StorageError


def test_every_listener_hears_each_change_and_the_failure() -> None:
    failures: list[StorageError] = []
    heard: list[str] = []
    lifeline = Lifeline(failures.append)
    lifeline.notify()
    lifeline.call_on_change(lambda: heard.append("first"))
    lifeline.notify()
    lifeline.call_on_change(lambda: heard.append("second"))
    lifeline.fail(StorageError("the disk is gone"))
    lifeline.fail(StorageError("a consequence"))
    assert heard == ["first", "first", "second"]
    assert [str(error) for error in failures] == ["the disk is gone"]
    with pytest.raises(StorageError, match="the disk is gone"):
        lifeline.check()


def test_a_full_disk_is_no_failure() -> None:
    lifeline = Lifeline(lambda error: None)
    with pytest.raises(ReadOnly), lifeline.failure_ends_it():
        raise ReadOnly("full")
    lifeline.check()
    with pytest.raises(StorageError), lifeline.failure_ends_it():
        raise StorageError("broken")
    assert str(lifeline.failed) == "broken"
