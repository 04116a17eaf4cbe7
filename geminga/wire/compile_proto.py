"""Compiles `geminga/wire/geminga.proto` to `pulsar_pb2.py` and `pulsar_pb2.pyi`.

    python -m geminga.wire.compile_proto

Needs grpcio-tools (extra `test`). The result is in the repository, so that a broker does not need
grpcio-tools.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

ROOM = Path(__file__).parent
SOURCE = ROOM / "geminga.proto"
MODULE = "pulsar"
NOT_PYTHON = re.compile(r"^ +None: .*\n", re.MULTILINE)
"""The stub would declare the schema type `None`, which is no name in Python: `Schema.Type.Value("None")`."""


def compile_proto(target: Path) -> list[Path]:
    """Write the generated module and its stub into the directory `target`; returns the files written."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory() as scratch:
        # The folder becomes part of the name under which protobuf registers the file; it must be ours alone
        # in a process that also imports other code that speaks this protocol.
        folder = Path(scratch) / "geminga" / "wire"
        folder.mkdir(parents=True)
        (folder / f"{MODULE}.proto").write_bytes(SOURCE.read_bytes())
        arguments = [f"-I{scratch}", f"--python_out={scratch}", f"--pyi_out={scratch}"]
        if protoc.main(["protoc", *arguments, f"geminga/wire/{MODULE}.proto"]) != 0:
            raise SystemExit("protoc failed")
        written = []
        for name in (f"{MODULE}_pb2.py", f"{MODULE}_pb2.pyi"):
            (target / name).write_text(NOT_PYTHON.sub("", (folder / name).read_text()))
            written.append(target / name)
        return written


if __name__ == "__main__":
    for path in compile_proto(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOM):
        print(path)
