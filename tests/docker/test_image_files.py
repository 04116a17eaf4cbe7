"""The files of the image by themselves; `python -m tests.docker.image` starts the whole of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.broker_process import ROOT, StandaloneProcess
from tests.e2e.waiting import eventually

DOCKER = ROOT / "docker"
APPLY = DOCKER / "bin" / "apply-config-from-env.py"
PULSAR_WAITS_FOR = (
    "messaging service is ready",
    "Created namespace public/default",
    "Successfully updated the policies on namespace public/default",
)


def test_every_file_that_is_copied_exists_and_is_in_the_build_context() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    sources = [name for line in copied for name in line.split()]
    admitted = (DOCKER / "Dockerfile.dockerignore").read_text().split()
    assert {"geminga", "docker/bin", "locks/run.txt", "locks/build.txt"} <= set(sources)
    for name in sources:
        assert (ROOT / name).exists(), name
        assert {f"!{name}", f"!{name.partition('/')[0]}"} & set(admitted), name


def test_no_probe_takes_a_broker_with_a_full_disk_from_its_consumers() -> None:
    """`/admin/v2/brokers/health` is 503 then."""
    probes = (DOCKER / "kubernetes" / "geminga.yaml").read_text()
    assert set(re.findall(r"path: (/admin\S+),", probes)) == {"/admin/v2/brokers/ready"}
    assert "GET /admin/v2/brokers/ready " in (DOCKER / "bin" / "healthcheck").read_text()
    [of_image] = re.findall(
        r'^HEALTHCHECK .* CMD \["(.*)"\]$', (DOCKER / "Dockerfile").read_text(), re.MULTILINE
    )
    # An image in OCI's format has no health check of its own; the one that is built here is in Docker's.
    build = (DOCKER / "build.sh").read_text()
    assert " --format docker " in build
    assert '"docker-archive:$out' in build
    assert f"    healthcheck:\n      test: [CMD, {of_image}]\n" in (DOCKER / "compose.yaml").read_text()


@pytest.mark.parametrize("script", sorted((DOCKER / "bin").iterdir()), ids=lambda path: path.name)
def test_scripts_are_executable_and_shells_read_them(script: Path) -> None:
    assert os.access(script, os.X_OK)
    [shell] = re.findall(r"^#!(?:/usr)?/bin/(?:env )?(\w+)", script.read_text())
    if shell != "python3":
        subprocess.run([shell, "-n", script], check=True)


@pytest.mark.parametrize(
    "script", [APPLY, APPLY.with_name("gen-yml-from-env.py")], ids=lambda path: path.name
)
def test_applying_the_environment_writes_nothing(tmp_path: Path, script: Path) -> None:
    conf = tmp_path / "standalone.conf"
    conf.write_text("clusterName=a\n")
    conf.chmod(0o444)
    run = [sys.executable, str(script)]
    environment = {**os.environ, "PULSAR_PREFIX_clusterName": "b"}
    assert subprocess.run([*run, str(conf)], env=environment, check=False).returncode == 0
    assert conf.read_text() == "clusterName=a\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["standalone.conf"]
    missing = subprocess.run([*run, "no.conf"], capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stderr) == (1, "no.conf: No such file or directory\n")


def test_the_daemon_starts_stops_and_restarts(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    daemon, launcher = tmp_path / "bin" / "pulsar-daemon", tmp_path / "bin" / "pulsar"
    shutil.copy(DOCKER / "bin" / "pulsar-daemon", daemon)
    words = f'-P -m geminga pulsar "$@" --data-dir {tmp_path}/data --bind-address 127.0.0.1'
    words += " --port 0 --web-port 0"
    launcher.write_text(f"#!/bin/sh\nexec {sys.executable} {words}\n")
    launcher.chmod(0o755)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [daemon, *arguments],
            env={**os.environ, "GEMINGA_CONTAINER": "1"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def pid() -> int:
        return int((tmp_path / "bin" / "pulsar-standalone.pid").read_text())

    assert run("start", "broker").returncode == 1
    assert run("start").stdout.startswith("Usage: ")
    refused = run("start", "standalone", "--wrong")
    assert (refused.returncode, "--wrong" in refused.stdout) == (1, True)
    started = run("start", "standalone", "-nfw", "-nss")
    try:
        assert started.returncode == 0, started
        first = pid()
        assert (
            run("start", "standalone").stdout == f"standalone running as process {first}.  Stop it first.\n"
        )
        assert run("restart", "standalone", "-nfw").returncode == 0
        assert pid() != first
    finally:
        stopped = run("stop", "standalone")
    assert stopped.stdout == "stopping standalone\nShutdown completed.\n"
    assert run("stop", "standalone").stdout == "no standalone to stop\n"
    [log] = (tmp_path / "logs").glob("*.out")
    assert '"event": "ready"' in log.read_text()


def health_check(port: int) -> int:
    environment = {
        "PATH": os.environ["PATH"],
        "webServicePort": "1",
        "PULSAR_PREFIX_webServicePort": str(port),
    }
    done = subprocess.run(
        [DOCKER / "bin" / "healthcheck"], env=environment, capture_output=True, check=False, timeout=30
    )
    return done.returncode


@pytest.mark.parametrize("wants_functions", [True, False])
def test_the_broker_of_the_image_is_healthy_and_says_what_tests_wait_for(
    tmp_path: Path, wants_functions: bool
) -> None:
    arguments = ["--conf", str(DOCKER / "conf" / "standalone.conf"), "--data-dir", str(tmp_path / "data")]
    arguments += ["--bind-address", "127.0.0.1", "--port", "0", "--web-port", "0"]
    arguments += [] if wants_functions else ["-nfw", "-nss"]
    log = tmp_path / "log"
    with StandaloneProcess(
        *arguments, log_path=log, environment={"GEMINGA_CONTAINER": "1", "PULSAR_MEM": "-Xmx512m"}
    ) as broker:
        port = int(broker.endpoints.web_url.rpartition(":")[2])
        assert health_check(port) == 0
        for line in PULSAR_WAITS_FOR:
            eventually(lambda line=line: line in log.read_text())  # type: ignore[misc]
        assert "memory budget of 448 MB" in log.read_text()
        assert ("Functions are not served" in log.read_text()) is wants_functions
        assert "Function worker service started" not in log.read_text()
    assert health_check(port) == 1, "nothing listens"


def test_outside_the_image_the_log_has_none_of_these_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = ["--data-dir", str(tmp_path / "data"), "--port", "0", "--web-port", "0"]
    with StandaloneProcess(*arguments, log_path=log):
        pass
    assert not [line for line in PULSAR_WAITS_FOR if line in log.read_text()]
