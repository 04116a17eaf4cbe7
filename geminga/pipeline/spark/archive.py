"""What workers need and their machines lack: this package and what it imports, in one archive.

Spark unpacks an archive (`spark.archives`) in the working directory of each executor. Python modules of it
come with PYTHONPATH, so that the workers' own interpreter serves, if it is of this minor version and made for
this system: an interpreter cannot be moved to another machine, its modules can. Spark's own modules are left
out, since the executors bring theirs along, and so is the Java runtime.

The bytes depend on the contents and versions alone: names in order, one time for all, nothing that an
installer wrote about paths of this machine.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

import geminga
from geminga.errors import StorageError
from geminga.pipeline.errors import PipelineError

FOLDER: Final = "geminga-workers"
"""Where Spark unpacks the archive, in the working directory of an executor."""
ROOTS: Final = (
    "fastavro",
    "fastcrc",
    "h11",
    "msgspec",
    "numpy",
    "pandas",
    "prometheus-client",
    "protobuf",
    "pyarrow",
    "pyroaring",
    "rocksdict",
    "trio",
)
"""What pyproject.toml names for the package and for its extra `spark`, but for Spark and Java."""
IF_INSTALLED: Final = ("cryptography",)
"""It reads encrypted messages."""
_NAME: Final = re.compile(r"[\w.-]+")
_SEPARATORS: Final = re.compile(r"[-_.]+")
_OF_DIST_INFO: Final = ("METADATA", "entry_points.txt")
_LEFT_OUT: Final = ("pandas/tests/", "pyarrow/include/", "pyarrow/tests/")
_SUFFIXES_LEFT_OUT: Final = (".pyc", ".pth", ".pyi", ".pxd", ".pyx", ".pxi")
_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest of the ZIP format."""
_LEVEL: Final = 1
"""A third in three CPU seconds; more would take a tenth off, in five times as long."""


def archive_name() -> str:
    """With the Python and the system that it is for."""
    system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"geminga-{geminga.__version__}-cp{sys.version_info[0]}{sys.version_info[1]}-{system}.zip"


def write_archive(path: Path) -> int:
    """Its size in bytes. The file is there under its name when it is whole.

    Raises `PipelineError` if something that belongs into it is not installed as files, and `StorageError`.
    """
    files = _of_distributions() | _of_package()
    part = path.with_name(path.name + ".part")
    try:
        with zipfile.ZipFile(part, "w") as archive:
            for name, at in sorted(files.items()):
                entry = zipfile.ZipInfo(name, _TIME)
                entry.external_attr = 0o644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, at.read_bytes(), compresslevel=_LEVEL)
        os.replace(part, path)
        return os.path.getsize(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StorageError(
            f"the archive cannot be written: {error}; free some space, or choose another path"
        ) from error


def python_name() -> str:
    """What workers call their Python if nothing else is said: a name with its minor version."""
    return f"python{sys.version_info[0]}.{sys.version_info[1]}"


def usage_of(path: str) -> str:
    """The line for each way to start a program on a cluster."""
    name, python = os.path.basename(path), python_name()
    return f"""\
In a program or a notebook, on any master (spark://, k8s://, yarn); without archive it makes one itself:
  make_session(master="spark://HOST:7077", archive="{path}")
In a session that runs already, before its first job in Python:
  from geminga.pipeline.spark import ship; ship(spark, "{path}")
spark-submit, where the driver is a Python that has this package too:
  PYSPARK_PYTHON={python} spark-submit --archives {path}#{FOLDER} \\
      --conf spark.executorEnv.PYTHONPATH=./{FOLDER} PROGRAM
Kubernetes or YARN with the driver in the cluster: as spark-submit, with the archive where both find it
  --archives s3a://BUCKET/{name}#{FOLDER}"""


def needed() -> dict[str, Distribution]:
    """By name, with all that they need. Raises `PipelineError` for what is not installed."""
    found: dict[str, Distribution] = {}
    waiting = [(name, True) for name in ROOTS] + [(name, False) for name in IF_INSTALLED]
    while waiting:
        name, is_required = waiting.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            if is_required:
                raise PipelineError(
                    f"the workers need {name}, which is not installed here: install the extra spark"
                ) from None
            continue
        waiting += _requirements(found[name].requires or ())
    return found


def _requirements(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Names, and whether they are needed for sure: what is for some systems is taken if it is here."""
    for line in lines:
        named = _NAME.match(line)
        marker = line.partition(";")[2]
        if named is not None and "extra" not in marker:
            yield _SEPARATORS.sub("-", named[0]).lower(), not marker


def _of_distributions() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, one in needed().items():
        if one.files is None:
            raise PipelineError(f"{name} has no list of its files; install it with pip")
        for file in one.files:
            at = file.as_posix()
            if _is_wanted(at):
                found[at] = Path(str(one.locate_file(file)))
    return found


def _is_wanted(name: str) -> bool:
    folder, _, rest = name.partition("/")
    if folder.endswith(".dist-info"):
        return rest in _OF_DIST_INFO or "license" in rest.lower()
    return folder != ".." and not name.startswith(_LEFT_OUT) and not name.endswith(_SUFFIXES_LEFT_OUT)


def _of_package() -> dict[str, Path]:
    """Of this package, as it runs."""
    folder = Path(geminga.__file__).parent
    return {
        file.relative_to(folder.parent).as_posix(): file
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
