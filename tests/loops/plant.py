"""Plants bugs in `loops.c`, one by one. The fuzzer has to find each.

    python -m tests.loops.plant               # all of them, under sanitizers
    python -m tests.loops.plant NAME ...      # only these

A line for each. Exit code 1 if one was not found.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from geminga.loops import compile as compiling

ROOT = Path(__file__).resolve().parents[2]
FRAMES = 16_000


class Bug(NamedTuple):
    name: str
    old: str
    """Occurs exactly once in `loops.c`."""
    new: str

    def planted(self) -> str:
        source = compiling.SOURCE.read_text()
        assert source.count(self.old) == 1, f"{self.name}: the text occurs {source.count(self.old)} times"
        return source.replace(self.old, self.new)


BUGS = (
    Bug("checksum-not-compared", "== get_u32(at + 2);", "+ 1ull;"),
    Bug(
        "lanes-in-another-order",
        "after_lane(after_lane(state) ^ second) ^ third",
        "after_lane(after_lane(state) ^ third) ^ second",
    ),
    Bug("frame-longer-than-the-data", "total > data_end - at - 4 || ", ""),
    Bug("metadata-longer-than-the-frame", "get_u32(at + 6) <= end - at - 10 && ", ""),
    Bug("another-producers-frame", "if (count && send.producer_id != producer_id)", "if (0)"),
    Bug("varint-of-ten-bytes", "shift < 63 && at < end", "shift < 70 && at < end"),
    Bug(
        "varint-past-the-end",
        "for (int shift = 0; shift < 63 && at < end; shift += 7)",
        "for (int shift = 0; shift < 63; shift += 7)",
    ),
    Bug("position-longer-than-the-command", "at[1] > end - at - 2 || ", ""),
    Bug("cumulative-of-several", "(is_cumulative && count != 1)", "0"),
    Bug(
        "highest-id-not-counted", "size += 1 + varint_bytes(highest_id);", "size += varint_bytes(highest_id);"
    ),
    Bug("stamp-longer-than-the-entry", "get_u32(item->bytes + 2) > item->size - 6", "0"),
    Bug("message-one-byte-short", "size += 8 + 4 + 4 + fields", "size += 8 + 4 + 3 + fields"),
    Bug("metadata-past-its-end", "at[1] > 0x7F || at[1] > end - at - 2)", "at[1] > 0x7F)"),
    Bug("batch-taken-for-a-message", "found->is_batch = 1;", "found->is_batch = value > 1;"),
    Bug(
        "rare-fields-overlooked",
        "        } else\n            return 0;\n    }\n    return 1;",
        "        }\n    }\n    return 1;",
    ),
    Bug("body-not-released", "Py_DECREF(items[--count].body);", "--count;"),
    Bug("body-released-twice", "            Py_INCREF(item->body);\n", ""),
    Bug("list-not-released", "== 0;\n    Py_XDECREF(made);\n    return done;", "== 0;\n    return done;"),
    Bug(
        "failed-allocation-not-seen",
        "    if (!items)\n        return PyErr_NoMemory();\n    size = (size_t)PyBytes_Size(head);",
        "    size = (size_t)PyBytes_Size(head);",
    ),
    Bug("offset-not-checked", "if (offset < 0 || offset > data_end - begin)", "if (0)"),
    Bug("entry-ids-do-not-count-up", "item->entry_id = first + (uint64_t)at;", "item->entry_id = first;"),
)


def is_found(bug: Bug, *flags: str) -> bool:
    """Whether the fuzzer ends with an error, or its process is ended, with the bug in the C file."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "loops.c"
        source.write_text(bug.planted())
        command = [sys.executable, "-m", "tests.loops.fuzz", "--frames", str(FRAMES), "--source", str(source)]
        done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, check=False)
        assert "not compiled" not in done.stderr, done.stderr
        return done.returncode != 0


def main() -> int:
    names = sys.argv[1:]
    missed = 0
    for bug in BUGS:
        if not names or bug.name in names:
            # Leaks show without sanitizers, whose memory is not counted; reads out of bounds with them.
            found = is_found(bug) or is_found(bug, "--sanitized")
            missed += not found
            print("found " if found else "MISSED", bug.name, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
