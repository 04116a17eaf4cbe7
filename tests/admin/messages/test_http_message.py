"""Whatever a producer wrote, its headers are headers: ISO 8859-1, no line breaks, not too many bytes."""

from __future__ import annotations

import json

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.admin.messages.http_message import HEADER_BYTES_MAX, METADATA_BYTES_MAX, http_message
from geminga.position import Position
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.message_metadata import stamp

PLACE = Position(3, 4)


def entry(metadata: pb.MessageMetadata | bytes, payload: bytes = b"payload") -> bytes:
    head = metadata if isinstance(metadata, bytes) else metadata.SerializeToString()
    return stamp(1_700_000_000_123) + b"\x0e\x01\0\0\0\0" + len(head).to_bytes(4, "big") + head + payload


def metadata(**fields: object) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        **{"producer_name": "p", "sequence_id": 0, "publish_time": 1_700_000_000_000, **fields}
    )


async def headers_of(found: pb.MessageMetadata | bytes) -> dict[str, str]:
    return dict(http_message(PLACE, entry(found)).headers)


def check_headers(headers: object) -> None:
    """What goes onto the wire, or h11 raises."""
    h11.Response(status_code=200, headers=[(n.encode("ascii"), v.encode("latin-1")) for n, v in headers])
    assert sum(len(n) + len(v) for n, v in headers) <= HEADER_BYTES_MAX + 1000


async def test_the_brokers_stamp_and_the_place_are_shown():
    headers = await headers_of(metadata())
    assert headers["X-Pulsar-Message-ID"] == "3:4"
    assert headers["X-Pulsar-Broker-Entry-METADATA-timestamp"] == "2023-11-14T22:13:20.123Z"


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "+10000-01-01T00:00:00Z"),
        (2**63 - 1, "+292278994-08-17T07:12:55.807Z"),
        # Below 0 as Java reads them.
        (2**64 - 1, "1969-12-31T23:59:59.999Z"),
        (2**64 - 62_135_596_800_001, "0000-12-31T23:59:59.999Z"),
        (2**64 - 62_167_219_200_001, "-0001-12-31T23:59:59.999Z"),
        (2**64 - 2**62, "-146136543-09-08T08:23:32.096Z"),
    ],
)
async def test_times_go_as_far_as_javas(time_ms, text):
    assert (await headers_of(metadata(publish_time=time_ms)))["X-Pulsar-publish-time"] == text


async def test_texts_that_are_no_header_become_one():
    headers = await headers_of(
        metadata(partition_key="a\r\nSet-Cookie: x", producer_name="漢ö", uuid="\x00\x1f u ")
    )
    assert headers["X-Pulsar-partition-key"] == "a  Set-Cookie: x"
    assert headers["X-Pulsar-producer-name"] == "?ö"
    assert headers["X-Pulsar-uuid"] == "u"


async def test_properties_are_ascii_json():
    found = metadata()
    found.properties.add(key="é漢\n", value='"x"')
    text = (await headers_of(found))["X-Pulsar-PROPERTY"]
    assert text.isascii()
    assert json.loads(text) == {"é漢\n": '"x"'}


async def test_a_header_that_is_too_long_is_left_out_and_named():
    found = metadata()
    found.properties.add(key="k", value="v" * 100_000)
    message = http_message(PLACE, entry(found))
    headers = dict(message.headers)
    assert "X-Pulsar-PROPERTY" not in headers
    assert headers["Warning"] == '299 geminga "too large for a header: X-Pulsar-PROPERTY"'
    assert headers["X-Pulsar-producer-name"] == "p"
    assert message.stored == b"payload"
    check_headers(message.headers)


@pytest.mark.parametrize(
    "head", [b"\xff" * 20, metadata(uuid="u" * METADATA_BYTES_MAX).SerializeToString()], ids=["bad", "large"]
)
async def test_metadata_that_cannot_be_shown_leave_the_bytes_of_the_entry(head):
    body = entry(head)
    message = http_message(PLACE, body)
    assert message.stored == body
    assert [name for name, _ in message.headers] == ["X-Pulsar-Message-ID", "Warning"]
    check_headers(message.headers)


async def test_an_entry_that_ends_too_soon_is_shown_as_it_is():
    for body in (b"", b"\x0e", b"\x0e\x01\0\0\0\0\0\0\0\xff", b"\x0e\x02\xff\xff\xff\xff"):
        assert http_message(PLACE, body).stored == body


texts = st.text(max_size=30)


@given(
    key=texts,
    name=texts,
    times=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2),
    blob=st.binary(max_size=30),
    clusters=st.lists(texts, max_size=5),
)
def test_any_metadata_make_headers(key, name, times, blob, clusters):
    from geminga.admin.messages.http_message import _fitting, _headers

    found = metadata(
        partition_key=key,
        producer_name=name,
        publish_time=times[0],
        event_time=times[1],
        ordering_key=blob,
        replicate_to=clusters,
        encryption_algo=key,
    )
    check_headers(_fitting(_headers(PLACE, entry(found), found)))
