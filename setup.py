"""The README for a package index: pyproject.toml has everything else.

A package index shows README.md without the files beside it, and the project has no public URL for links to
lead to. So links to files become the names of the files, which the source distribution has, and pictures are
left out. Once there is a public URL, links can become absolute here.
"""

import re
from pathlib import Path

from setuptools import setup

PICTURE = re.compile(r"^!\[[^]]*\]\((?!https?:)[^)]+\)\n\n?", re.MULTILINE)
FILE_LINK = re.compile(r"\[([^]]*)\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)")
HINT = "*Files named on this page, such as `docs/settings.md`, are in the source distribution.*"


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


if __name__ == "__main__":
    setup(
        long_description=for_package_index(Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
        long_description_content_type="text/markdown",
    )
