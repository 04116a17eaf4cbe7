"""How a path becomes a RocksDB key.

    key = depth (u8) | path (UTF-8)          "/tenants/public" -> b"\\x02/tenants/public"

The depth comes first so that the direct children of a node lie side by side, however much lies below them:
listing 10 topics with 10,000 cursors each reads 10 rows. A subtree is one such range per depth.
"""

from __future__ import annotations

# The depth is one byte of the key and bounds the ranges that reading a subtree takes.
DEPTH_MAX = 16
PATH_BYTES_MAX = 64 * 1024
"""The limit of a path: a topic's and a subscription's longest names fit, percent-encoded."""


def key_of(path: str) -> bytes:
    """The key of a node. Asserts that the path has a leading slash and no empty component."""
    depth = path.count("/")
    encoded = path.encode()
    assert encoded.startswith(b"/"), path[:200]
    assert not encoded.endswith(b"/"), path[:200]
    assert b"//" not in encoded, path[:200]
    assert depth <= DEPTH_MAX, path[:200]
    assert len(encoded) <= PATH_BYTES_MAX, path[:200]
    return bytes((depth,)) + encoded


def path_of(key: bytes) -> str:
    return key[1:].decode()


def children_range(path: str) -> tuple[bytes, bytes]:
    """[start, end) of the keys of the direct children of `path`; "/" is the root."""
    if path == "/":
        return b"\x01/", b"\x010"
    key = key_of(path)
    prefix = bytes((key[0] + 1,)) + key[1:]
    # "0" is the byte after "/".
    return prefix + b"/", prefix + b"0"


def everything() -> tuple[bytes, bytes]:
    """[start, end) of all nodes."""
    return b"\x01", bytes((DEPTH_MAX + 1,))
