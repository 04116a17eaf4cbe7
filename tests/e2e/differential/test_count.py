"""What the count calls working, left out, and a client's route."""

from __future__ import annotations

from tests.e2e.differential.cases import pairs
from tests.e2e.differential.count import client_pairs, fates, left_out, route_of
from tests.e2e.differential.play import Asked


def answered(*statuses: int) -> dict[str, list[Asked]]:
    return {"/p": [Asked("PUT", "/p", None, status, "", "") for status in statuses]}


def test_a_pair_works_if_all_that_succeeds_there_succeeds_here() -> None:
    (fate,) = fates(answered(204, 404, 204, 500), answered(200, 412, 404, 400)).values()
    assert (fate.succeeded, len(fate.failed)) == (2, 1)
    assert [told[:21] for told in fate.unlike] == [
        "204 there, 200 here: ",
        "404 there, 412 here: ",
        "204 there, 404 here: ",
    ], "an error of the real broker's own may be anything here but that"


def test_what_is_left_out_needs_what_is_missing() -> None:
    topic = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
    assert left_out(f"{topic}/compaction") == "compaction"
    assert left_out(f"{topic}/compactionThreshold") is None
    assert left_out("/admin/v2/non-persistent/{tenant}/{namespace}") == "non-persistent topics"
    assert left_out("/admin/v3/transactions/slowTransactions/{timeout}") == "transactions"


def test_each_pair_of_the_clients_has_a_route_of_the_real_broker_but_one() -> None:
    routes = pairs()
    without = [pair for pair in client_pairs() if route_of(pair, routes) is None]
    topic = "/admin/v2/persistent/{tenant}/{ns}/{topic}"
    assert without == [("DELETE", f"{topic}/schemaValidationEnforced")]
    assert route_of(("GET", "/lookup/v2/topic/persistent/{tenant}/{ns}/{topic}"), routes) == (
        "GET",
        "/lookup/v2/topic/{topic-domain}/{tenant}/{namespace}/{topic}",
    )
    assert len(client_pairs()) == 157
