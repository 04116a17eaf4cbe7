"""The wheel and the source distribution: complete, and the same bytes from the same sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from geminga.loops.compile import FILE_NAME, obstacle

ROOT = Path(__file__).resolve().parents[1]
OBSTACLE = obstacle()
PLATFORM = sysconfig.get_platform().replace("-", "_")
BUILD = "from setuptools import build_meta as b; b.build_sdist('..'); b.build_wheel('..')"


def tracked() -> list[str]:
    """The files of the project: what git has or would add, or what an unpacked source distribution lists."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode()
        return sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file())
    [listing] = ROOT.glob("*.egg-info/SOURCES.txt")
    return [name for name in listing.read_text().splitlines() if ".egg-info/" not in name]


def build(source: Path, umask: int, **variables: str) -> tuple[Path, Path]:
    """The source distribution and the wheel, as a build tool makes them."""
    environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    environment |= {"GEMINGA_PURE": "", **variables}
    run = [sys.executable, "-P", "-c", BUILD]
    done = subprocess.run(
        run, cwd=source, env=environment, umask=umask, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    [archive], [wheel] = source.parent.glob("*.tar.gz"), source.parent.glob("*.whl")
    return archive, wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Built from a copy of the checkout."""
    source = tmp_path_factory.mktemp("first") / "source"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    return build(source, umask=0o022)


@pytest.fixture(scope="module")
def built_again(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Built from the unpacked source distribution: other times, modes, owners and places."""
    directory = tmp_path_factory.mktemp("again")
    with tarfile.open(built[0]) as archive:
        archive.extractall(directory, filter="data")
    [source] = directory.iterdir()
    for path in source.rglob("*"):
        if path.is_file():
            os.utime(path, (2_000_000_000, 2_000_000_000))
            path.chmod(path.stat().st_mode | 0o020)
    return build(source, umask=0o077)


def test_a_source_distribution_has_every_file_of_the_checkout(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        packed = {member.name.partition("/")[2]: member for member in archive.getmembers() if member.isfile()}
        owners = {(member.uid, member.gid, member.uname, member.mtime) for member in archive.getmembers()}
    assert set(tracked()) - set(packed) == set()
    assert {name for name in set(packed) - set(tracked()) if ".egg-info/" not in name} == {
        "PKG-INFO",
        "setup.cfg",
    } - set(tracked())
    assert owners == {(0, 0, "", 1767225600)}
    assert packed["docker/bin/pulsar"].mode == 0o755
    assert packed["README.md"].mode == 0o644


def test_a_second_build_elsewhere_gives_the_same_bytes(
    built: tuple[Path, Path], built_again: tuple[Path, Path]
) -> None:
    for first, second in zip(built, built_again, strict=True):
        assert first.name == second.name
        assert first.read_bytes() == second.read_bytes(), first.name


def test_a_wheel_has_the_package_and_its_types_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in wheel.infolist()}
        [entry_points] = [wheel.read(name).decode() for name in modes if name.endswith("entry_points.txt")]
    loops = {FILE_NAME} if OBSTACLE is None else set()
    assert {name.partition("/")[0].partition("-")[0] for name in modes} == {"geminga"} | loops
    assert not any(name.endswith(".c") for name in modes)
    assert built[1].name.endswith("-py3-none-any.whl" if OBSTACLE else f"-cp311-abi3-{PLATFORM}.whl")
    sources = {name for name in tracked() if name.startswith("geminga/") and name.endswith((".py", ".pyi"))}
    assert sources | {"geminga/py.typed", "geminga/wire/geminga.proto"} <= set(modes)
    assert modes["geminga/pipeline/spark/java/bin/java"] == 0o755
    assert entry_points.split() == [
        *("[console_scripts]", "geminga", "=", "geminga.__main__:start"),
        *("[pytest11]", "geminga", "=", "geminga.testing.plugin"),
    ]


@pytest.mark.parametrize(
    "variables", [{"GEMINGA_PURE": "1"}, {"PATH": "/nowhere"}], ids=["asked", "no compiler"]
)
def test_a_wheel_without_the_loops_in_c_is_for_every_system(
    built: tuple[Path, Path], variables: dict[str, str], tmp_path: Path
) -> None:
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    _, wheel = build(source, 0o022, **variables)
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as content:
        assert not [name for name in content.namelist() if name.endswith((".so", ".c"))]
