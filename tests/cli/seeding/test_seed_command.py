"""What `geminga snapshot seed` says that it has made."""

from __future__ import annotations

from pathlib import Path

import pytest

from geminga.cli.main import main


def test_numbers_are_told_with_their_words(
    tmp_path: Path, topic: str, web_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "seed.jsonl"
    lines = [f'{{"to": "{topic}", "text": ""}}', f'{{"to": "{topic}-2", "text": "", "repeat": 2}}']
    for count, told in ((1, "1 namespace, 1 topic, 1 message\n"), (2, "1 namespace, 2 topics, 3 messages\n")):
        file.write_text("\n".join(lines[:count]))
        assert main(["snapshot", "seed", str(file), "--url", web_url]) == 0
        assert capsys.readouterr().out == f"{file}: {told}"
