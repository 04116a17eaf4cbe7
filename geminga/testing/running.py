"""A broker in the program's own process, on a thread.

    with geminga.running() as broker:
        client = pulsar.Client(broker.service_url)

It starts faster than a child process and needs no program on the path, but it shares the interpreter's lock
with the program: measure nothing with it, and kill a `ChildBroker` instead if a crash is what you want.
"""

from __future__ import annotations

import functools
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import trio

from geminga.config.config import ConfigError
from geminga.config.file import Property
from geminga.config.loading import load
from geminga.server.server import Addresses, serve
from geminga.snapshot_requests import SnapshotRequests


class RunningBroker(SnapshotRequests):
    """A broker that serves until the block of `running` ends."""

    def __init__(self, addresses: Addresses, data_dir: str) -> None:
        self.service_url = f"pulsar://127.0.0.1:{addresses.binary_port}"
        self._web_url = f"http://127.0.0.1:{addresses.web_port}"
        self.data_dir = data_dir
        self.log = ""
        """Its log goes to `logging`, as that of the rest of the program does."""

    @property
    def web_url(self) -> str:
        """`http://host:port`, for the admin API and metrics."""
        return self._web_url


class _Thread(threading.Thread):
    """Runs the broker until `stop`."""

    def __init__(self, data_dir: str, settings: Mapping[str, str]) -> None:
        super().__init__(name="geminga", daemon=True)
        self._data_dir = data_dir
        given = {"brokerServicePort": "0", "webServicePort": "0", **settings}
        flags = [Property(key, value, f"{key}={value}") for key, value in given.items()]
        # Without the environment: a test must not depend on what is set for another broker.
        self._config = load(file=None, environment={}, flags=flags).config
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope: trio.CancelScope | None = None
        self.addresses: Addresses | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            # A nursery wraps what its tasks raise.
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            self.error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            start = functools.partial(serve, self._config, data_dir=self._data_dir)
            self.addresses = await nursery.start(start)
            self._token = trio.lowlevel.current_trio_token()
            self._scope = nursery.cancel_scope
            self._ready.set()

    def wait_until_ready(self) -> Addresses:
        self._ready.wait()
        if self.addresses is None:
            self.join()
            assert self.error is not None
            raise self.error
        return self.addresses

    def stop(self) -> None:
        """Stop in order. Raises what ended it before."""
        if self.is_alive() and self._token is not None and self._scope is not None:
            try:
                self._token.run_sync_soon(self._scope.cancel)
            except trio.RunFinishedError:
                pass  # it has ended by itself meanwhile
        self.join()
        if self.error is not None:
            raise self.error


@contextmanager
def running(
    data_dir: str | os.PathLike[str] | None = None, *, settings: Mapping[str, str] | None = None
) -> Iterator[RunningBroker]:
    """A broker on free ports of 127.0.0.1. Without a directory its data are removed at the end of the block.

    `settings` are keys of broker.conf, such as `{"gemingaClock": "virtual", "chaosEnabled": "true"}`. Raises
    `ConfigError` for settings that cannot be, `StorageError` for a directory that cannot be used.
    """
    with ExitStack() as stack:
        directory = str(data_dir) if data_dir is not None else None
        if directory is None:
            directory = os.path.join(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="geminga-")), "data"
            )
        thread = _Thread(directory, settings or {})
        thread.start()
        addresses = thread.wait_until_ready()
        stack.callback(thread.stop)
        yield RunningBroker(addresses, directory)


__all__ = ["ConfigError", "RunningBroker", "running"]
