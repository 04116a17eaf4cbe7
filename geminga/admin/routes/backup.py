"""`POST /geminga/backup`: a consistent copy of the broker's data, made by the broker itself."""

from __future__ import annotations

import ipaddress

from geminga.admin.http.router import BadRequest, Request, Response, Router, json_response
from geminga.admin.view.process import ProcessView
from geminga.errors import NotAllowed


class BackupRoutes:
    def __init__(self, process: ProcessView) -> None:
        self._process = process

    def add_to(self, router: Router) -> None:
        router.add("POST", "/geminga/backup", self.backup)

    async def backup(self, request: Request) -> Response:
        """Body: {"directory": absolute path}. From the broker's own machine only: the caller names a place
        among the broker's files. The answer comes when the copy is there.
        """
        if not ipaddress.ip_address(request.local_host.partition("%")[0]).is_loopback:
            raise NotAllowed(
                "a backup is written on the broker's machine, so it is asked for there: "
                "geminga backup DIR --url http://127.0.0.1:PORT"
            )
        body = request.json()
        directory = body.get("directory") if isinstance(body, dict) else None
        if not isinstance(directory, str) or not directory or "\0" in directory:
            raise BadRequest('expected {"directory": an absolute path}')
        return json_response(await self._process.backup(directory))
