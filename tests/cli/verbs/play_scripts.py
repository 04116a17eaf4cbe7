"""Set-up scripts that public repositories have for Pulsar, rebuilt from their commands, run through shims;
and with a real Pulsar, recorded. The first line of each script says where its commands are from.

    GEMINGA_WEB_URL=http://localhost:8080 GEMINGA_URL=pulsar://localhost:6650 \\
        python -m tests.cli.verbs.play_scripts

writes `recorded_scripts.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from geminga.cli.main import main

HERE = Path(__file__).parent
SCRIPTS = sorted(HERE.glob("scripts/*.sh"))
RECORDED = HERE / "recorded_scripts.json"
TOGETHER = 3
SECONDS_MAX = 60
Ended = tuple[int, str]


def play(script: Path, place: Path, web_url: str, service_url: str) -> Ended:
    """The exit code, and what it printed; `bin/` and the PATH have the shims."""
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    urls = {"GEMINGA_WEB_URL": web_url, "GEMINGA_URL": service_url}
    urls |= {"PULSAR_ADMIN_URL": web_url, "PULSAR_URL": service_url}
    ended = subprocess.run(
        [str(script)],
        cwd=place,
        env={**os.environ, **urls, "PATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    return ended.returncode, ended.stdout


def play_all(place: Path, web_url: str, service_url: str) -> dict[str, Ended]:
    assert main(["shims", str(place / "bin")]) == 0
    with ThreadPoolExecutor(TOGETHER) as pool:
        ended = pool.map(lambda script: play(script, place, web_url, service_url), SCRIPTS)
        return {script.name: end for script, end in zip(SCRIPTS, ended, strict=True)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        found = play_all(Path(directory), os.environ["GEMINGA_WEB_URL"], os.environ["GEMINGA_URL"])
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    for name, (code, _) in found.items():
        print(code, name)
