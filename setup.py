"""What pyproject.toml cannot say: the README for a package index, and builds that always give the same bytes.

A package index shows README.md without the files beside it, and the project has no public URL for links to
lead to. So links to files become the names of the files, which the source distribution has, and pictures are
left out. Once there is a public URL, links can become absolute here.

Archives hold times, modes, owners and orders of files, which differ from checkout to checkout. Here all of
them are fixed, so the same commit gives the same wheel and the same source distribution, also when they are
built from an unpacked source distribution. `SOURCE_DATE_EPOCH` sets another time.

A wheel has the loops in C, compiled, if they can be, and the tags of what they run on: CPython 3.11 and newer
on this system. Where nothing can be compiled, and with `GEMINGA_PURE=1`, it is one for every system.
"""

import gzip
import os
import re
import runpy
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

PICTURE = re.compile(r"^!\[[^]]*\]\((?!https?:)[^)]+\)\n\n?", re.MULTILINE)
FILE_LINK = re.compile(r"\[([^]]*)\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)")
HINT = "*Files named on this page, such as `docs/settings.md`, are in the source distribution.*"
TIME_VARIABLE, TIME_S = "SOURCE_DATE_EPOCH", 1767225600
"""2026-01-01; a zip file has no time before 1980."""


def named(link: re.Match[str]) -> str:
    """A link to a file as plain text; a link to a heading of the page keeps only its words."""
    text, path = link[1], link[2]
    if not path:
        return text
    return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"


def for_package_index(readme: str) -> str:
    """README.md without relative links and pictures, and a line below its title that says where files are."""
    title, rest = readme.split("\n", 1)
    return f"{title}\n\n{HINT}\n" + FILE_LINK.sub(named, PICTURE.sub("", rest))


def plain_mode(mode: int) -> int:
    """The mode that a file has in an archive, whatever the umask of the checkout was."""
    return 0o755 if mode & 0o100 else 0o644


LOOPS = runpy.run_path(str(Path(__file__).with_name("geminga") / "loops" / "compile.py"))
COMPILE_SECONDS_MAX = 60


@cache
def compiled_loops() -> bytes | None:
    """The extension, compiled at the first call; None for a wheel without it."""
    if os.environ.get("GEMINGA_PURE", "") not in ("", "0"):
        return None
    with tempfile.TemporaryDirectory() as directory:
        reason = LOOPS["compile_loops"](Path(directory), timeout_s=COMPILE_SECONDS_MAX)
        if reason is not None:
            print(f"the loops stay Python: {reason}", file=sys.stderr)
            return None
        return (Path(directory) / LOOPS["FILE_NAME"]).read_bytes()


class WithLoops(Distribution):
    def has_ext_modules(self) -> bool:
        return compiled_loops() is not None


def set_plain_modes(directory: str) -> None:
    for path in Path(directory).rglob("*"):
        if path.is_file():
            path.chmod(plain_mode(path.stat().st_mode))


class PlainBuild(build_py):
    def run(self) -> None:
        super().run()
        if (extension := compiled_loops()) is not None:
            (Path(self.build_lib) / LOOPS["FILE_NAME"]).write_bytes(extension)
        set_plain_modes(self.build_lib)


class PlainWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if compiled_loops() is None else ("cp311", "abi3", platform)

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        super().egg2dist(egginfo_path, distinfo_path)
        set_plain_modes(distinfo_path)


class PlainSource(sdist):
    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):  # type: ignore[no-untyped-def]
        time_s = int(os.environ[TIME_VARIABLE])

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.uid, member.gid, member.uname, member.gname = time_s, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() else plain_mode(member.mode)
            return member

        name = f"{base_name}.tar.gz"
        with (
            open(name, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=time_s) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            archive.add(base_dir, filter=plain)  # goes through directories by name
        return name


if __name__ == "__main__":
    os.environ.setdefault(TIME_VARIABLE, str(TIME_S))
    os.umask(0o022)
    setup(
        long_description=for_package_index(Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
        long_description_content_type="text/markdown",
        distclass=WithLoops,
        cmdclass={"build_py": PlainBuild, "bdist_wheel": PlainWheel, "sdist": PlainSource},
    )
