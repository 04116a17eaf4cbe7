"""`POST /geminga/backup`: a consistent copy of the broker's data, made by the broker itself."""

from __future__ import annotations

from geminga.admin.http.router import BadRequest, Request, Response, Router, json_response
from geminga.admin.routes.operator.operator_gate import OperatorGate
from geminga.admin.view.process import ProcessView


class BackupRoutes:
    def __init__(self, process: ProcessView) -> None:
        self._process = process
        self._gate = OperatorGate(process)

    def add_to(self, router: Router) -> None:
        router.add("POST", "/geminga/backup", self.backup)

    async def backup(self, request: Request) -> Response:
        """Body: {"directory": absolute path}. For an operator only: the caller names a place among
        the broker's files. The answer comes when the copy is there.
        """
        self._gate.check(request)
        body = request.json()
        directory = body.get("directory") if isinstance(body, dict) else None
        if not isinstance(directory, str) or not directory or "\0" in directory:
            raise BadRequest('expected {"directory": an absolute path}')
        return json_response(await self._process.backup(directory))
