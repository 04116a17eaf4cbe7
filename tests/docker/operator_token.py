"""A broker with `--chaos` in a network namespace of its own, asked over loopback and over another address.

    unshare -rn python -m tests.docker.operator_token DIRECTORY [TOKEN]

Prints the answers as one line of JSON: {case: [status, reason]}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.e2e.broker_process import BrokerProcess

ADDRESS = "10.77.0.9"
ROUTE = "/geminga/delayed/persistent/public/default/t/subscription/s/lose-bucket"
FAULTS = "/geminga/faults"
OPERATORS = tuple(f"/geminga/{name}" for name in ("backup", "clock", "events", "faults", "snapshots"))
SNAPSHOTS = ("/geminga/snapshots/save", "/geminga/snapshots/restore", "/geminga/snapshots/reset")
REBOUND = {"Host": "evil.example", "Origin": "http://evil.example"}


def ask(host: str, port: int, path: str, headers: dict[str, str], body: object = None) -> list[Any]:
    connection = HTTPConnection(host, port, timeout=30)
    method = "GET" if path.startswith("/admin") else "POST"
    connection.request(method, path, json.dumps(body or {}), headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    challenge = answer.getheader("WWW-Authenticate")
    connection.close()
    return [answer.status, text, *([challenge] if challenge else [])]


def refused_elsewhere(port: int) -> list[Any]:
    """The routes for operators that answer another host without a token."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/geminga/openapi.json")
    paths = json.loads(connection.getresponse().read())["paths"]
    connection.close()
    found, asked = [], 0
    for path, methods in paths.items():
        if path.startswith(OPERATORS):
            for method in methods:
                connection = HTTPConnection(ADDRESS, port, timeout=30)
                connection.request(method.upper(), path.replace("{id}", "f1"), "{}")
                status = connection.getresponse().status
                connection.close()
                asked += 1
                if status not in {401, 403}:
                    found.append([method, path, status])
    assert asked > 12, asked
    return found


def command(port: int, *arguments: str, **environment: str) -> list[Any]:
    url = f"http://{ADDRESS}:{port}"
    run = subprocess.run(
        [sys.executable, "-m", "geminga", "delayed", "lose-bucket", "t", "-s", "s", "--url", url, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return [run.returncode, run.stderr.strip()]


def main(directory: Path, token: str) -> dict[str, Any]:
    for words in ("link set lo up", f"address add {ADDRESS}/32 dev lo"):
        subprocess.run(["ip", *words.split()], check=True)
    os.environ.pop("GEMINGA_OPERATOR_TOKEN", None)
    if token:
        os.environ["GEMINGA_OPERATOR_TOKEN"] = token
    arguments = ["--chaos", "--bind-address", "0.0.0.0", "--log-level", "debug"]
    with BrokerProcess(directory / "data", arguments=arguments) as broker:
        port = int(broker.endpoints.web_url.rpartition(":")[2])
        os.environ.pop("GEMINGA_OPERATOR_TOKEN", None)
        right, wrong = {"Authorization": f"Bearer {token}"}, {"Authorization": "Bearer wrong-wrong-wrong"}
        (directory / "token").write_text(f"{token}\n")
        answers: dict[str, Any] = {
            "loopback": ask("127.0.0.1", port, ROUTE, {}),
            "loopback, wrong": ask("127.0.0.1", port, ROUTE, wrong),
            "elsewhere": ask(ADDRESS, port, ROUTE, {}),
            "elsewhere, wrong": ask(ADDRESS, port, ROUTE, wrong),
            "elsewhere, empty": ask(ADDRESS, port, ROUTE, {"Authorization": "Bearer "}),
            "elsewhere, right": ask(ADDRESS, port, ROUTE, right),
            "faults, loopback": ask("127.0.0.1", port, FAULTS, {}),
            "faults, elsewhere": ask(ADDRESS, port, FAULTS, wrong),
            "faults, right": ask(ADDRESS, port, FAULTS, right),
            "snapshots, elsewhere": [ask(ADDRESS, port, route, wrong)[0] for route in SNAPSHOTS],
            "snapshots, right": [ask(ADDRESS, port, route, right)[0] for route in SNAPSHOTS[:2]],
            "elsewhere, backup": ask(
                ADDRESS, port, "/geminga/backup", right, {"directory": str(directory / "copy")}
            ),
            "all of the operator's, elsewhere": refused_elsewhere(port),
            "page, right": ask(ADDRESS, port, ROUTE, {**right, **REBOUND}),
            "page on loopback": ask("127.0.0.1", port, ROUTE, REBOUND),
            "command": command(port),
            "command, variable": command(port, GEMINGA_OPERATOR_TOKEN=token),
            "command, file": command(port, "--operator-token-file", str(directory / "token")),
            "settings": ask(ADDRESS, port, "/admin/v2/brokers/configuration/runtime", {})[1],
        }
    return answers


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")))
