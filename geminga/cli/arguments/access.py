"""What to do when the system does not let the broker write to its data directory."""

from __future__ import annotations

import errno
import os
import stat
import sys


def advice(error: OSError, data_dir: str, *, in_container: bool) -> list[str]:
    """The broker's user, the owner of the file or directory, and a command for the operator. `error` says
    that rights are missing or that the file system is read-only.
    """
    path = _existing(error.filename if isinstance(error.filename, str) else data_dir)
    if error.errno == errno.EROFS:
        if in_container:
            return [
                f"{path} is mounted read-only: remove ':ro' from the volume, or 'readOnly' from the mount."
            ]
        return [f"{path} is on a read-only file system: mount it writable, or name another with --data-dir."]
    if sys.platform == "win32":
        return [f"The data directory is {data_dir}; --data-dir names another one."]
    status = os.stat(path)
    mode = stat.S_IMODE(status.st_mode)
    uid, gid = os.geteuid(), os.getegid()
    lines = [
        f"{path} belongs to user {status.st_uid}, group {status.st_gid} (mode {mode:o}); the broker runs as "
        f"user {uid}, group {gid}."
    ]
    if in_container:
        lines.append(
            f"Run 'chown -R {uid}:{gid} DIRECTORY' where the volume's directory is (for a named volume: "
            f"docker run --rm --user 0 -v VOLUME:{data_dir} IMAGE chown -R {uid}:{gid} {data_dir}), or start "
            f"the container as its owner: docker run --user {status.st_uid}:{status.st_gid}."
        )
    elif os.path.exists(data_dir):
        wanted = data_dir if f"{path}/".startswith(f"{data_dir}/") else path
        lines.append(
            f"Run 'sudo chown -R {uid}:{gid} {wanted}', start the broker as user {status.st_uid}, or name "
            "another directory with --data-dir."
        )
    else:
        lines.append(
            f"Run 'sudo install -d -o {uid} -g {gid} {data_dir}', or name another directory with --data-dir."
        )
    return lines


def _existing(path: str) -> str:
    """The path, or the nearest one above it that exists."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path
