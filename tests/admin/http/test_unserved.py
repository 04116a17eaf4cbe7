"""What was asked in vain is counted by what it was about, in bounded memory."""

from __future__ import annotations

from geminga.admin.http.unserved import KINDS_MAX, TEXT_MAX, Unserved


def test_names_of_objects_are_left_out_so_that_one_kind_is_one_row() -> None:
    unserved = Unserved()
    for number in range(3):
        unserved.count("GET", ["admin", "v2", "persistent", "t", f"n{number}", "topic", "nothing"], 501)
    unserved.count("PUT", ["admin", "v2", "tenants"], 405)
    assert unserved.rows() == [
        {
            "method": "GET",
            "path": "/admin/v2/persistent/{tenant}/{namespace}/{topic}/nothing",
            "status": 501,
            "count": 3,
        },
        {"method": "PUT", "path": "/admin/v2/tenants", "status": 405, "count": 1},
    ]


def test_a_flood_of_paths_finds_no_more_room() -> None:
    unserved = Unserved()
    for number in range(KINDS_MAX + 10):
        unserved.count("GET", ["lookup", f"{number}", "x" * 500], 501)
    assert len(unserved.rows()) == KINDS_MAX
    assert unserved.others == 10
    assert max(len(str(row["path"])) for row in unserved.rows()) <= TEXT_MAX + 1


def test_a_kind_that_has_a_row_goes_on_counting_when_there_is_no_room() -> None:
    unserved = Unserved()
    for number in range(KINDS_MAX + 1):
        unserved.count("GET", ["lookup", str(number)], 501)
    unserved.count("GET", ["lookup", "0"], 501)
    assert unserved.rows()[0]["count"] == 2
