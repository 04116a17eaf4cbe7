"""`/geminga/faults`: the rules by which faults are injected into this broker (`--chaos`)."""

from __future__ import annotations

from geminga.admin.http.router import Request, Response, Router, json_response
from geminga.admin.routes.operator.operator_gate import OperatorGate
from geminga.admin.view.faults import FaultsView
from geminga.admin.view.process import ProcessView

ROOT = "/geminga/faults"


class FaultRoutes:
    def __init__(self, faults: FaultsView, process: ProcessView) -> None:
        self._faults = faults
        self._gate = OperatorGate(process)

    def add_to(self, router: Router) -> None:
        router.add("GET", ROOT, self.rules)
        router.add("POST", ROOT, self.set)
        router.add("DELETE", ROOT, self.clear_all)
        router.add("GET", f"{ROOT}/places", self.places)
        router.add("GET", f"{ROOT}/rules/{{id}}", self.rule)
        router.add("DELETE", f"{ROOT}/rules/{{id}}", self.clear)

    async def rules(self, request: Request) -> Response:
        """The rules that are in force, and those that have ended, in the order in which they were set."""
        self._gate.check(request)
        return json_response(self._faults.rules())

    async def set(self, request: Request) -> Response:
        """Put a rule in force. Body: {"place", "kind", and the fields that this kind takes}."""
        self._gate.check(request)
        self._faults.check_enabled()
        from geminga.chaos.rules.rule import parse_rule  # most brokers never need it

        return json_response(await self._faults.set(parse_rule(request.json())))

    async def rule(self, request: Request) -> Response:
        """One rule, and how often it was hit."""
        self._gate.check(request)
        return json_response(self._faults.get(request.parameters["id"]))

    async def clear(self, request: Request) -> Response:
        """End a rule, and remove it from the list."""
        self._gate.check(request)
        return json_response(self._faults.clear(request.parameters["id"]))

    async def clear_all(self, request: Request) -> Response:
        """End all rules."""
        self._gate.check(request)
        return json_response(self._faults.clear_all())

    async def places(self, request: Request) -> Response:
        """The places, their kinds of faults, and the fields that a rule of each kind takes."""
        self._gate.check(request)
        from geminga.chaos.rules.can_hit import REQUESTS, operations_of
        from geminga.chaos.rules.places import OPERATIONS, PLACES, POINTS
        from geminga.chaos.rules.rule import json_names

        return json_response(
            {
                place: {
                    "operations": OPERATIONS.get(place, ()),
                    "points": POINTS if place == "process" else {},
                    "kinds": {
                        name: {
                            "text": kind.text,
                            "needs": json_names(kind.needs),
                            "takes": json_names(kind.takes | kind.when),
                            "operations": operations_of(place, name) if "operation" in kind.takes else (),
                            "commands": REQUESTS if (place, name) == ("wire", "error") else (),
                        }
                        for name, kind in kinds.items()
                    },
                }
                for place, kinds in PLACES.items()
            }
        )
