"""What becomes of a broker that does not start again: its own fault, or an operator's."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from geminga.child_broker import BrokerFailed, ChildBroker
from geminga.cli.chaos.running.target import ChildTarget, StartRefused


class Refusing:
    """A child broker that ends whenever it is told to, and never starts again."""

    service_url = web_url = ""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        (data_dir / "index").mkdir(parents=True)

    def end(self) -> None:
        pass

    kill = end

    def start(self) -> None:
        raise BrokerFailed("the broker ended with code 4\ngeminga standalone: files of two moments\n")


async def test_only_what_an_operator_did_excuses_a_start_that_is_refused(tmp_path: Path) -> None:
    target = ChildTarget(cast("ChildBroker", Refusing(tmp_path / "data")), tmp_path / "copy")
    for act in (target.kill, target.restart):
        with pytest.raises(BrokerFailed):
            await act()
    await target.copy(stopped=False)
    with pytest.raises(StartRefused, match="^geminga standalone: files of two moments$"):
        await target.restore(stopped=True)
    with pytest.raises(BrokerFailed):
        await target.copy(stopped=True)
    # As after a copy of a stopped broker that could be made.
    target._copy_is_orderly = True
    with pytest.raises(BrokerFailed):
        await target.restore(stopped=False)
    with pytest.raises(StartRefused):
        await target.remove("index", stopped=True)
