"""`/geminga/snapshots`: save the broker's state as files, restore it, or empty it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from geminga.admin.http.router import BadRequest, Request, Response, Router, json_response
from geminga.admin.routes.operator.operator_gate import OperatorGate
from geminga.admin.view.process import ProcessView

ROOT = "/geminga/snapshots"


class SnapshotRoutes:
    def __init__(self, process: ProcessView) -> None:
        self._process = process
        self._gate = OperatorGate(process)

    def add_to(self, router: Router) -> None:
        router.add("GET", ROOT, self.report)
        router.add("POST", f"{ROOT}/save", self.save)
        router.add("POST", f"{ROOT}/restore", self.restore)
        router.add("POST", f"{ROOT}/reset", self.reset)

    async def report(self, request: Request) -> Response:
        """{"last": null, or {"what", "source", "outcome": "done" or "undone", "reason", "seconds"}}."""
        self._gate.check(request)
        return json_response(self._process.snapshots().report())

    async def save(self, request: Request) -> Response:
        """Body: {"directory": absolute path on the broker's machine}. The answer comes when all is there."""
        self._gate.check(request)
        return json_response(await self._process.snapshots().save(_directory(request)))

    async def restore(self, request: Request) -> Response:
        """Body as for a save. The answer, 303, comes when the snapshot is copied and checked; a GET of its
        `Location` is answered once the broker serves again.
        """
        self._gate.check(request)
        await self._process.snapshots().prepare_restore(_directory(request))
        return self._under_way()

    async def reset(self, request: Request) -> Response:
        """Remove all data. The answer is as for a restore."""
        self._gate.check(request)
        await self._process.snapshots().prepare_reset()
        return self._under_way()

    def _under_way(self) -> Response:
        headers = (("Location", ROOT), ("Connection", "close"))
        return Response(303, content_type="application/json", headers=headers, parts=self._parts())

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        """The body; the service ends when it is sent."""
        try:
            yield msgspec.json.encode({"location": ROOT})
        finally:
            self._process.snapshots().proceed()


def _directory(request: Request) -> str:
    body = request.json()
    directory = body.get("directory") if isinstance(body, dict) else None
    if not isinstance(directory, str) or not directory or "\0" in directory:
        raise BadRequest('expected {"directory": an absolute path}')
    return directory
