"""What `/geminga/delayed` refuses, and how it says so."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from geminga.admin.http.router import BadRequest, NotFound, Request, Router
from geminga.admin.routes.delayed import DelayedRoutes
from geminga.admin.view.process import ProcessView
from geminga.limits import DUE_MS_MAX

ROOT = "/geminga/delayed/persistent/public/default/orders/subscription/s"


class NoView:
    """Takes whatever gets through; there is nothing in it."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def reschedule(self, *asked: Any) -> None:
        self.asked.append(asked[-1])

    async def messages(self, *asked: Any) -> list[Any]:
        self.asked.append(asked[-1])
        return []

    async def damage(self, *asked: Any, quietly: bool) -> None:
        self.asked.append(asked[-1])


@pytest.fixture
def view() -> NoView:
    return NoView()


@pytest.fixture
def router(view: NoView) -> Router:
    made = Router()
    DelayedRoutes(view, cast("ProcessView", None)).add_to(made)  # type: ignore[arg-type]
    return made


async def post(router: Router, action: str, body: object) -> int:
    return (await router(Request("POST", f"{ROOT}/{action}", json.dumps(body).encode()))).status


@pytest.mark.parametrize(
    ("action", "body", "missing"),
    [
        ("expedite", {}, "message"),
        ("expedite", {"messages": ["1:2"]}, "message"),
        ("postpone", {"dueMs": 1}, "message"),
        ("postpone", {"message": "1:2"}, "dueMs"),
    ],
)
async def test_a_key_that_is_missing_is_named(
    router: Router, view: NoView, action: str, body: object, missing: str
) -> None:
    with pytest.raises(BadRequest, match=f"^{missing} is missing$"):
        await post(router, action, body)
    assert not view.asked


async def test_times_end_with_the_year_9999(router: Router, view: NoView) -> None:
    assert await post(router, "postpone", {"message": "1:2", "dueMs": DUE_MS_MAX}) == 204
    for due_ms in (DUE_MS_MAX + 1, 2**63 - 1, 2**63, 2**70, None):
        with pytest.raises(BadRequest, match=rf"dueMs: .* {DUE_MS_MAX}, which is 9999-12-31 23:59:59\.999Z"):
            await post(router, "postpone", {"message": "1:2", "dueMs": due_ms})
    assert view.asked == [DUE_MS_MAX]


async def test_a_page_of_more_than_is_given_at_once_is_refused(router: Router, view: NoView) -> None:
    assert (await router(Request("GET", f"{ROOT}/messages?limit=1000"))).status == 200
    with pytest.raises(BadRequest, match="limit: .* at least 1 and at most 1000, not '1001'"):
        await router(Request("GET", f"{ROOT}/messages?limit=1001"))
    assert view.asked == [1000]


async def test_no_bucket_of_that_ledger_and_no_bucket_at_all(router: Router) -> None:
    with pytest.raises(NotFound, match="there is no such bucket"):
        await post(router, "lose-bucket", {"ledgerId": 8})
    with pytest.raises(NotFound, match="there are no buckets on disk"):
        await post(router, "lose-bucket", {})
