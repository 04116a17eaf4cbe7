"""Pictures that commands of the pipeline write. They need matplotlib (`geminga[plot]`)."""

from __future__ import annotations

import os


def check_picture(path: str) -> None:
    """Before the work, which may take minutes. Raises `StorageError`."""
    import matplotlib  # noqa: F401

    from geminga.errors import StorageError

    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        raise StorageError(f"--png {path}: there is no directory {directory}")
    if os.path.isdir(path) or not os.access(directory, os.W_OK):
        raise StorageError(f"--png {path}: a file of that name cannot be written")
