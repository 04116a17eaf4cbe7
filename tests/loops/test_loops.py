"""The loops in C and those in Python give equal results, and how the broker chooses between them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from geminga.bookie.journal import journal_format
from geminga.bookie.records.records import damaged_record
from geminga.loops import compile as compiling
from geminga.position import Position
from geminga.wire import client_commands, hot_encoder, scan_ack
from geminga.wire.decoder import Decoder
from geminga.wire.message_metadata import stamp
from tests.loops.fuzz import load
from tests.loops.plant import BUGS, Bug, is_found

ROOT = Path(__file__).resolve().parents[2]
OBSTACLE = compiling.obstacle()
compiled = pytest.mark.skipif(OBSTACLE is not None, reason=f"nothing to compare: {OBSTACLE}")
LOADED = "from geminga.loops import native; print(native is not None)"


def run(*words: str, **environment: str) -> str:
    """Python's output, in this checkout."""
    command = [sys.executable, *words]
    variables = {**os.environ, "GEMINGA_PURE": "", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@compiled
@pytest.mark.parametrize("seed", [1, 2])
def test_thousands_of_frames_are_equal_either_way(seed: int) -> None:
    assert run("-m", "tests.loops.fuzz", "--frames", "4000", "--seed", str(seed)).startswith("equal: ")


@compiled
def test_the_module_is_used_unless_it_is_of_another_source_or_python_is_chosen(tmp_path: Path) -> None:
    assert compiling.compile_loops(tmp_path) is None
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    assert run("-c", LOADED, PYTHONPATH=path) == "True\n"
    assert run("-c", LOADED, PYTHONPATH=path, GEMINGA_PURE="1") == "False\n"
    other = tmp_path / "loops.c"
    other.write_bytes(compiling.SOURCE.read_bytes() + b"\n")
    assert compiling.compile_loops(tmp_path, source=other) is None
    assert run("-c", LOADED, PYTHONPATH=path) == "False\n"


@compiled
def test_equal_bytes_come_from_two_folders(tmp_path: Path) -> None:
    made = []
    for folder in ("one", "another"):
        (tmp_path / folder).mkdir()
        source = tmp_path / folder / "loops.c"
        source.write_bytes(compiling.SOURCE.read_bytes())
        assert compiling.compile_loops(tmp_path / folder, source=source) is None
        made.append((tmp_path / folder / compiling.FILE_NAME).read_bytes())
    assert made[0] == made[1]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [compiling.FILE_NAME, "loops.c"]


def test_what_does_not_compile_leaves_no_file(tmp_path: Path) -> None:
    source = tmp_path / "loops.c"
    source.write_text("this is no C\n")
    assert compiling.compile_loops(tmp_path, source=source)
    assert [path.name for path in tmp_path.iterdir()] == ["loops.c"]


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_fits_the_source(bug: Bug) -> None:
    assert bug.planted() != compiling.SOURCE.read_text()


@compiled
@pytest.mark.parametrize("name", ["varint-of-ten-bytes", "body-not-released"])
def test_the_comparison_finds_a_planted_bug(name: str) -> None:
    assert is_found(next(bug for bug in BUGS if bug.name == name))


@pytest.fixture(params=["C", "Python"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way in turn, at each place that chooses."""
    native = None
    if request.param == "C":
        if OBSTACLE is not None:
            pytest.skip(f"nothing to choose: {OBSTACLE}")
        assert compiling.compile_loops(tmp_path) is None
        native = load(tmp_path / compiling.FILE_NAME)
    for module in (hot_encoder, scan_ack, journal_format):
        monkeypatch.setattr(module, "native", native)
    return str(request.param)


def test_a_group_is_read_back(kind: str) -> None:
    header = journal_format.FileHeader(7, 12345, 512, 0, 0)
    batches = [(3, 10, [b"one", b"three", b""]), (4, 0, [bytes(1008)] * 70)]
    group, segments = journal_format.encode_group(header, 4096, 4096, batches)
    assert [(s.ledger_id, s.first, s.bodies(s.first, s.last)) for s in segments] == batches
    assert [damaged_record(segment) for segment in segments] == [None, None]
    found = journal_format.decode_group_header(group, 7, 4096)
    assert found is not None
    assert found.end == 4096 + len(group)
    runs = journal_format.decode_runs(group, header, found)
    assert runs == [journal_format.Run(3, 10, 3), journal_format.Run(4, 0, 70)]


@pytest.mark.parametrize("size", [10, 2047, 2048, 40_000])
def test_messages_are_what_a_client_reads(kind: str, size: int) -> None:
    positions = [Position(5, entry_id) for entry_id in (0, 127, 128, 70_000)]
    entry = client_commands.entry(client_commands.metadata("p", 1, 1_785_500_000_000), bytes(size))
    bodies = [stamp(1_785_500_000_000) + entry for _ in positions]
    frames, payload_bytes = hot_encoder.MessageEncoder(9, 3).encode_plain(positions, bodies)
    found = Decoder().feed(b"".join(frames))
    assert payload_bytes == len(entry) * len(positions)
    assert [(d.message.message_id.entryId, d.message.message_id.partition) for d in found] == [
        (position.entry_id, 3) for position in positions
    ]
    assert [(d.message.consumer_id, d.checksum_ok) for d in found] == [(9, True)] * len(found)


def test_acknowledgements_are_read(kind: str) -> None:
    positions = [(5, 1), (5, 2), (6, 70_000)]
    (found,) = Decoder().feed(client_commands.ack(9, positions, request_id=4))
    assert (found.consumer_id, found.cumulative, found.positions, found.request_id) == (
        9,
        False,
        positions,
        4,
    )
