"""Which requests may do what only an operator of the broker may: those from its own machine, and those that
bring the operator's token.
"""

from __future__ import annotations

import ipaddress

from geminga.admin.http.router import Request
from geminga.admin.view.process import ProcessView
from geminga.errors import OperatorOnly, OperatorTokenWrong


class OperatorGate:
    """Asked by each route that breaks things, or names files of the broker's machine."""

    def __init__(self, process: ProcessView) -> None:
        self._process = process

    def check(self, request: Request) -> None:
        """Return if the request may go on. Raises `OperatorOnly`, `OperatorTokenWrong`."""
        if _is_loopback(request.local_host):
            return
        token = self._process.operator_token
        if not token.is_set:
            raise OperatorOnly(
                "this is only for the broker's own machine: ask at http://127.0.0.1:PORT there, or start the "
                "broker with GEMINGA_OPERATOR_TOKEN set and send the token as 'Authorization: Bearer TOKEN'"
            )
        if not token.is_in(request.authorization):
            missing = "is not the operator's" if request.authorization else "is missing"
            raise OperatorTokenWrong(
                f"the bearer token {missing}: send 'Authorization: Bearer TOKEN' with the token that the "
                "broker was started with; the geminga command takes it from GEMINGA_OPERATOR_TOKEN"
            )


def _is_loopback(local_host: str) -> bool:
    """Whether only this machine reaches the address at which a request came in."""
    if local_host == "localhost":  # a request that came in over no socket
        return True
    return ipaddress.ip_address(local_host.partition("%")[0]).is_loopback
