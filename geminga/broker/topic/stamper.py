"""The broker's stamp for the entries that it receives."""

from __future__ import annotations

from geminga.clock import Clock
from geminga.wire.message_metadata import stamp, virtual_stamp


class Stamper:
    """Makes stamps of a clock's time. Entries come in bursts, so a stamp is kept for its millisecond."""

    __slots__ = ("_clock", "_made", "_now_ms", "_stamp")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made = virtual_stamp if clock.is_virtual else stamp
        self._now_ms = -1
        self._stamp = b""

    def now(self) -> bytes:
        """The bytes to prepend to an entry that is received now."""
        now_ms = self._clock.now_ms()
        if now_ms != self._now_ms:
            self._stamp = self._made(now_ms)
            self._now_ms = now_ms
        return self._stamp
