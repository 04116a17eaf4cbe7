"""The shape of the package: no circles, and none of the sizes and habits that make a class hard to follow.

Read from the source, as `tests/test_imports.py` does; imports for type checking and inside functions count.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from geminga.wire import pulsar_pb2 as pb
from tests.test_imports import MODULE_NAMES, MODULES, PACKAGES, imported, module_of, relative

LINES_MAX = 800
"""Of a module; generated ones are not in `MODULES`. A lower bound cut apart what is one thing to a reader."""
PUBLIC_METHODS_MAX = 35
CALLBACKS_MAX = 4
"""Parameters of one constructor that are to be called."""

FOREIGN = {
    "pipeline/client/connection.py": {"context.check_hostname", "context.verify_mode"},
    "pipeline/client/kept_connections.py": {"self._watching.daemon"},
}
"""Attributes of foreign classes that can only be assigned: `ssl.SSLContext` is configured by them, and the
constructor of `threading.Timer` does not take `daemon`.
"""


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Each class with `file:name`."""
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                yield f"{relative(path)}:{node.name}", node


# -- circles -----------------------------------------------------------------------------------------------


def arrows() -> dict[str, set[str]]:
    """What each module imports of the package; a name from a package is an import of that package."""
    known = MODULE_NAMES | PACKAGES
    found: dict[str, set[str]] = {}
    for path in MODULES:
        own = module_of(path)
        targets = found.setdefault(own, set())
        for name, _ in imported(path):
            module = name.removeprefix("geminga.") if name.startswith("geminga.") else ""
            while module and module not in known:
                module = module.rpartition(".")[0]
            if module and module != own:
                targets.add(module)
    return found


def circle_in(arrows: dict[str, set[str]]) -> list[str]:
    """The modules that are left when all that import nothing, or are imported by nothing, are taken away one
    after the other: those of the circles, and of the ways between them. None: there is no circle.
    """
    left = {module: set(targets) for module, targets in arrows.items()}
    while True:
        wanted = set().union(*left.values()) if left else set()
        ends = {
            module for module, targets in left.items() if not targets & left.keys() or module not in wanted
        }
        if not ends:
            return sorted(left)
        left = {module: targets - ends for module, targets in left.items() if module not in ends}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle_in(arrows()) == []


def test_a_circle_is_found() -> None:
    tree = {"top": {"a"}, "a": {"b"}, "b": {"c", "leaf"}, "c": {"leaf"}}
    assert circle_in(tree) == []
    assert circle_in({**tree, "c": {"a"}}) == ["a", "b", "c"]
    assert "wire.encoder" in arrows()["broker.dispatch.consumer"]
    assert "broker.dispatch.consumer" in arrows()["broker.subscription.acks"], "for type checking only"


# -- sizes -------------------------------------------------------------------------------------------------


def test_no_module_is_long() -> None:
    lines = {relative(path): len(path.read_text().splitlines()) for path in MODULES}
    assert not [name for name, count in lines.items() if count > LINES_MAX]


def test_no_class_has_many_public_methods() -> None:
    found = set()
    for name, node in classes():
        methods = {
            part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        if len([method for method in methods if method[0] != "_"]) > PUBLIC_METHODS_MAX:
            found.add(name)
    assert not found


@functools.cache
def names_of_callables() -> re.Pattern[str]:
    """`Callable`, and what is another name for one."""
    names = {"Callable"}
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Callable["):
                names.update(ast.unparse(target) for target in node.targets)
    return re.compile(rf"\b({'|'.join(names)})\b")


def callbacks_of(node: ast.ClassDef) -> list[str]:
    """Parameters of its constructor that are to be called."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            parameters = [*part.args.posonlyargs, *part.args.args, *part.args.kwonlyargs]
            return [
                parameter.arg
                for parameter in parameters
                if parameter.annotation is not None
                and names_of_callables().search(ast.unparse(parameter.annotation))
            ]
    return []


def test_no_constructor_is_given_many_callbacks() -> None:
    assert not [name for name, node in classes() if len(callbacks_of(node)) > CALLBACKS_MAX]
    assert max(len(callbacks_of(node)) for _, node in classes()) == CALLBACKS_MAX, "the rule sees them"


# -- whose attributes --------------------------------------------------------------------------------------

FIELDS = {field.name for message in pb.DESCRIPTOR.message_types_by_name.values() for field in message.fields}
"""Of protobuf messages, which are filled by assignment."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def assigned_in(path: Path) -> set[str]:
    """`object.attribute` of each assignment to an attribute of what is neither `self` nor made in the same
    function. A module may write to the records that it defines itself.
    """
    parts = tree_of(path).body
    attributes = {part: set(attributes_of(part)) for part in parts if isinstance(part, ast.ClassDef)}
    fields = FIELDS if any(name == "geminga.wire.pulsar_pb2" for name, _ in imported(path)) else set()
    found = set()
    for part in parts:
        records = fields.union(*(names for other, names in attributes.items() if other is not part))
        for target, made in assignments(part, made_in(part) if isinstance(part, Function) else set()):
            is_own = isinstance(target.value, ast.Name) and target.value.id in {"self", "cls", *made}
            if not is_own and target.attr not in records:
                found.add(f"{ast.unparse(target.value)}.{target.attr}")
    return found


def attributes_of(node: ast.ClassDef) -> Iterator[str]:
    """What a class declares, or assigns to itself."""
    for part in ast.walk(node):
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id
        elif (
            isinstance(part, ast.Attribute)
            and isinstance(part.ctx, ast.Store)
            and ast.unparse(part.value) == "self"
        ):
            yield part.attr


def assignments(node: ast.AST, made: set[str]) -> Iterator[tuple[ast.Attribute, set[str]]]:
    """Attributes that are assigned below a node, and the names of what the functions around it have made."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            yield child, made
        yield from assignments(child, made | made_in(child) if isinstance(child, Function) else made)


def made_in(function: Function) -> set[str]:
    """Local names of what a function makes by calling a class."""
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and is_class(node.value.func)
    }


def is_class(called: ast.expr) -> bool:
    name = ast.unparse(called).rpartition(".")[2].lstrip("_")
    return name[:1].isupper() or name in ("cls", "new__")


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_attribute_is_assigned_from_another_object(path: Path) -> None:
    name = relative(path)
    assert assigned_in(path) == FOREIGN.get(name, set())


def test_the_exceptions_name_files_that_there_are() -> None:
    assert FOREIGN.keys() <= {relative(path) for path in MODULES}


def test_an_assignment_from_outside_is_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "class Record:\n"
        "    mine: int\n"
        "def change(other, record):\n"
        "    made = Record()\n"
        "    made.anything = record.mine = 1\n"
        "    other.theirs, other.part.count = 2, 3\n"
        "    for other.each in (): pass\n"
        "    other.sum += 4\n"
    )
    assert assigned_in(path) == {"other.theirs", "other.part.count", "other.each", "other.sum"}
