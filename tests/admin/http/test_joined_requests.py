"""A request whose client has not waited is repeated: the repetition joins the one that is under way."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from geminga.admin.http.router import NO_CONTENT, Request, Response, Router
from geminga.errors import Conflict, GemingaError


async def test_the_same_change_is_made_once_and_both_get_its_answer() -> None:
    made: list[str] = []
    go_on = trio.Event()

    async def change(request: Request) -> Response:
        made.append(request.parameters["name"])
        await go_on.wait()
        if request.parameters["name"] == "taken":
            raise Conflict("taken")
        return NO_CONTENT

    router = Router()
    router.add("POST", "/topics/{name}", change, walks="topics", joins=True)
    answers: list[int] = []

    async def ask(target: str, body: bytes = b"") -> None:
        try:
            answers.append((await router(Request("POST", target, body))).status)
        except GemingaError as error:
            answers.append(error.http_status)

    async with trio.open_nursery() as nursery:
        for target in (
            "/topics/a",
            "/topics/a",
            "/topics/b",
            "/topics/a?force=true",
            "/topics/taken",
            "/topics/taken",
        ):
            nursery.start_soon(ask, target)
        nursery.start_soon(ask, "/topics/a", b"1")
        await wait_all_tasks_blocked()
        assert sorted(made) == ["a", "a", "a", "b", "taken"], "once for each wording"
        go_on.set()
    assert sorted(answers) == [204] * 5 + [409] * 2
    made.clear()
    await ask("/topics/a")
    assert made == ["a"], "what has ended is not joined"
