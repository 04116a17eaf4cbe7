"""What to do when the system does not let the broker write to its data directory, or a command read it."""

from __future__ import annotations

import errno
import os
import shlex
import stat
import sys

REFUSALS = (errno.EACCES, errno.EPERM)


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
    uid, gid = os.geteuid(), os.getegid()
    if (closed := _closed_to_its_owner(path)) is not None:
        return [_owner_line(closed, "the broker"), _mode_line(closed, data_dir, in_container=in_container)]
    status = os.stat(path)
    lines = [_owner_line(path, "the broker")]
    if in_container:
        lines.append(
            f"Run 'chown -R {uid}:{gid} DIRECTORY' where the volume's directory is (for a named volume: "
            f"docker run --rm --user 0 -v VOLUME:{data_dir} IMAGE chown -R {uid}:{gid} {data_dir}), or start "
            f"the container as its owner: docker run --user {status.st_uid}:{status.st_gid}."
        )
    elif os.path.exists(data_dir):
        wanted = data_dir if f"{path}/".startswith(f"{data_dir}/") else path
        lines.append(
            f"Run 'sudo chown -R {uid}:{gid} {shlex.quote(wanted)}', start the broker as user "
            f"{status.st_uid}, or name another directory with --data-dir."
        )
    else:
        lines.append(
            f"Run 'sudo install -d -o {uid} -g {gid} {shlex.quote(data_dir)}', or name another directory "
            "with --data-dir."
        )
    return lines


def reading_advice(error: BaseException | None) -> list[str]:
    """The same for a command that only reads. Empty if `error` says something else than missing rights."""
    if sys.platform == "win32" or not isinstance(error, OSError) or error.errno not in REFUSALS:
        return []
    path = _existing(os.path.abspath(error.filename))
    if (closed := _closed_to_its_owner(path)) is not None:
        return [_owner_line(closed, "this command"), _mode_line(closed, closed)]
    return [_owner_line(path, "this command"), f"Run it as user {os.stat(path).st_uid} or as root."]


def _owner_line(path: str, program: str) -> str:
    status = os.stat(path)
    return (
        f"{path} belongs to user {status.st_uid}, group {status.st_gid} (mode "
        f"{stat.S_IMODE(status.st_mode):o}); {program} runs as user {os.geteuid()}, group {os.getegid()}."
    )


def _closed_to_its_owner(path: str) -> str | None:
    """The path or the directory that it is in, if it is this user's own and its mode keeps this user out."""
    for place in dict.fromkeys((path, os.path.dirname(path))):
        status = os.stat(place)
        wanted = stat.S_IRWXU if stat.S_ISDIR(status.st_mode) else stat.S_IRUSR | stat.S_IWUSR
        if status.st_uid == os.geteuid() and status.st_mode & wanted != wanted:
            return place
    return None


def _mode_line(path: str, data_dir: str, *, in_container: bool = False) -> str:
    if not f"{path}/".startswith(f"{data_dir}/"):
        return f"Run 'chmod u+rwX {shlex.quote(path)}'."  # what else is in there is not ours
    if in_container:
        return "Run 'chmod -R u+rwX DIRECTORY' where the volume's directory is."
    return f"Run 'chmod -R u+rwX {shlex.quote(data_dir)}'."


def _existing(path: str) -> str:
    """The path, or the nearest one above it that exists."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path
