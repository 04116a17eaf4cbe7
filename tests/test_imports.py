"""The order of the packages: none imports one above it, formats and protocol do no I/O, time has one door.

ARCHITECTURE.md's table is the order; this file has no list of its own. Imports are read from the source, so
those inside a function or for type checking only count too.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "geminga"

TABLE = (ROOT / "ARCHITECTURE.md").read_text().split("## Packages")[1].split("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line[:3] == "| `"
]
"""[packages, what they do, rooms] of each line of the table in ARCHITECTURE.md, from the top floor down."""
EVERYONE = {"allocation", "durations", "errors", "limits", "names", "clock", "position", "units"}
"""The ground floor: what every room may import."""
NAMES = re.compile(r"`([\w.]+)/?`")
FLOORS: dict[str, int] = {
    package: number for number, row in enumerate(ROWS) for package in NAMES.findall(row[0])
}
"""Each package and its line in the table; 0 is the top floor."""
ROOMS: dict[str, set[str]] = {
    package: {*NAMES.findall(row[2]), *EVERYONE, package.split(".")[0]}
    for row in ROWS
    for package in NAMES.findall(row[0])
}
"""Each package and the rooms that it may import from, its own included."""
MODULES_MAX = 24
"""In one folder."""

NO_IO = {"trio", "os", "socket", "ssl", "threading", "asyncio", "subprocess", "rocksdict"}
NO_IO_IN = (
    "wire/*.py",
    "client/*.py",
    "**/*format.py",
    "tracker/format/*.py",
    "tracker/index/*.py",
    "managed_ledger/chain/rollover.py",
    "broker/dispatch/hash_ranges.py",
    "broker/dispatch/choice.py",
    "pipeline/errors/*.py",
    "cli/client/errors.py",
)
NETWORK = {"trio", "socket", "ssl", "http.client", "urllib.request"}
WITHOUT_NETWORK = (
    "pipeline.errors",
    "pipeline.topics.options",
    "pipeline.topics.offset_options",
    "pipeline.values.avro_shapes",
    "pipeline.columns.columns",
    "cli.client.errors",
)
"""Modules that bring no network with them, by whatever they import: errors, options, shapes."""
IO_THERE = {"wire/compile_proto.py"}
DOORS = {
    "rocksdict": {"storage/rocksdb.py", "storage/rocksdb_options.py"},
    "time": {
        "clock.py",
        "cli/arguments/parser.py",
        "cli/standalone.py",
        "cli/stopping.py",
        "cli/perf/perf.py",
    },
    "prometheus_client": {"admin/metrics/process.py"},
    "h11": {"admin/http/connection.py"},
}
"""Modules that only these files may import."""

BANNED_WORDS = {"manager", "helper", "helpers", "util", "utils", "common", "base", "misc", "service"}
PROTOCOL_TERMS = {"service_url", "proxy_through_service_url", "ServiceNotReady", "Base64", "BaseCommand"}

MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "pulsar_pb2.py")


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def module_of(path: Path) -> str:
    """Its name without `geminga.`; a package's own `__init__` has the package's name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


PACKAGES = {module_of(path) for path in MODULES if path.name == "__init__.py"} - {"__init__"}


MODULE_NAMES = {module_of(path) for path in MODULES} - PACKAGES
"""A string that names one of these counts as an import: it is there for `import_module`. One that names a
package may be a logger.
"""


def package_of(module: str) -> str:
    """The package that a module is in; the module itself if it lies at the root."""
    return module if module in PACKAGES or "." not in module else module.rpartition(".")[0]


@functools.cache
def imported(path: Path) -> list[tuple[str, int]]:
    """Full names of what a file imports, of each name from a package too, and the line. By name in a string,
    for `importlib`, and by attributes of a bare `import geminga` count too.
    """
    return list(_imported(path))


def _imported(path: Path) -> Iterator[tuple[str, int]]:
    tree = ast.parse(path.read_text(), str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: relative import"
            assert node.module is not None
            if node.module.removeprefix("geminga.") in {*PACKAGES, "geminga"}:
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module, node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith("geminga.") and node.value.removeprefix("geminga.") in MODULE_NAMES:
                yield node.value, node.lineno
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            text = str(node.values[0].value)
            if text.startswith("geminga."):
                yield text.removesuffix("."), node.lineno
        elif isinstance(node, ast.Attribute):
            name = dotted(node) or ""
            if name.startswith("geminga.") and name.removeprefix("geminga.") in {*MODULE_NAMES, *PACKAGES}:
                yield name, node.lineno


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` of an expression that is nothing but names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (value := dotted(node.value)) is not None:
        return f"{value}.{node.attr}"
    return None


def test_the_table_has_every_package_once() -> None:
    listed = [package for row in ROWS for package in NAMES.findall(row[0])]
    assert sorted(listed) == sorted(set(listed))
    used = {package_of(module_of(path)) for path in MODULES if not is_face(path)}
    assert set(listed) == used, "ARCHITECTURE.md's table has to list each package on its floor"


def is_face(path: Path) -> bool:
    """A package's `__init__` with a docstring and nothing else."""
    return path.name == "__init__.py" and len(ast.parse(path.read_text()).body) == 1


def arrows(path: Path) -> Iterator[tuple[str, str, int]]:
    """(package, package that it imports from, line) where the two differ."""
    own = package_of(module_of(path))
    for name, line in imported(path):
        module = name.removeprefix("geminga.")
        if name.startswith("geminga.") and not module.startswith("__"):
            package = package_of(module)
            if package != own:
                yield own, package, line


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_arrow_points_upward(path: Path) -> None:
    for own, package, line in arrows(path):
        assert FLOORS[own] < FLOORS[package], f"{relative(path)}:{line}: {own} -> {package} points upward"
        room = package.split(".")[0]
        assert room in ROOMS[own], f"{relative(path)}:{line}: {own} may not import from {room}"


def test_the_table_allows_no_room_that_is_not_needed() -> None:
    used: dict[str, set[str]] = {package: {package.split(".")[0]} for package in ROOMS}
    for path in MODULES:
        for own, package, _ in arrows(path):
            used[own].add(package.split(".")[0])
    too_many = {package: rooms - used[package] - EVERYONE for package, rooms in ROOMS.items()}
    assert not {package: rooms for package, rooms in too_many.items() if rooms}


FOLDERS = sorted(
    {p.parent for top in ("geminga", "simulation", "tests", "bench") for p in (ROOT / top).rglob("*.py")}
)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_a_folder_holds_few_modules(folder: Path) -> None:
    modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MODULES_MAX, f"{len(modules)} modules: give them folders"


def test_every_folder_says_what_it_is_for() -> None:
    for folder in {path.parent for path in MODULES}:
        assert (folder / "__init__.py").is_file(), f"{folder.relative_to(ROOT)} has no __init__.py"
    for path in MODULES:
        if path.name == "__init__.py":
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            lines = len(text.splitlines())
            assert lines >= 8 or path.parent == PACKAGE, f"{relative(path)}: a docstring of 10 to 20 lines"


def test_nothing_in_the_package_imports_the_simulation_or_the_tests() -> None:
    beside = {"simulation", "tests", "bench"}
    found = [
        f"{relative(path)}:{line}"
        for path in MODULES
        for name, line in imported(path)
        if name.split(".")[0] in beside
    ]
    assert not found


@pytest.mark.parametrize("pattern", NO_IO_IN)
def test_formats_and_decisions_do_no_io(pattern: str) -> None:
    paths = [path for path in PACKAGE.glob(pattern) if relative(path) not in IO_THERE]
    assert paths, "the pattern fits no file: what it was for has moved"
    for path in paths:
        found = [(name, line) for name, line in imported(path) if name.split(".")[0] in NO_IO]
        assert not found, f"{relative(path)}: {found}"


@pytest.mark.parametrize("module", WITHOUT_NETWORK)
def test_an_error_or_an_option_brings_no_socket(module: str) -> None:
    files = {module_of(path): path for path in MODULES}
    seen, waiting = {module}, [module]
    while waiting:
        path = files[waiting.pop()]
        for name, line in imported(path):
            assert name not in NETWORK, f"{module} needs {relative(path)}:{line}: {name}"
            found = {name.removeprefix("geminga."), name.removeprefix("geminga.").rpartition(".")[0]}
            new = (found & files.keys()) - seen if name.startswith("geminga.") else set()
            seen |= new
            waiting += new


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
    assert [
        name for name, _ in imported(PACKAGE / "server" / "server.py") if name.startswith("geminga.admin")
    ]


def test_no_test_hides_inside_a_function() -> None:
    """An indented `def test_...` below a test is never collected, and nothing says so."""
    hidden = [
        f"{path.relative_to(ROOT)}:{inner.lineno}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for outer in ast.walk(ast.parse(path.read_text()))
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(outer)
        if inner is not outer
        and isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
        and inner.name.startswith("test_")
    ]
    assert not hidden


def test_marks_stand_at_tests_only() -> None:
    """At another function a mark does nothing, and the test below it may lack its own."""
    marked = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("test_")
        and any("pytest.mark." in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert not marked
