"""The cells of docs/pipeline-notebook.md are whole; whether they print what stands there says `--check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.spark.notebook import CELL, PAGE, PICTURE, Notebook, cells_of, executed

SMALL = """Begin.

```python
n = 2
print(n, "rows  ")
```

```text
3 rows
```

```python
m = n + 1
```

```console
$ geminga --version
x
```
"""


def test_every_cell_of_the_page_is_python_and_every_picture_is_there() -> None:
    page = PAGE.read_text()
    cells = list(cells_of(page))
    assert page.count("```python") + page.count("```console") == len(cells)
    assert page.count("```text") == sum(bool(cell.output) for cell in cells)
    for cell in cells:
        if cell.kind == "python":
            compile(cell.code, f"{PAGE}:{cell.line}", "exec")
    names = [found["name"] for found in PICTURE.finditer(page)]
    assert names
    assert all((PAGE.parent / "pictures" / name).is_file() for name in names)


def test_a_cell_gets_the_output_that_it_has_now() -> None:
    done = CELL.sub(Notebook().text_of, SMALL)
    assert "```text\n2 rows\n```\n" in done
    assert done.count("```text") == 1
    assert "\nx\n" not in done
    assert CELL.sub(Notebook().text_of, done) == done


def test_an_error_ends_the_page(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        executed("Text.\n\n```python\n1 / 0\n```\n", tmp_path)
    assert raised.traceback[-1].lineno == 3  # counted from 0: the page's fourth
    assert Path.cwd() != tmp_path
