"""What becomes of a broker that does not start again: its own fault, or an operator's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

import pytest
import trio

from geminga.child_broker import BrokerFailed, ChildBroker
from geminga.cli.admin.admin_http import RequestFailed
from geminga.cli.chaos.running.target import ChildTarget, RemoteTarget, StartRefused, ask


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


async def test_a_broker_that_ends_in_the_middle_of_an_answer_has_not_answered() -> None:
    async def broken(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, broken, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        with pytest.raises(RequestFailed, match="IncompleteRead"):
            await ask(RemoteTarget("", url), "GET", "/metrics/")
        nursery.cancel_scope.cancel()
