"""`Tenant` for tests of asyncio and trio: what asks the broker is awaited, and the test's loop runs on."""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

import trio

from geminga.testing.tenant import WAIT_SECONDS, Peeked, Tenant

_P = ParamSpec("_P")
_T = TypeVar("_T")


class AsyncTenant:
    """Made by the fixture `geminga_async_tenant`. Each method waits as that of `Tenant` with its name does,
    and raises the same; `tenant` is that one. The application under test may run on the same loop, so that a
    move with `until_acknowledged` waits for it.

    A task that is cancelled while it waits returns at once; the broker ends a move of the clock all the same.
    """

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.service_url = tenant.service_url
        self.web_url = tenant.web_url
        self.namespace = tenant.namespace
        self.topic = tenant.topic

    async def now(self) -> datetime.datetime:
        return await _waited(self.tenant.now)

    async def advance(
        self,
        length: str | float | datetime.timedelta,
        *,
        until_acknowledged: bool = False,
        timeout_s: float = WAIT_SECONDS,
    ) -> Mapping[str, Any]:
        return await _waited(
            self.tenant.advance, length, until_acknowledged=until_acknowledged, timeout_s=timeout_s
        )

    async def advance_to(
        self, moment: datetime.datetime, *, until_acknowledged: bool = False, timeout_s: float = WAIT_SECONDS
    ) -> Mapping[str, Any]:
        return await _waited(
            self.tenant.advance_to, moment, until_acknowledged=until_acknowledged, timeout_s=timeout_s
        )

    async def advance_to_next(
        self, *, until_acknowledged: bool = False, timeout_s: float = WAIT_SECONDS
    ) -> Mapping[str, Any]:
        return await _waited(
            self.tenant.advance_to_next, until_acknowledged=until_acknowledged, timeout_s=timeout_s
        )

    async def lose_bucket(
        self, topic: str, subscription: str, ledger_id: int | None = None
    ) -> Mapping[str, Any]:
        return await _waited(self.tenant.lose_bucket, topic, subscription, ledger_id)

    async def set_fault(self, **rule: object) -> str:
        return await _waited(self.tenant.set_fault, **rule)

    async def clear_fault(self, rule: str) -> None:
        await _waited(self.tenant.clear_fault, rule)

    async def stats(self, topic: str) -> Mapping[str, Any]:
        return await _waited(self.tenant.stats, topic)

    async def topics(self) -> list[str]:
        return await _waited(self.tenant.topics)

    async def peek(self, topic: str, subscription: str, count: int = 1) -> list[Peeked]:
        return await _waited(self.tenant.peek, topic, subscription, count)

    async def drain(self, timeout_s: float = WAIT_SECONDS) -> None:
        await _waited(self.tenant.drain, timeout_s)

    async def assert_delivered(self, topic: str, subscription: str, timeout_s: float = 5.0) -> None:
        await _waited(self.tenant.assert_delivered, topic, subscription, timeout_s)

    async def events(self) -> list[Mapping[str, Any]]:
        return await _waited(self.tenant.events)


async def _waited(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """On a thread of its own: an application whose receiving calls fill the loop's pool of threads waits for
    this one.
    """
    bound = partial(call, *args, **kwargs)
    if trio.lowlevel.in_trio_task():
        return await trio.to_thread.run_sync(bound, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
    done: Future[_T] = Future()
    threading.Thread(target=_run, args=(bound, done), name="geminga-tenant", daemon=True).start()
    return await asyncio.wrap_future(done)


def _run(bound: Callable[[], _T], done: Future[_T]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        result = bound()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(result)
