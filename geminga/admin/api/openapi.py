"""An OpenAPI 3.1 document of all routes, made from the router: paths, parameters, bodies, what they do. Pure.

What a route does is the first sentence of its handler's docstring; the body of a policy is the schema of its
type. Nothing is written down twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import msgspec

from geminga.admin.http.router import Handler, Route
from geminga.broker.policies.endpoint import Endpoint, Policy

TAGS_FROM: Final = 2
"""In a path of Pulsar's the third part names the kind of object: /admin/v2/namespaces."""
REASON: Final = {"type": "object", "properties": {"reason": {"type": "string"}}}
WITHOUT_EFFECT: Final = "It is stored and shown, and has no effect in this broker."


def document(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """The document as JSON is made of it."""
    paths: dict[str, dict[str, Any]] = {}
    kinds: dict[str, Any] = {}
    for route in routes:
        policy, endpoint = _policy_of(route.handler)
        if policy is not None:
            kinds[policy.name] = policy.kind
        paths.setdefault(route.pattern, {})[route.method.lower()] = _operation(route, policy, endpoint)
    bodies, components = msgspec.json.schema_components(
        kinds.values(), ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Geminga",
            "version": version,
            "description": "The admin API of Apache Pulsar 4.0, as this broker serves it; what is below "
            "/geminga is its own. Errors have a JSON body with a `reason`.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {
                "Reason": REASON,
                **{_body_name(name): schema for name, schema in zip(kinds, bodies, strict=True)},
                **components,
            }
        },
    }


def _policy_of(handler: Handler) -> tuple[Policy, Endpoint] | tuple[None, None]:
    """A policy's routes are one handler with the policy and its endpoint bound to it."""
    arguments = handler.args if isinstance(handler, partial) else ()
    if len(arguments) == 2 and isinstance(arguments[0], Policy) and isinstance(arguments[1], Endpoint):
        return arguments[0], arguments[1]
    return None, None


def _operation(route: Route, policy: Policy | None, endpoint: Endpoint | None) -> dict[str, Any]:
    parts = route.pattern.strip("/").split("/")
    found: dict[str, Any] = {
        "operationId": _identifier(route),
        "tags": [
            parts[TAGS_FROM] if parts[:1] == ["admin"] and len(parts) > TAGS_FROM else parts[0] or "web"
        ],
        "responses": {"default": {"description": "the answer, or an error with its reason"}},
    }
    parameters = [part[1:-1] for part in parts if part.startswith("{")]
    if parameters:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in parameters
        ]
    if policy is None or endpoint is None:
        if summary := _summary(route.handler):
            found["summary"] = summary
        return found
    found["summary"] = f"The policy {endpoint.path}."
    if not policy.acted_upon:
        found["description"] = WITHOUT_EFFECT
    if route.method == endpoint.method and endpoint.fixed is None:
        schema = {"$ref": f"#/components/schemas/{_body_name(policy.name)}"}
        found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return found


def _summary(handler: Handler) -> str:
    function = handler.func if isinstance(handler, partial) else handler
    text = " ".join((function.__doc__ or "").split())
    return text.split(". ")[0].rstrip(".") if text else function.__name__.strip("_").replace("_", " ")


def _identifier(route: Route) -> str:
    words = [word for word in route.pattern.replace("{", "").replace("}", "").split("/") if word]
    return "_".join([route.method.lower(), *words]).replace("-", "_").replace(".", "_")


def _body_name(policy: str) -> str:
    return f"policy_{policy}"
