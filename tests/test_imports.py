"""The house's order: no room imports one above it, formats and protocol do no I/O, time has one door.

Read from the source, so that an import inside a function or only for type checking counts too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "geminga"

EVERYONE = {"errors", "limits", "names", "clock", "position"}
"""What every room may import. `names` and `clock` stand on the others."""

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "limits": set(),
    "position": set(),
    "clock": set(),
    "names": {"errors", "limits"},
    "config_keys": set(),
    "config_file": set(),
    "memory_budget": {"limits"},
    "config_foreign": {"config_file", "config_keys"},
    "config": {"errors", "limits", "config_file", "config_keys", "config_foreign", "memory_budget"},
    "disk": EVERYONE,
    "delivery_log_columns_format": EVERYONE,
    "delivery_log_format": EVERYONE | {"delivery_log_columns_format"},
    "rocksdb_log_format": EVERYONE,
    "rocksdb_logs": EVERYONE | {"rocksdb_log_format", "disk"},
    "key_value": EVERYONE | {"rocksdb_logs", "rocksdb_log_format", "disk"},
    "wire": EVERYONE,
    "metadata": EVERYONE | {"key_value"},
    "bookie": EVERYONE | {"disk", "key_value"},
    "managed_ledger": EVERYONE | {"bookie", "metadata"},
    "tracker": EVERYONE | {"managed_ledger", "metadata", "bookie"},
    "broker": EVERYONE
    | {"tracker", "managed_ledger", "bookie", "metadata", "wire", "config", "disk", "delivery_log_format"},
    "admin": EVERYONE | {"broker", "managed_ledger", "bookie", "metadata", "config"},
    "chaos": EVERYONE | {"disk", "key_value", "bookie", "metadata", "managed_ledger", "tracker"},
    "pipeline": EVERYONE
    | {
        "wire",
        "tracker",
        "managed_ledger",
        "bookie",
        "metadata",
        "disk",
        "key_value",
        "delivery_log_format",
    },
}
BELOW_SERVER = set(ALLOWED) - {"chaos", "pipeline"}
ALLOWED["room_settings"] = BELOW_SERVER
ALLOWED["memory_report"] = BELOW_SERVER
ALLOWED["bookie_places"] = BELOW_SERVER | {"room_settings"}
ALLOWED["server"] = BELOW_SERVER | {"room_settings", "memory_report", "bookie_places"}
ALLOWED["cli"] = BELOW_SERVER | {"server", "bookie_places", "room_settings", "pipeline"}
ALLOWED["testing"] = EVERYONE | {"server", "config", "wire", "chaos"}
ALLOWED["__main__"] = {"cli"}

NO_IO = {"trio", "os", "socket", "threading", "asyncio", "subprocess", "rocksdict"}
NO_IO_IN = (
    "wire/*.py",
    "**/*_format.py",
    "tracker/*.py",
    "broker/key_shared.py",
    "broker/dispatch_choice.py",
)
IO_THERE = {
    "wire/compile_proto.py",
    *(
        f"tracker/{name}.py"
        for name in (
            "bucket_set",
            "bucket_store",
            "keeper",
            "loading",
            "merge_task",
            "override_store",
            "recovery",
            "retrying",
            "sealing",
        )
    ),
}
DOORS = {
    "rocksdict": {"key_value.py"},
    "time": {"clock.py", "cli/main.py", "cli/standalone.py", "cli/perf.py"},
    "prometheus_client": {"admin/metrics.py"},
    "h11": {"admin/http.py"},
}
"""Modules that only these files may import."""

BANNED_WORDS = {"manager", "helper", "helpers", "util", "utils", "common", "base", "misc", "service"}
PROTOCOL_TERMS = {"service_url", "proxy_through_service_url", "ServiceNotReady", "Base64", "BaseCommand"}

MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "pulsar_pb2.py")


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Full names of the modules that a file imports, and the line."""
    tree = ast.parse(path.read_text(), str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: relative import"
            assert node.module is not None
            yield node.module, node.lineno
            if node.module == "geminga":
                yield from ((f"geminga.{alias.name}", node.lineno) for alias in node.names)


def test_every_room_has_its_place() -> None:
    rooms = {room_of(path) for path in MODULES} - {"__init__"}
    assert rooms <= set(ALLOWED), "say in ALLOWED what the new room may import"


def test_the_order_has_no_circle() -> None:
    done: set[str] = set()
    left = dict(ALLOWED)
    while left:
        free = [room for room, below in left.items() if below <= done]
        assert free, f"a circle among {sorted(left)}"
        for room in free:
            done.add(room)
            del left[room]


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_arrow_points_upward(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    for name, line in imported(path):
        parts = name.split(".")
        if parts[0] != "geminga" or len(parts) == 1 or parts[1].startswith("__"):
            continue
        assert parts[1] == room or parts[1] in ALLOWED[room], f"{relative(path)}:{line}: {room} -> {name}"


@pytest.mark.parametrize("pattern", NO_IO_IN)
def test_formats_and_decisions_do_no_io(pattern: str) -> None:
    paths = [path for path in PACKAGE.glob(pattern) if relative(path) not in IO_THERE]
    for path in paths:
        found = [(name, line) for name, line in imported(path) if name.split(".")[0] in NO_IO]
        assert not found, f"{relative(path)}: {found}"


@pytest.mark.parametrize("module", DOORS)
def test_one_door(module: str) -> None:
    users = {
        relative(path) for path in MODULES if any(name.split(".")[0] == module for name, _ in imported(path))
    }
    assert users <= DOORS[module]


def names_of(path: Path) -> Iterator[str]:
    """Module, class and function names of a file."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def test_names_say_what_a_thing_is() -> None:
    found = [
        f"{relative(path)}: {name}"
        for path in MODULES
        for name in names_of(path)
        if name not in PROTOCOL_TERMS
        and BANNED_WORDS & {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    ]
    assert not found


def test_the_rule_finds_what_it_is_for() -> None:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", "TopicManager")
    assert {word.lower() for word in words} & BANNED_WORDS
    assert [name for name, _ in imported(PACKAGE / "server.py") if name.startswith("geminga.admin")]
