"""The OpenAPI document follows from the router."""

from __future__ import annotations

from typing import Any, cast

from geminga.admin.api.openapi import document
from geminga.admin.api.table import router_for
from geminga.admin.view.broker import BrokerView


class NoView:
    """The routes ask nothing of their parts while they are put together."""

    def __getattr__(self, name: str) -> Any:
        return self


ROUTER = router_for(cast("BrokerView", NoView()))
DOCUMENT = document(ROUTER.routes(), "9.9")


def test_every_route_is_in_the_document_with_its_parameters() -> None:
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == {(route.method, route.pattern) for route in ROUTER.routes()}
    retention = DOCUMENT["paths"]["/admin/v2/namespaces/{tenant}/{namespace}/retention"]["post"]
    assert [parameter["name"] for parameter in retention["parameters"]] == ["tenant", "namespace"]


def test_operations_have_names_of_their_own() -> None:
    names = [
        operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()
    ]
    assert len(set(names)) == len(names)


def test_the_body_of_a_policy_is_the_schema_of_its_type() -> None:
    path = DOCUMENT["paths"]["/admin/v2/persistent/{tenant}/{namespace}/{topic}/retention"]
    schema = path["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = schema["$ref"].rpartition("/")[2]
    reference = DOCUMENT["components"]["schemas"][name]["$ref"].rpartition("/")[2]
    members = DOCUMENT["components"]["schemas"][reference]["properties"]
    assert members.keys() == {"retentionTimeInMinutes", "retentionSizeInMB"}
    assert "requestBody" not in path["get"]


def test_a_policy_without_effect_says_so() -> None:
    root = "/admin/v2/namespaces/{tenant}/{namespace}"
    assert "no effect" in DOCUMENT["paths"][f"{root}/offloadThreshold"]["put"]["description"]
    assert "description" not in DOCUMENT["paths"][f"{root}/messageTTL"]["post"]
