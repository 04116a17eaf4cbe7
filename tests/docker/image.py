"""Starts the image as libraries for tests in containers do, and does what they call and wait for.

    docker/build.sh --tag geminga
    python -m tests.docker.image [--image geminga]        # as root, on Linux, with buildah

Needs no container engine (`tests/docker/container.py`). Each case prints a line; the exit code is 1 if one
fails. The commands and conditions are those of the libraries' own modules for Pulsar.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException

import pulsar

from tests.docker.container import USER, Container, Image, published
from tests.e2e.broker_process import ROOT
from tests.e2e.operators.second_namespace import run, second_namespace
from tests.e2e.waiting import eventually

# testcontainers-java (PulsarContainer.setupCommandAndEnv) and testcontainers-go (modules/pulsar) run this:
APPLY = "/pulsar/bin/apply-config-from-env.py /pulsar/conf/standalone.conf && bin/pulsar standalone"
JAVA_AND_GO = ["/bin/bash", "-c", f"{APPLY} --no-functions-worker -nss"]
CLUSTERS = "/admin/v2/clusters"
TRANSACTION_TOPIC = "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions"
GO_MEMORY = {"PULSAR_MEM": " -Xms512m -Xmx512m -XX:MaxDirectMemorySize=512m"}
# What testcontainers-go runs in the container for its ForListeningPort:
GO_INTERNAL_CHECK = (
    "true && (cat /proc/net/tcp* | awk '{print $2}' | grep -i :%04x || nc -vz -w 1 localhost %d || "
    "/bin/sh -c '</dev/tcp/localhost/%d')"
)
# testcontainers-dotnet waits for a script that it copies, and starts the broker in it:
DOTNET = ["/bin/sh", "-c", "while [ ! -f /testcontainers.sh ]; do sleep 0.1; done; /testcontainers.sh"]
DOTNET_SCRIPT = "#!/bin/bash\nbin/pulsar standalone --no-functions-worker --no-stream-storage"
DAMAGE = "/geminga/delayed/persistent/public/default/t/subscription/s/lose-bucket"
TOKEN = "0123456789abcdef0123"

Case = Callable[["Host"], str]


class Host:
    """The side of the container's clients."""

    def __init__(self, image: Image, enter: list[str]) -> None:
        self.image, self.enter = image, enter

    def start(
        self,
        *command: str,
        read_only: bool = True,
        volume: tuple[int, bool] = (USER, False),
        **environment: str,
    ) -> Container:
        return Container(
            self.image,
            self.enter,
            command,
            environment=environment,
            read_only=read_only,
            volume=volume,
        )


def get(
    port: int, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Status and body; 0 while there is no answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, HTTPException):
        return 0, ""
    finally:
        connection.close()


def wait_for_clusters(container: Container, port: int, cluster: str = "standalone") -> float:
    """The wait of Java's and Go's modules: the whole body is compared. Seconds since the start."""
    expected = (200, f'["{cluster}"]')
    try:
        eventually(lambda: get(port, CLUSTERS) == expected, timeout_s=60)
    except AssertionError:
        raise AssertionError(container.log) from None
    return time.monotonic() - container.began_s


def exchange(binary: int, topic: str) -> None:
    """What the modules' own tests do with a client."""
    client = pulsar.Client(
        f"pulsar://127.0.0.1:{binary}", logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null")
    )
    consumer = client.subscribe(topic, "pulsar-test")
    producer = client.create_producer(topic)
    producer.send(b"hello world")
    message = consumer.receive(30_000)
    assert message.data() == b"hello world"
    consumer.acknowledge(message)
    client.close()


def resident_mb(pid: int) -> float:
    """Resident memory of a process and those below it."""
    with open(f"/proc/{pid}/status") as file:
        kilobytes = int(re.findall(r"VmRSS:\s+(\d+)", file.read())[0])
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return kilobytes / 1024 + sum(resident_mb(int(child)) for child in file.read().split())


def default_command(host: Host) -> str:
    with host.start() as container, published(8080) as web, published(6650) as binary:
        seconds = wait_for_clusters(container, web)
        idle_mb = resident_mb(container.pid)
        health = container.execute(*host.image.config["Healthcheck"]["Test"][1:])
        assert health.returncode == 0, health
        assert container.execute("id", "-u").stdout.strip() == "10000"
        assert container.execute("touch", "/pulsar/x").returncode != 0, "the root is not read-only"
        exchange(binary, "default-command")
        [ready_ms] = re.findall(r'"startup_ms": (\d+)', container.log)
        assert container.stop() == 0
        return (
            f"user 10000, read-only root, healthy; answers {seconds:.2f} s after the start of the container "
            f"(broker: {ready_ms} ms), {idle_mb:.0f} MB resident idle, ends with 0"
        )


def unhealthy(host: Host) -> str:
    with host.start("sleep", "60") as container:
        eventually(lambda: container.execute("true").returncode == 0)
        assert container.execute("/pulsar/bin/healthcheck").returncode == 1
        return "the health check fails where no broker runs"


def java(host: Host) -> str:
    dedup = {"PULSAR_PREFIX_brokerDeduplicationEnabled": "true", "PULSAR_PREFIX_clusterName": "tc-java"}
    with host.start(*JAVA_AND_GO, **dedup) as container, published(8080) as web, published(6650) as binary:
        seconds = wait_for_clusters(container, web, "tc-java")
        exchange(binary, "test_topic")
        status, body = get(web, "/admin/v2/brokers/configuration/runtime")
        assert (status, json.loads(body)["brokerDeduplicationEnabled"]) == (200, "true")
        return f'body ["tc-java"] after {seconds:.2f} s; PULSAR_PREFIX_ applied; message through mapped port'


def java_transactions(host: Host) -> str:
    with (
        host.start(*JAVA_AND_GO, PULSAR_PREFIX_transactionCoordinatorEnabled="true") as container,
        published(8080) as web,
    ):
        wait_for_clusters(container, web)
        status, body = get(web, TRANSACTION_TOPIC)
        assert "transactionCoordinatorEnabled" in container.log
        return f"withTransactions (also Go): not served yet: waits for 200, gets {status} {body.strip()}"


def java_functions(host: Host) -> str:
    with host.start("/bin/bash", "-c", APPLY) as container, published(8080) as web:
        wait_for_clusters(container, web)
        eventually(lambda: "Pulsar Functions are not served" in container.log)
        assert "Function worker service started" not in container.log
        return "withFunctionsWorker (also Go, .NET): not served, and the log says so; all other waits are met"


def go(host: Host) -> str:
    with (
        host.start(*JAVA_AND_GO, **GO_MEMORY) as container,
        published(8080) as web,
        published(6650) as binary,
    ):
        wait_for_clusters(container, web)
        socket.create_connection(("127.0.0.1", binary), timeout=5).close()
        check = container.execute("/bin/sh", "-c", GO_INTERNAL_CHECK % (6650, 6650, 6650))
        assert check.returncode == 0, check
        exchange(binary, "test-topic")
        _, stats = get(web, "/admin/v2/persistent/public/default/test-topic/stats")
        assert "pulsar-test" in json.loads(stats)["subscriptions"]
        assert "PULSAR_MEM: heap and direct memory stand for a memory budget of 960 MB" in container.log
        assert "Successfully updated the policies on namespace public/default" in container.log
        return (
            "clusters, external and internal port check, statistics, PULSAR_MEM; the line of older versions"
        )


def dotnet(host: Host) -> str:
    with (
        host.start(*DOTNET, read_only=False),
        published(8080) as web,
        published(6650) as binary,
    ):
        script = host.image.root / "testcontainers.sh"
        script.write_text(DOTNET_SCRIPT)
        script.chmod(0o755)
        try:
            eventually(lambda: get(web, CLUSTERS)[1], timeout_s=60)
        finally:
            script.unlink()
        assert json.loads(get(web, CLUSTERS)[1])[0] == "standalone"
        exchange(binary, "dotnet")
        return "its entry point and copied script; clusters, message through mapped port"


def log_lines(host: Host) -> str:
    wanted = ("messaging service is ready", "Created namespace public/default")
    with host.start("/bin/sh", "-c", "bin/pulsar standalone -nfw -nss") as container, published(8080) as web:
        for line in wanted:
            eventually(lambda line=line: line in container.log, timeout_s=60)  # type: ignore[misc]
        assert get(web, CLUSTERS)[0] == 200, "the lines come when it is true"
        return "python's and node's generic containers: no module of their own; the usual log lines come"


def tools(host: Host) -> str:
    with host.start() as container, published(8080) as web:
        wait_for_clusters(container, web)
        for command, expected in (
            ("bin/pulsar version", "geminga"),
            ("bin/pulsar-admin clusters list", "standalone"),
            ("bin/pulsar-admin topics create persistent://public/default/tools", ""),
            ("bin/pulsar-client produce tools -m from-the-image", "1 message"),
            ("bin/pulsar-client consume tools -s s -n 1 -p Earliest", "from-the-image"),
            ("bin/pulsar-perf produce perf -m 100 -r 1000", ""),
            ("pulsar-admin topics list public/default", "persistent://public/default/tools"),
        ):
            done = container.execute("/bin/bash", "-c", command)
            assert done.returncode == 0, (command, done)
            assert expected in done.stdout + done.stderr, (command, done)
        return "pulsar version, pulsar-admin, pulsar-client produce and consume, pulsar-perf"


def edited_configuration(host: Host) -> str:
    conf = host.image.root / "pulsar" / "conf" / "standalone.conf"
    before = conf.read_text()
    conf.write_text(before + "clusterName=edited\n")
    try:
        with host.start(*JAVA_AND_GO) as container, published(8080) as web:
            wait_for_clusters(container, web, "edited")
    finally:
        conf.write_text(before)
    return "edits of /pulsar/conf/standalone.conf are read"


def operator_token(host: Host) -> str:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    chaos = ("bin/pulsar", "standalone", "--chaos")
    with host.start(*chaos) as container, published(8080) as web:
        wait_for_clusters(container, web)
        status, body = get(web, DAMAGE, "POST", bearer)
        assert status == 403, body
        assert "GEMINGA_OPERATOR_TOKEN" in body, body
    with host.start(*chaos, GEMINGA_OPERATOR_TOKEN=TOKEN) as container, published(8080) as web:
        wait_for_clusters(container, web)
        wrong = {"Authorization": "Bearer 0123456789abcdef0124"}
        rebound = {**bearer, "Host": "evil.example", "Origin": "http://evil.example"}
        found = [get(web, DAMAGE, "POST", given)[0] for given in ({}, wrong, rebound, bearer)]
        assert found == [401, 401, 403, 404], found
        assert TOKEN not in container.log
    return "through a mapped port: 403 without a token set, 401 missing or wrong, let in with it; pages 403"


def volumes(host: Host) -> str:
    """The first failure of most: a directory that the engine made, or a volume that is mounted read-only."""
    for volume, reason in (
        (
            (0, False),
            "/pulsar/data belongs to user 0, group 0 (mode 755); the broker runs as user 10000, group 0.",
        ),
        ((0, False), "chown -R 10000:0 /pulsar/data"),
        ((USER, True), "/pulsar/data is mounted read-only: remove ':ro'"),
    ):
        with host.start(volume=volume) as container:
            assert container.wait() == 4
            assert reason in container.log, container.log
    return "a volume of another owner, or read-only: exit code 4, both owners and the remedy"


def authentication(host: Host) -> str:
    with host.start(PULSAR_PREFIX_authenticationEnabled="true") as container:
        assert container.wait() == 2
        assert "In a container it listens on all addresses" in container.log, container.log
    return "authenticationEnabled: exit code 2, and the text is true in a container"


def compose_files_of_others(host: Host) -> str:
    """A health check by curl; a shell that writes to the working directory; scripts of Pulsar's image."""
    apply = (
        "bin/apply-config-from-env.py conf/broker.conf && bin/gen-yml-from-env.py conf/functions_worker.yml"
    )
    shell = f"{apply} && bin/pulsar standalone --wipe-data > pulsar.log"
    health = ("curl", "-f", "http://localhost:8080/admin/v2/brokers/health")
    with host.start("sh", "-c", shell, read_only=False) as container, published(8080) as web:
        wait_for_clusters(container, web)
        done = container.execute(*health)
        assert (done.returncode, done.stdout) == (0, "ok"), done
        assert container.execute("rm", "pulsar.log").returncode == 0
    with host.start("sleep", "300", read_only=False) as container, published(8080) as web:
        eventually(lambda: container.execute("true").returncode == 0)
        assert container.execute(*health).returncode == 7
        for word in ("start", "restart", "stop"):
            done = container.execute("bin/pulsar-daemon", word, "standalone")
            assert done.returncode == 0, done
            assert (get(web, CLUSTERS)[0] == 200) is (word != "stop"), done
        container.execute("sh", "-c", "rm logs/*")
    return "curl's health check; --wipe-data, a log in /pulsar; configuration scripts; pulsar-daemon"


def compose_examples(host: Host) -> str:
    """The commands of the example producer and consumer, against the broker that they would find."""
    text = (ROOT / "docker" / "compose.yaml").read_text().replace("//broker:", "//127.0.0.1:")
    lines = re.findall(r"^    command: \[(.*)\]$", text, re.MULTILINE)
    producer, consumer = ([word.strip('"') for word in line.split(", ")] for line in lines)
    with host.start() as container, published(8080) as web:
        wait_for_clusters(container, web)
        for command in (consumer, producer, consumer):
            done = container.execute("timeout", "3", *command)
            assert done.returncode in (0, 124), (command, done)
        _, stats = get(web, "/admin/v2/persistent/public/default/example/stats")
        assert json.loads(stats)["msgInCounter"] > 10, stats
        assert list(json.loads(stats)["subscriptions"]) == ["example"], stats
        return "example producer and consumer of the compose file"


def under_buildah(host: Host) -> str:
    """The same entry point as `buildah run --isolation chroot` starts it: user, environment and all."""
    image = host.image
    command = [*host.enter, "buildah", "run", "--isolation", "chroot", image.working, "--", *JAVA_AND_GO]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        with published(8080) as web, published(6650) as binary:
            eventually(lambda: get(web, CLUSTERS) == (200, '["standalone"]'), timeout_s=60)
            exchange(binary, "under-buildah")
    finally:
        os.killpg(process.pid, 15)
        process.wait()
    return "buildah run --isolation chroot: clusters, message through mapped port"


CASES: tuple[Case, ...] = (
    default_command,
    unhealthy,
    java,
    java_transactions,
    java_functions,
    go,
    dotnet,
    log_lines,
    tools,
    edited_configuration,
    operator_token,
    volumes,
    authentication,
    compose_files_of_others,
    compose_examples,
    under_buildah,
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--image", default="geminga")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(case.__name__ for case in CASES))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if not flags.inside:  # a network of its own: the ports of the machine stay free
        again = [sys.executable, "-m", "tests.docker.image", "--inside", *sys.argv[1:]]
        os.execvp("unshare", ["unshare", "-n", *again])
    run("ip", "link", "set", "lo", "up")
    image, failed = Image(flags.image), 0
    try:
        for case in CASES:
            if flags.cases and case.__name__ not in flags.cases:
                continue
            try:
                with second_namespace() as enter:
                    run(*enter, "ip", "link", "set", "lo", "up")
                    print(f"{case.__name__}: {case(Host(image, enter))}", flush=True)
            except (AssertionError, subprocess.SubprocessError) as error:
                failed += 1
                traceback.print_exc()
                print(f"{case.__name__}: FAILED: {error}", flush=True)
    finally:
        image.remove()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
