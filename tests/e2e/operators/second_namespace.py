"""A broker in one network namespace and those who ask it from another, by the names of a service.

    unshare -rnm python -m tests.e2e.operators.second_namespace DIRECTORY

The command above makes the first namespace (and one for mounts, where /etc/hosts may be replaced); this
program makes the second one, starts the broker, asks, and prints the answers as one line of JSON.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar

from tests.e2e.broker_process import BrokerProcess
from tests.e2e.child_process import running
from tests.e2e.waiting import receive

ADDRESS, OTHER_ADDRESS = "10.77.0.1", "10.77.0.2"
ADVERTISED, SERVICE = "pulsar-broker", "pulsar.messaging.svc"
"""The broker knows the first of these names; the second is one that others gave its address."""
BINARY_PORT, WEB_PORT = 6650, 8080
TOPIC = "persistent://public/default/asked-from-elsewhere"
JAVA = {"User-Agent": "Pulsar-Java-v4.0.7", "Accept": "application/json"}
REQUESTS = {
    "scrape": ("GET", "/metrics/", {"User-Agent": "Prometheus/2.53.0"}),
    "list": ("GET", "/admin/v2/persistent/public/default", JAVA),
    "create": ("PUT", "/admin/v2/persistent/public/default/NAME", {**JAVA, "Content-Type": "text/plain"}),
    "delete": ("DELETE", "/admin/v2/persistent/public/default/NAME", JAVA),
    "page": ("PUT", "/admin/v2/persistent/public/default/evil", {"Origin": "http://evil.com"}),
    "rebound": ("GET", "/admin/v2/persistent/public/default", {"Sec-Fetch-Mode": "cors"}),
}


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@contextmanager
def second_namespace() -> Iterator[list[str]]:
    """Two ends of a cable; gives what a command has to begin with to run at the other one."""
    inside = "import sys; print(flush=True); sys.stdin.read()"
    holder = ["unshare", "-n", sys.executable, "-c", inside]
    with running(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        enter = ["nsenter", "-t", str(process.pid), "-n"]
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "here", "type", "veth", "peer", "name", "there", "netns", str(process.pid))
        run("ip", "address", "add", f"{ADDRESS}/24", "dev", "here")
        run("ip", "link", "set", "here", "up")
        run(*enter, "ip", "address", "add", f"{OTHER_ADDRESS}/24", "dev", "there")
        run(*enter, "ip", "link", "set", "there", "up")
        try:
            yield enter
        finally:
            # The end of the other namespace takes the cable along some time later: the next one has its name.
            run("ip", "link", "delete", "here")


def main(directory: Path) -> None:
    hosts = directory / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{ADDRESS} {ADVERTISED} {SERVICE}\n")
    run("mount", "--bind", str(hosts), "/etc/hosts")
    arguments = ["--bind-address", "0.0.0.0", "--advertised-address", ADVERTISED]
    with second_namespace() as enter:
        ports = (BINARY_PORT, WEB_PORT)
        with BrokerProcess(directory / "data", arguments=arguments, ports=ports):
            run(*enter, sys.executable, "-m", __spec__.name, "--ask")


def ask() -> None:
    """In the second namespace."""
    answers: dict[str, dict[str, int | str]] = {}
    for host in (ADVERTISED, SERVICE):
        answers[host] = {name: status_of(host, *request) for name, request in REQUESTS.items()}
        client = pulsar.Client(
            f"pulsar://{host}:{BINARY_PORT}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        consumer = client.subscribe(TOPIC, host)
        client.create_producer(TOPIC).send(host.encode())
        answers[host]["message"] = receive(consumer).data().decode()
        client.close()
    print(json.dumps(answers))


def status_of(host: str, method: str, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(host, WEB_PORT, timeout=10)
    try:
        connection.request(method, path.replace("NAME", host), headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


if __name__ == "__main__":
    if sys.argv[1] == "--ask":
        ask()
    else:
        main(Path(sys.argv[1]))
