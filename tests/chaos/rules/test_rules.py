"""Rules without a broker: what is refused, and which operations are hit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from geminga.chaos.faulty_clock import FaultyClock
from geminga.chaos.rules.can_hit import HITS, kinds_at, operations_of
from geminga.chaos.rules.deciding import Armed, Facts
from geminga.chaos.rules.faults import RULES_MAX, Faults, NoSuchRule, TooManyRules
from geminga.chaos.rules.kept_file import KeptFile
from geminga.chaos.rules.places import PLACES
from geminga.chaos.rules.rule import InvalidRule, parse_rule
from geminga.chaos.rules.rule_file import rules_at_start
from geminga.chaos.wire.frames import Frames
from geminga.clock import WALL_CHECK_SECONDS, RealClock
from geminga.errors import StorageError
from geminga.storage.disk import RealDisk
from geminga.wire import encoder


class StepClock:
    """A clock that moves when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise AssertionError


@pytest.fixture
def clock() -> StepClock:
    return StepClock()


@pytest.fixture
def faults(clock: StepClock) -> Faults:
    return Faults(clock)


def hits(faults: Faults, place: str, **facts: Any) -> int:
    return len(faults.doors[place].hit(Facts(**facts)))


def cut(**fields: Any) -> Any:
    return parse_rule({"place": "wire", "kind": "cut", **fields})


LOOKUP_ERROR = {"place": "wire", "kind": "error", "command": "LOOKUP", "error": "ServiceNotReady"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "expected a JSON object"),
        ({}, "place: expected one of wire, journal"),
        ({"place": "wires", "kind": "cut"}, "place: expected one of wire, journal, .*, not 'wires'"),
        ({"place": "wire"}, "kind: expected one of latency, throttle"),
        ({"place": "wire", "kind": "eio"}, "kind: expected one of latency, .*, not 'eio'"),
        ({"place": "wire", "kind": "latency"}, "latencyMs: wire/latency needs it: a time in ms"),
        ({"place": "wire", "kind": "cut", "latencyMs": 5}, "latencyMs: wire/cut does not take it; it takes"),
        ({"place": "wire", "kind": "cut", "latency_ms": 5}, "latency_ms: a rule has no such field"),
        ({"place": "wire", "kind": "cut", "count": "3"}, "count: expected `int`, got `str`"),
        ({"place": "wire", "kind": "cut", "count": -1}, "count: expected a number of hits"),
        ({"place": "wire", "kind": "cut", "count": 0}, "count: expected a number of hits; leave it out"),
        ({"place": "wire", "kind": "cut", "durationMs": 0}, "durationMs: expected a time in ms"),
        ({"place": "bucket", "kind": "lose", "topic": "t"}, "subscription: bucket/lose needs it: a text"),
        ({"place": "wire", "kind": "cut", "probability": 0}, "probability: expected a number above 0"),
        ({"place": "wire", "kind": "cut", "probability": 1.5}, "probability: expected a number above 0"),
        ({"place": "wire", "kind": "cut", "direction": "up"}, "direction: expected in or out, not 'up'"),
        ({"place": "wire", "kind": "cut", "command": "send"}, "command: expected a command"),
        ({"place": "wire", "kind": "cut", "id": "a b"}, "id: expected letters"),
        ({"place": "journal", "kind": "eio", "operation": "seek"}, "operation: expected one of read, write"),
        ({"place": "process", "kind": "kill", "name": "nowhere"}, "name: expected a point, one of"),
        ({"place": "topic", "kind": "unload", "topic": "t", "count": 2}, "count: topic/unload does not take"),
        ({"place": "wire", "kind": "slice"}, "sliceBytes: wire/slice needs it: a number of bytes"),
        ({"place": "wire", "kind": "cut", "jitterMs": 5}, "jitterMs: wire/cut does not take it"),
        ({"place": "wire", "kind": "error", "command": "SEND"}, "error: .* needs it: one of UnknownError, "),
        ({"place": "wire", "kind": "error", "error": "NotReady"}, "command: .* needs it: one of PART"),
        ({**LOOKUP_ERROR, "error": "NotReady"}, "error: expected one of .*ServiceNotReady.*, not 'NotReady'"),
        ({**LOOKUP_ERROR, "command": "FLOW"}, "command: wire/error can answer .*SEND, .*, not FLOW"),
        ({**LOOKUP_ERROR, "command": "MESSAGE"}, "command: wire/error can answer"),
        ({**LOOKUP_ERROR, "direction": "out"}, "direction: LOOKUP comes from clients: in, so 'out' can"),
        (
            {**LOOKUP_ERROR, "command": "CLOSE_PRODUCER", "direction": "out"},
            "direction: CLOSE_PRODUCER comes",
        ),
        ({"place": "admin", "kind": "error"}, "status: admin/error needs it: a status from 400 to 599$"),
        ({"place": "admin", "kind": "error", "status": 200}, "status: expected a status from 400 to 599"),
        ({"place": "admin", "kind": "cut", "method": "get"}, "method: expected GET or HEAD or .*, not 'get'"),
        (
            {"place": "admin", "kind": "cut", "path": "admin"},
            "path: expected the beginning of a path such as",
        ),
        ({"place": "admin", "kind": "cut", "path": "/geminga/faults/rules"}, "path: .* are never hit"),
        (
            {"place": "topic", "kind": "unload", "topic": "t", "keep": True},
            "keep: topic/unload does not take",
        ),
        ({"place": "clock", "kind": "step"}, "stepMs: clock/step needs it: a time in ms, .*, not 0$"),
        ({"place": "clock", "kind": "step", "stepMs": 1, "count": 1}, "count: clock/step does not take it"),
        ({"place": "clock", "kind": "drift", "ppm": 1_000_001}, "ppm: expected millionths from -1000000"),
    ],
)
def test_a_wrong_rule_is_refused_by_its_field(body: Any, said: str) -> None:
    with pytest.raises(InvalidRule, match=said):
        parse_rule(body)


@pytest.mark.parametrize(
    ("fault", "fields", "said"),
    [
        ("journal/torn", {"operation": "sync"}, "operation: journal/torn can hit write, never sync"),
        ("index/torn", {"operation": "read"}, "operation: index/torn can hit write, never read"),
        ("journal/eio", {"operation": "space"}, "operation: journal/eio can hit read, write, sync, never"),
        (
            "entry-log/enospc",
            {"operation": "read"},
            "operation: entry-log/enospc can hit write, space, never",
        ),
        ("index/enospc", {"operation": "sync"}, "operation: index/enospc can hit write, never sync"),
        (
            "journal/slow",
            {"operation": "read", "latencyMs": 1},
            "a journal is read only at a start: give the",
        ),
        (
            "wire/cut",
            {"command": "MESSAGE", "direction": "in"},
            "direction: MESSAGE goes to clients: out, so",
        ),
        (
            "wire/latency",
            {"latencyMs": 1, "command": "SEND", "direction": "out"},
            "direction: SEND comes from",
        ),
        (
            "metadata/refused",
            {"path": "managed-ledgers"},
            "path: expected the beginning of a path such as /m",
        ),
        ("bucket/fail", {"topic": "a/b"}, "topic: invalid short topic name 'a/b': expected"),
        ("bucket/fail", {"topic": "a/b*"}, "topic: invalid short topic name"),
        ("bucket/fail", {"operation": "create", "ledgerId": 3}, "ledgerId: a bucket that is created has no"),
    ],
)
def test_a_rule_that_can_never_hit_is_refused_with_what_can(fault: str, fields: Any, said: str) -> None:
    place, _, kind = fault.partition("/")
    with pytest.raises(InvalidRule, match=said):
        parse_rule({"place": place, "kind": kind, **fields})


def test_a_journals_reads_can_be_hit_at_a_start() -> None:
    body = {"place": "journal", "kind": "eio", "operation": "read"}
    assert parse_rule(body, at_start=True).operation == "read"
    assert parse_rule({**body, "operation": "write"}).operation == "write"


def test_doors_and_rules_have_one_table() -> None:
    assert kinds_at("journal", "write") == {"slow", "eio", "torn"}
    assert kinds_at("journal", "reserve") == {"slow", "eio", "enospc"}
    assert kinds_at("journal", "space") == {"enospc"}
    assert kinds_at("entry-log", "write") == {"slow", "eio", "enospc", "torn"}
    assert kinds_at("index", "sync") == {"slow", "eio"}
    assert kinds_at("wire", "in") - kinds_at("wire", "out") == {"error"}
    for place, kinds in HITS.items():
        assert kinds.keys() <= PLACES[place].keys()
        for kind in kinds:
            assert place == "wire" or operations_of(place, kind)


def test_a_jitter_draws_each_delay_by_the_seed_and_never_below_zero() -> None:
    def drawn(**fields: Any) -> list[float]:
        armed = Armed(parse_rule({"place": "wire", "kind": "latency", **fields}), 0.0)
        return [armed.delay_s() for _ in range(200)]

    assert drawn(latencyMs=50) == [0.05] * 200
    delays = drawn(latencyMs=50, jitterMs=20, seed=1)
    assert delays == drawn(latencyMs=50, jitterMs=20, seed=1) != drawn(latencyMs=50, jitterMs=20, seed=2)
    assert 0.03 <= min(delays) < 0.035 < 0.065 < max(delays) <= 0.07
    assert 0.2 < drawn(latencyMs=10, jitterMs=40).count(0.0) / 200 < 0.5


def test_requests_are_selected_by_method_and_the_beginning_of_their_path(faults: Faults) -> None:
    faults.set(parse_rule({"place": "admin", "kind": "cut", "method": "PUT", "path": "/admin/v2"}))
    requests = [("PUT", "/admin/v2/x"), ("GET", "/admin/v2/x"), ("PUT", "/x/admin/v2")]
    assert [hits(faults, "admin", method=method, path=path) for method, path in requests] == [1, 0, 0]


def test_every_kind_has_a_valid_rule() -> None:
    values: dict[str, Any] = {"latency_ms": 1, "bytes_per_s": 1, "topic": "t", "subscription": "s"}
    values |= {"slice_bytes": 1, "status": 503, "command": "SEND", "error": "ServiceNotReady"}
    values |= {"step_ms": -1, "ppm": -1}
    names = {"latency_ms": "latencyMs", "bytes_per_s": "bytesPerS", "slice_bytes": "sliceBytes"}
    names["step_ms"] = "stepMs"
    for place, kinds in PLACES.items():
        for name, kind in kinds.items():
            fields = {names.get(one, one): values.get(one, "journal-synced") for one in kind.needs}
            assert parse_rule({"place": place, "kind": name, **fields}).kind == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[faults", "rules.toml: Expected ']]'"),
        ("steps = 1", r"rules.toml: there is no 'steps'; a file of rules has \[\[faults\]\]"),
        ("", r"rules.toml: expected \[\[faults\]\]"),
        ("[[faults]]\nfault = 'wire'", r"rules.toml: rule 1 \(wire\): fault: expected \"PLACE/KIND\""),
        (
            "[[faults]]\nfault = 'wire/latency'\nlatency = '5x'",
            r"rule 1 \(wire/latency\): latency: expected a",
        ),
        ("[[faults]]\nfault = 'wire/cut'\nfor = '-1s'", r"rule 1 \(wire/cut\): for: expected a duration"),
        ("[[faults]]\nfault = 'wire/cut'\nfor = 10", "for: expected a duration as text, .*, not 10"),
        ("[[faults]]\nfault = 'topic/unload'\ntopic = 't'", r"rule 1 \(topic/unload\): it acts once"),
        (
            "[[faults]]\nfault = 'wire/cut'\nid = 'a'\n" * 2,
            r"rule 2 \(wire/cut\): id: another rule is named a",
        ),
    ],
)
def test_a_wrong_file_of_rules_is_refused_by_file_rule_and_field(text: str, said: str) -> None:
    with pytest.raises(InvalidRule, match=said):
        rules_at_start({"rules.toml": text})


def test_files_of_rules_have_lengths_as_text() -> None:
    files = {
        "1": "[[faults]]\nfault = 'wire/latency'\nlatency = '1s'\nfor = '1m'\nid = 'mine'",
        "2": "[[faults]]\nfault = 'clock/step'\nstep = '-1h'\nkeep = true",
    }
    assert rules_at_start(files) == [
        parse_rule(
            {"place": "wire", "kind": "latency", "latencyMs": 1000, "durationMs": 60_000, "id": "mine"}
        ),
        parse_rule({"place": "clock", "kind": "step", "stepMs": -3_600_000, "keep": True, "id": "s2"}),
    ]


def test_a_later_process_goes_on_with_what_is_left_of_a_kept_rule(clock: StepClock, tmp_path: Path) -> None:
    file = KeptFile(RealDisk(), f"{tmp_path}/faults.json", f"{tmp_path}/aside")
    faults = Faults(clock)
    faults.begin([], file)
    faults.set(cut(count=3, durationMs=10_000, keep=True, id="mine"))
    faults.set(cut(durationMs=3000, keep=True))
    assert hits(faults, "wire") == 2
    clock.now_s += 4
    faults = Faults(clock)
    faults.begin([], file)
    (state,) = faults.rules()
    assert (state.rule.id, state.hits, state.left_ms) == ("mine", 1, 6000)
    assert [hits(faults, "wire") for _ in range(3)] == [1, 1, 0]
    assert file.read() == []
    faults.set(cut(keep=True, id="cleared"))
    assert [kept.rule.id for kept in file.read()] == ["cleared"]
    faults.clear("cleared")
    assert file.read() == []


def test_a_file_that_says_something_else_of_a_kept_rule_begins_it_again(
    clock: StepClock, tmp_path: Path
) -> None:
    file = KeptFile(RealDisk(), f"{tmp_path}/faults.json", f"{tmp_path}/aside")
    for count, before in ((2, 0), (2, 1), (3, 0)):
        faults = Faults(clock)
        faults.begin([cut(count=count, keep=True, id="s1")], file)
        assert [state.hits for state in faults.rules()] == [before]
        assert hits(faults, "wire") == 1


def test_a_hit_that_cannot_be_written_down_has_no_effect(clock: StepClock, tmp_path: Path) -> None:
    """Else a rule that kills once would kill at each start while the disk is full."""
    faults, directory = Faults(clock), tmp_path / "data"
    directory.mkdir()
    faults.begin([], KeptFile(RealDisk(), f"{directory}/faults.json", f"{directory}/aside"))
    faults.set(cut(count=3, keep=True))
    assert hits(faults, "wire") == 1
    directory.rename(tmp_path / "gone")
    assert hits(faults, "wire") == 0
    (tmp_path / "gone").rename(directory)
    assert [hits(faults, "wire") for _ in range(3)] == [1, 1, 0]
    assert not (directory / "faults.json").exists()


def test_the_last_hit_of_a_rule_that_cannot_be_written_down_is_not_its_end(
    clock: StepClock, tmp_path: Path
) -> None:
    faults, directory = Faults(clock), tmp_path / "data"
    directory.mkdir()
    file = KeptFile(RealDisk(), f"{directory}/faults.json", f"{directory}/aside")
    faults.begin([cut(count=1, keep=True, id="s1")], file)
    directory.rename(tmp_path / "gone")
    assert hits(faults, "wire") == 0
    (tmp_path / "gone").rename(directory)
    assert [state.ended for state in faults.rules()] == [""]
    assert [hits(faults, "wire") for _ in range(2)] == [1, 0]


class ReadOnlyDisk(RealDisk):
    """Takes nothing while `is_read_only`."""

    is_read_only = False

    def replace_file(self, path: str, data: bytes) -> None:
        self._check()
        super().replace_file(path, data)

    def unlink(self, path: str) -> None:
        self._check()
        super().unlink(path)

    def _check(self) -> None:
        if self.is_read_only:
            raise StorageError("read-only file system")


def test_rules_are_cleared_on_a_disk_that_takes_nothing(clock: StepClock, tmp_path: Path) -> None:
    faults, disk = Faults(clock), ReadOnlyDisk()
    file = KeptFile(disk, f"{tmp_path}/faults.json", f"{tmp_path}/aside")
    faults.begin([], file)
    for number in range(3):
        faults.set(cut(keep=True, id=f"r{number}"))
    disk.is_read_only = True
    with pytest.raises(StorageError):
        faults.clear("r0")
    with pytest.raises(StorageError):
        faults.clear_all()
    assert (faults.rules(), hits(faults, "wire")) == ([], 0)
    assert len(file.read()) == 3, "what a start would have"
    disk.is_read_only = False
    assert faults.clear_all() == []
    assert file.read() == []


KEPT = {"rule": {"place": "wire", "kind": "cut", "keep": True, "id": "a", "durationMs": 1000}, "hits": 1}


@pytest.mark.parametrize(
    "rules",
    [
        [KEPT, KEPT],
        [KEPT | {"hits": -1}],
        [KEPT | {"rule": {"place": "wire", "kind": "cut", "keep": True}}],
        [KEPT | {"rule": {"place": "wire", "kind": "cut", "id": "a"}}],
        [KEPT | {"rule": {"place": "topic", "kind": "unload", "id": "a", "topic": "t"}}],
    ],
)
def test_a_file_of_kept_rules_that_makes_no_sense_is_moved_aside(tmp_path: Path, rules: Any) -> None:
    path = tmp_path / "faults.json"
    path.write_text(json.dumps({"formatVersion": 1, "rules": rules}))
    assert KeptFile(RealDisk(), str(path), f"{path}.damaged").read() == []
    assert [file.name for file in tmp_path.iterdir()] == ["faults.json.damaged"]


@pytest.mark.parametrize("ends_ms", [2**63 - 1, 10**400], ids=["int64", "huge"])
def test_a_kept_rule_never_lasts_longer_than_it_says(clock: StepClock, tmp_path: Path, ends_ms: int) -> None:
    """The machine's clock may have been set back since."""
    path = tmp_path / "faults.json"
    path.write_text(json.dumps({"formatVersion": 1, "rules": [KEPT | {"endsMs": ends_ms}]}))
    faults = Faults(clock)
    faults.begin([], KeptFile(RealDisk(), str(path), f"{path}.damaged"))
    assert [state.left_ms for state in faults.rules()] == [1000]


async def test_sleepers_of_a_wrong_clock_wake_when_it_comes_to_their_time() -> None:
    faults = Faults(RealClock())
    clock, machine = FaultyClock(faults), RealClock()
    faults.set(parse_rule({"place": "clock", "kind": "step", "stepMs": -3_600_000, "durationMs": 300}))
    due_ms = machine.now_ms() + 100
    monotonic_s = clock.monotonic_s()
    await clock.sleep_until_ms(due_ms)
    assert machine.now_ms() >= due_ms + 100
    assert 0.2 < clock.monotonic_s() - monotonic_s < WALL_CHECK_SECONDS
    assert abs(clock.now_ms() - machine.now_ms()) < 100
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clock.sleep_until_ms, clock.now_ms() + 1_000_000)
        await trio.testing.wait_all_tasks_blocked()
        monotonic_s = clock.monotonic_s()
        faults.set(parse_rule({"place": "clock", "kind": "step", "stepMs": 2_000_000}))
    assert clock.monotonic_s() - monotonic_s < WALL_CHECK_SECONDS - 1


def test_after_and_count_hit_a_range(faults: Faults) -> None:
    faults.set(cut(after=2, count=3))
    assert [hits(faults, "wire") for _ in range(8)] == [0, 0, 1, 1, 1, 0, 0, 0]
    (state,) = faults.rules()
    assert (state.hits, state.calls, state.ended) == (3, 5, "count")


def test_a_rule_ends_at_its_duration_and_its_door_costs_nothing_again(
    faults: Faults, clock: StepClock
) -> None:
    faults.set(cut(durationMs=1000))
    clock.now_s += 0.999
    assert hits(faults, "wire") == 1
    assert faults.rules()[0].left_ms == 1
    clock.now_s += 0.001
    assert hits(faults, "wire") == 0
    assert faults.doors["wire"].armed == ()
    assert faults.rules()[0].ended == "duration"
    assert list(faults.in_force()) == []
    assert list(faults.hits()) == [("wire", "cut", 1)]


def test_hits_of_rules_that_are_gone_still_count(faults: Faults) -> None:
    """A counter on /metrics that went back would look like a restart."""
    for count in (2, 3):
        rule = faults.set(cut(count=count))
        assert sum(hits(faults, "wire") for _ in range(5)) == count
        faults.clear(rule.rule.id)
    assert list(faults.hits()) == [("wire", "cut", 5)]


def test_a_seed_hits_the_same_operations(clock: StepClock) -> None:
    def course(seed: int, after: int = 0) -> list[int]:
        faults = Faults(clock)
        faults.set(cut(probability=0.3, seed=seed, after=after))
        return [hits(faults, "wire") for _ in range(100)]

    assert course(1) == course(1) != course(2)
    assert 15 <= sum(course(1)) <= 45
    assert course(1, after=10)[10:] == course(1)[:90]


@pytest.mark.parametrize(
    ("fields", "hit", "passed"),
    [
        ({"client": "10.0.0.1"}, {"client": "10.0.0.1:5"}, {"client": "10.0.0.11:5"}),
        ({"client": "10.0.0.1:5"}, {"client": "10.0.0.1:5"}, {"client": "10.0.0.1:6"}),
        ({"version": "Pulsar-CPP"}, {"version": "Pulsar-CPP-v3"}, {"version": "Pulsar-Java"}),
        ({"command": "SEND"}, {"command": "SEND"}, {"command": "SEND_RECEIPT"}),
        ({"direction": "in"}, {"direction": "in"}, {"direction": "out"}),
    ],
)
def test_selectors(faults: Faults, fields: Any, hit: Any, passed: Any) -> None:
    faults.set(cut(**fields))
    assert (hits(faults, "wire", **hit), hits(faults, "wire", **passed)) == (1, 0)


def test_topics_are_selected_whole_or_by_their_beginning(faults: Faults) -> None:
    faults.set(parse_rule({"place": "bucket", "kind": "fail", "topic": "persistent://a/b/c"}))
    faults.set(parse_rule({"place": "bucket", "kind": "fail", "topic": "persistent://x/*"}))
    found = [
        hits(faults, "bucket", topic=f"persistent://{name}") for name in ("a/b/c", "a/b/cd", "x/y/z", "y")
    ]
    assert found == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("given", "full", "hit"),
    [
        ("orders", "persistent://public/default/orders", "persistent://public/default/orders"),
        ("orders", "persistent://public/default/orders", "persistent://public/default/orders-partition-3"),
        ("a/b/c", "persistent://a/b/c", "persistent://a/b/c"),
        ("ord*", "persistent://public/default/ord*", "persistent://public/default/orders"),
        ("a/b/*", "persistent://a/b/*", "persistent://a/b/c"),
        ("persistent://a/*", "persistent://a/*", "persistent://a/b/c"),
        ("*", "*", "persistent://a/b/c"),
    ],
)
def test_short_names_of_topics_are_those_of_public_default(
    faults: Faults, given: str, full: str, hit: str
) -> None:
    rule = parse_rule({"place": "bucket", "kind": "fail", "topic": given})
    faults.set(rule)
    assert (rule.topic, hits(faults, "bucket", topic=hit)) == (full, 1)
    assert hits(faults, "bucket", topic="persistent://x/default/orders") == (given == "*")
    is_beginning = given.endswith("*") and given[:-1] in "orders"
    others = (
        "persistent://public/default/orders-partition-b",
        "persistent://public/default/orders-partition-",
    )
    assert [hits(faults, "bucket", topic=name) for name in others] == [is_beginning] * 2


def test_metadata_is_selected_by_the_beginning_of_a_path(faults: Faults) -> None:
    faults.set(parse_rule({"place": "metadata", "kind": "refused", "path": "/tenants"}))
    assert [hits(faults, "metadata", path=path) for path in ("/tenants/a", "/x/tenants")] == [1, 0]


def test_a_cleared_rule_hits_no_more_and_is_gone(faults: Faults) -> None:
    faults.set(cut(id="mine"))
    with pytest.raises(InvalidRule, match="id: a rule mine is in force"):
        faults.set(cut(id="mine"))
    assert hits(faults, "wire") == 1
    assert faults.clear("mine").hits == 1
    assert hits(faults, "wire") == 0
    with pytest.raises(NoSuchRule, match="there is no rule 'mine'"):
        faults.clear("mine")
    assert list(faults.hits()) == [("wire", "cut", 1)]


def test_there_are_a_hundred_rules_at_most_and_ended_ones_make_room(faults: Faults) -> None:
    first = faults.set(cut(count=1)).rule.id
    for _ in range(RULES_MAX - 1):
        faults.set(cut(client="10.0.0.9"))
    with pytest.raises(TooManyRules, match="100 rules are in force"):
        faults.set(cut())
    assert hits(faults, "wire") == 1
    faults.set(cut())
    assert first not in [state.rule.id for state in faults.rules()]
    assert len(faults.rules()) == RULES_MAX


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_frames_are_cut_wherever_reads_end(step: int) -> None:
    frames = [encoder.ping(), encoder.pong(), encoder.ping()]
    stream, cutter = b"".join(bytes(frame) for frame in frames), Frames()
    pieces = [piece for at in range(0, len(stream), step) for piece in cutter.cut(stream[at : at + step])]
    assert b"".join(piece.data for piece in pieces) + cutter.rest() == stream
    assert [piece.command for piece in pieces if piece.is_first] == ["PING", "PONG", "PING"]


def test_bytes_that_are_no_frame_pass_and_the_next_read_is_understood() -> None:
    cutter = Frames()
    assert [piece.command for piece in cutter.cut(b"\xff" * 20)] == [""]
    assert [piece.command for piece in cutter.cut(bytes(encoder.ping()))] == ["PING"]
