"""A container without an engine: the root of an image, read-only, in its own namespaces, as the image's user.

What an engine would do is done by hand, as root: buildah unpacks the image, `unshare` and `nsenter` make the
namespaces, and a forwarder stands for a published port, so that clients come in by an address that the broker
does not know.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.e2e.child_process import start_child
from tests.e2e.operators.second_namespace import OTHER_ADDRESS

USER, GROUP = 10000, 0
ENTER_ROOT = """
set -e
root=$1 data=$2 how=$3 volume=$4; shift 4
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind "$data" "$root/pulsar/data"
if [ "$volume" = ro ]; then mount -o remount,ro,bind "$root/pulsar/data"; fi
if [ "$how" = ro ]; then mount -o remount,ro,bind "$root"; fi
exec chroot --userspec=10000:0 "$root" "$@"
"""


class Image:
    """An image in buildah's storage, unpacked."""

    def __init__(self, name: str) -> None:
        self.working = output("buildah", "from", "--pull-never", name)
        self.root = Path(output("buildah", "mount", self.working))
        config = json.loads(output("buildah", "inspect", "--type", "container", self.working))
        self.config: dict[str, Any] = config["Docker"]["config"]

    @property
    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for pair in self.config["Env"])

    def remove(self) -> None:
        subprocess.run(["buildah", "rm", self.working], check=True, stdout=subprocess.DEVNULL)


class Container:
    """One command in the image's root. `enter` is the beginning of a command in its network."""

    def __init__(
        self,
        image: Image,
        enter: Sequence[str],
        command: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        read_only: bool = True,
        volume: tuple[int, bool] = (USER, False),
    ) -> None:
        """`volume`: who owns `/pulsar/data`, and whether it is mounted read-only."""
        self._image, self._enter = image, enter
        self._command = [*(image.config["Entrypoint"] or []), *(command or image.config["Cmd"])]
        self._environment = {**image.environment, **(environment or {})}
        self._how = "ro" if read_only else "rw"
        self._owner, volume_is_read_only = volume
        self._volume = "ro" if volume_is_read_only else "rw"
        self._held = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self.log_path = Path()
        self.began_s = 0.0

    def __enter__(self) -> Self:
        data = self._held.enter_context(tempfile.TemporaryDirectory())
        os.chown(data, self._owner, GROUP)
        os.chmod(data, 0o755)
        self.log_path = Path(self._held.enter_context(tempfile.NamedTemporaryFile()).name)
        words = [f"{key}={value}" for key, value in self._environment.items()]
        inside = ["sh", "-c", ENTER_ROOT, "sh", str(self._image.root), data, self._how, self._volume]
        run = [*inside, "env", "-i", "-C", self._image.config["WorkingDir"], *words, *self._command]
        self.began_s = time.monotonic()
        with self.log_path.open("wb") as log:
            self._process = start_child(
                [*self._enter, "unshare", "-m", "--propagation", "private", *run],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._held.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """Both streams, as `docker logs` shows them."""
        return self.log_path.read_text()

    def wait(self) -> int:
        """The exit code of a container that ends by itself."""
        assert self._process is not None
        return self._process.wait(timeout=60)

    def stop(self) -> int:
        """As `docker stop`; the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=10)

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As `docker exec`."""
        words = [f"{key}={value}" for key, value in self._environment.items()]
        inside = ["nsenter", "-t", str(self.pid), "-m", "-n", "-r", "-S", str(USER), "-G", str(GROUP)]
        run = [*inside, "env", "-i", "-C", self._image.config["WorkingDir"], *words, *command]
        return subprocess.run(run, capture_output=True, text=True, check=False, timeout=120)


@contextlib.contextmanager
def published(port: int) -> Iterator[int]:
    """A free port of this side's loopback that leads to a port of the container."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, port), daemon=True).start()
        yield listening.getsockname()[1]


def _accept(listening: socket.socket, port: int) -> None:
    while True:
        try:
            near, _ = listening.accept()
        except OSError:
            return
        try:
            far = socket.create_connection((OTHER_ADDRESS, port), timeout=5)
        except OSError:
            near.close()
            continue
        far.settimeout(None)
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
