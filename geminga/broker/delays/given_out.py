"""Which entries of a subscription are on their way, so that its index need not hold them."""

from __future__ import annotations

from typing import Final, Protocol

from pyroaring import BitMap


class Books(Protocol):
    """A dispatcher's books of what is pending at consumers and of what is to be sent again."""

    def holds(self, ledger_id: int, entry_id: int) -> bool: ...

    def held_of(self, ledger_id: int) -> BitMap: ...


class _Closed:
    """Nothing was sent yet."""

    def holds(self, ledger_id: int, entry_id: int) -> bool:
        return False

    def held_of(self, ledger_id: int) -> BitMap:
        return BitMap()


# An object and not None: the index asks for each entry that another subscription adds.
NO_BOOKS: Final = _Closed()


class GivenOut:
    """Answers from the books of the dispatcher that served last. A subscription has one dispatcher after the
    other, by the type of its consumers, and its index outlives them: so the index asks here.
    """

    __slots__ = ("_books",)

    def __init__(self) -> None:
        self._books: Books = NO_BOOKS

    def follow(self, books: Books) -> None:
        """A dispatcher with these books serves from now on."""
        # One step of indirection, so that an index that lives through several dispatchers is never given
        # another call-back.
        self._books = books

    def has(self, ledger_id: int, entry_id: int) -> bool:
        """Whether an entry is with a consumer, or to be sent again."""
        return self._books.holds(ledger_id, entry_id)

    def of_ledger(self, ledger_id: int) -> BitMap:
        """Which entries of a ledger are."""
        return self._books.held_of(ledger_id)
