"""Every file and module that a page, a docstring or a comment names exists.

Modules move, and the texts that name them do not move along. A path such as `bookie/journal/scan.py` is
looked for from the root of the repository, from `geminga/`, and from each folder above the text; a name
without a folder has to stand beside the text, at the root, or in `geminga/` itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "geminga"
CODE = ("geminga", "simulation", "tests", "bench")
HISTORY = ROOT / "docs" / "moves.md"
"""Where files were before: it has to name what is gone."""
GENERATED = PACKAGE / "wire" / "pulsar_pb2.py"
PAGES = sorted({*ROOT.glob("*.md"), *(p for top in ("docs", *CODE) for p in (ROOT / top).rglob("*.md"))})
MODULES = sorted({*ROOT.glob("*.py"), *(p for top in CODE for p in (ROOT / top).rglob("*.py"))})

PYTHON = r"(?:[\w-]+/)*\w+\.py"
OTHER = r"(?:tests|bench|docs)/(?:[\w-]+/)*[\w-]+\.(?:json|md)"
FILE = re.compile(rf"(?<![\w./*-])({PYTHON}|{OTHER})(?![\w*/])")
"""`bench/startup.py`, `clock.py`, `docs/memory.md`; with a star in it, it is a pattern and not looked for."""
DOTTED = re.compile(r"(?<![\w./-])((?:geminga|simulation|tests|bench)(?:\.\w+)+)")
"""`geminga.tracker.index.index.DelayedIndex`, and what follows `python -m`, `from` and `import`."""
LINK = re.compile(r"\]\(([^)#:\s]+)[)#]")
"""Of a page: to another file here, with or without a heading in it."""
ANCHOR = re.compile(r"\]\(([^)#:\s]*)#([\w-]+)\)")
SAID_ANCHOR = re.compile(r"(docs/[\w-]+\.md)#([\w-]+)")
"""Of a message or a page of the broker: to a heading of a page here."""
COMMENT = re.compile(r"(?:^|\s)# (.*)")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def file_exists(text: Path, name: str) -> bool:
    """Whether a text, a page or a module, may call a file so."""
    folders = [text.parent, ROOT, PACKAGE]
    if "/" in name:
        folders += [folder for folder in text.parents if folder.is_relative_to(ROOT)]
    return name == "__init__.py" or any((folder / name).is_file() for folder in folders)


def module_exists(text: Path, name: str) -> bool:
    """Whether a dotted name leads to a module or a package that has what comes behind it."""
    if (text.parent / name).is_file():
        return True
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if path.is_dir() or source.is_file():
            return count == len(parts) or re.search(rf"\b{parts[count]}\b", source.read_text()) is not None
    return False


def said_in(module: str) -> Iterator[tuple[int, str]]:
    """(line number, text) of comments and of docstrings, those of attributes too."""
    for number, line in enumerate(module.splitlines(), 1):
        for comment in COMMENT.findall(line):
            yield number, comment
    blocks: list[ast.AST] = [ast.parse(module)]
    while blocks:
        for node in getattr(blocks.pop(), "body", []):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield from enumerate(text.splitlines(), node.lineno)
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    blocks.append(node)


def missing(path: Path, lines: Iterator[tuple[int, str]]) -> list[str]:
    return [
        f"{relative(path)}:{number}: {name}"
        for number, line in lines
        for pattern, exists in ((FILE, file_exists), (DOTTED, module_exists))
        for name in pattern.findall(line)
        if not exists(path, name)
    ]


def test_pages_name_only_files_and_modules_that_exist() -> None:
    assert PAGES
    found = [
        line
        for path in PAGES
        if path != HISTORY
        for line in missing(path, enumerate(path.read_text().splitlines(), 1))
    ]
    assert not found


def test_docstrings_and_comments_name_only_files_and_modules_that_exist() -> None:
    assert len(MODULES) > 500
    found = [
        line for path in MODULES if path != GENERATED for line in missing(path, said_in(path.read_text()))
    ]
    assert not found


def test_links_between_pages_lead_somewhere() -> None:
    links = [(path, link) for path in PAGES for link in LINK.findall(path.read_text())]
    assert len(links) > 50
    assert not [f"{relative(path)}: {link}" for path, link in links if not (path.parent / link).exists()]


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    shown = (re.sub(r"\]\([^)]*\)", "", title).strip().lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in shown}


def test_links_to_headings_lead_to_headings() -> None:
    links = [
        (path, path.parent / page if page else path, anchor)
        for path in PAGES
        for page, anchor in ANCHOR.findall(path.read_text())
    ]
    links += [
        (path, ROOT / page, anchor)
        for path in MODULES
        if path.is_relative_to(PACKAGE)
        for page, anchor in SAID_ANCHOR.findall(path.read_text())
    ]
    assert len(links) > 50
    assert not [
        f"{relative(path)}: {page.name}#{anchor}"
        for path, page, anchor in links
        if page.suffix == ".md" and anchor not in anchors(page)
    ]


def test_the_rule_finds_what_it_is_for() -> None:
    page = ROOT / "docs" / "memory.md"
    module = PACKAGE / "bookie" / "journal" / "journal.py"
    told = iter([(1, "`bookie/journal_scan.py`, `scan.py`, `geminga.bookie.gone`, `geminga.clock.Cl0ck`")])
    gone = ["bookie/journal_scan.py", "scan.py", "geminga.bookie.gone", "geminga.clock.Cl0ck"]
    assert missing(page, told) == [f"docs/memory.md:1: {name}" for name in gone]
    right = "`bookie/journal/scan.py`, `tests/*_gone.py`, `clock.py`, python -m geminga.wire.compile_proto"
    assert not missing(page, iter([(1, right)]))
    assert not missing(module, iter([(1, "`scan.py`, `journal/scan.py`, `bookie/journal/scan.py`")]))
    assert list(said_in('"""a"""\nx = "b"\n"""c"""\ny = 1  # d\n')) == [(4, "d"), (1, "a"), (3, "c")]
