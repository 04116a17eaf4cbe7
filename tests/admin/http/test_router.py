"""Routing is pure: paths in, handlers and parameters out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.admin.http.router import (
    API_WORDS,
    BadRequest,
    MethodNotAllowed,
    NotFound,
    NotServed,
    Request,
    Response,
    Router,
)


def handler(name: str):  # type: ignore[no-untyped-def]
    async def handle(request: Request) -> Response:
        return Response(200, name.encode())

    return handle


@pytest.fixture
def router() -> Router:
    made = Router()
    for method, pattern in (
        ("GET", "/a"),
        ("GET", "/a/{x}"),
        ("DELETE", "/a/{x}"),
        ("GET", "/a/fixed"),
        ("GET", "/a/{x}/stats"),
        ("PUT", "/a/{x}/{y}"),
    ):
        made.add(method, pattern, handler(f"{method} {pattern}"))
    return made


async def answer(router: Router, method: str, target: str) -> tuple[bytes, dict[str, str]]:
    request = Request(method, target)
    response = await router(request)
    return response.body, dict(request.parameters)


@pytest.mark.parametrize(
    ("method", "target", "found", "parameters"),
    [
        ("GET", "/a", b"GET /a", {}),
        ("GET", "/a/", b"GET /a", {}),
        ("HEAD", "/a", b"GET /a", {}),
        ("GET", "/a?x=1", b"GET /a", {}),
        ("GET", "/a/fixed", b"GET /a/fixed", {}),
        ("GET", "/a/other", b"GET /a/{x}", {"x": "other"}),
        ("GET", "/a/b/stats", b"GET /a/{x}/stats", {"x": "b"}),
        ("PUT", "/a/fixed/stats", b"PUT /a/{x}/{y}", {"x": "fixed", "y": "stats"}),
        ("GET", "/a/b%2Fc/stats", b"GET /a/{x}/stats", {"x": "b/c"}),
        ("GET", "/a/%C3%A9%20+", b"GET /a/{x}", {"x": "é +"}),
        ("GET", "/a/...", b"GET /a/{x}", {"x": "..."}),
    ],
)
async def test_found(
    router: Router, method: str, target: str, found: bytes, parameters: dict[str, str]
) -> None:
    # Literal nodes that lead nowhere, or have other methods, do not hide the parameter beside them.
    router.add("GET", "/a/fixed/deeper", handler("deeper"))
    assert await answer(router, method, target) == (found, parameters)


@pytest.mark.parametrize("target", ["/", "/b", "/a//stats", "/a/b/nope/x", "/A"])
async def test_not_found(router: Router, target: str) -> None:
    with pytest.raises(NotFound):
        await answer(router, "GET", target)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/admin/v2/persistent/t/n/x/subscription/s/position/1"),
        ("HEAD", "/admin/v3/functions"),
        ("POST", "/lookup/v2/destination/a%2Fb"),
        ("OPTIONS", "/admin/v2/tenants/t/nope/nope"),
        ("POST", "/topics/persistent/public/default/t"),
    ],
)
async def test_what_is_pulsars_and_has_no_route_is_not_taken_for_a_missing_object(
    router: Router, method: str, target: str
) -> None:
    with pytest.raises(NotServed) as caught:
        await answer(router, method, target + "?x=1")
    assert str(caught.value) == f"{method} {target} is not served by Geminga"
    assert caught.value.http_status == 501


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("/admin/v2/persistant/t/n", "/admin/v2/persistant; did you mean /admin/v2/persistent?"),
        ("/admin/v2/zebra%2Fx", "/admin/v2/zebra%2Fx"),
        ("/admin/v3/function/t/n", "/admin/v3/function; did you mean /admin/v3/functions?"),
        ("/admin/v2", "/admin/v2/"),
        ("/lookup/v2/" + "t" * 500, "/lookup/v2/" + "t" * 100),
    ],
)
async def test_a_word_that_pulsar_does_not_have_is_not_found(router: Router, target: str, told: str) -> None:
    with pytest.raises(NotFound) as caught:
        await answer(router, "GET", target)
    assert str(caught.value) == f"Pulsar's API has no {told}"
    assert [row["status"] for row in router.unserved.rows()] == [404]


def test_every_route_of_a_real_pulsar_begins_with_a_known_word() -> None:
    rows = (Path(__file__).parents[2] / "oracle" / "routes.tsv").read_text().splitlines()[1:]
    paths = [row.split("\t")[2].strip("/").split("/") for row in rows]
    begins = {(*prefix, word) for prefix, words in API_WORDS.items() for word in words}
    assert {path[0] for path in paths} == {prefix[0] for prefix in API_WORDS}
    unknown = [path for path in paths if not any(tuple(path[: len(one)]) == one for one in begins)]
    assert unknown == []


async def test_the_root_can_have_a_handler(router: Router) -> None:
    router.add("GET", "/", handler("index"))
    assert await answer(router, "GET", "/?x") == (b"index", {})
    with pytest.raises(NotFound):
        await answer(router, "GET", "//")


async def test_wrong_method_names_the_right_ones(router: Router) -> None:
    with pytest.raises(MethodNotAllowed) as caught:
        await answer(router, "POST", "/a/x")
    assert caught.value.allowed == "DELETE, GET, HEAD, OPTIONS"
    response = await router(Request("OPTIONS", "/a/x"))
    assert response.headers == (("Allow", "DELETE, GET, HEAD, OPTIONS"),)


@pytest.mark.parametrize(
    "target",
    [
        "",
        "a",
        "*",
        "http://host/a",
        "/%ff",
        "/a?x=%ff",
        "/" + "a/" * 40,
        "/a?" + "x=1&" * 80,
        "/a/..",
        "/a/%2e%2e/stats",
        "/./a",
    ],
)
def test_a_target_that_is_no_path(target: str) -> None:
    with pytest.raises(BadRequest):
        Request("GET", target)


@given(st.text(max_size=60))
def test_any_target_is_a_request_or_refused(target: str) -> None:
    try:
        Request("GET", target)
    except BadRequest:
        pass


@given(st.binary(max_size=60))
def test_any_body_is_json_or_refused(body: bytes) -> None:
    try:
        Request("GET", "/", body).json()
    except BadRequest:
        pass


def test_deep_json_is_refused() -> None:
    with pytest.raises(BadRequest):
        Request("GET", "/", b"[" * 100_000).json()


def test_json_of_too_many_values_is_refused_before_it_is_read() -> None:
    """300,000 empty objects in a MiB held the loop for 100 ms."""
    with pytest.raises(BadRequest, match="50000 values"):
        Request("GET", "/", b"[" + b"{}," * 300_000 + b"{}]").json()
    assert len(Request("GET", "/", b"[" + b"1," * 50_000 + b"1]").json()) == 50_001


def test_a_pattern_twice_is_a_mistake(router: Router) -> None:
    with pytest.raises(AssertionError):
        router.add("GET", "/a/{other}", handler("x"))


def test_query_flags() -> None:
    request = Request("GET", "/?a=true&b=TRUE&c=1&d")
    assert [request.flag(name) for name in "abcde"] == [True, True, False, False, False]
    assert request.flag("e", default=True)
