"""How a level of the admin API serves a policy: the rows of `table.py` and `inert.py` are made of these."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Empty = Literal["unset", "keep", "zero", "refuse"]
UNSET_SHOWN = None


class Endpoint(NamedTuple):
    """How one level of the admin API serves a policy."""

    path: str
    """Behind the namespace's or the topic's own path."""
    method: str = "POST"
    empty: Empty = "unset"
    """What a body of `null` does; "zero" and "refuse" take no empty body either."""
    negative: str = ""
    """What is said to a number below 0; nothing: it is taken."""
    unset: object = UNSET_SHOWN
    """What GET answers while nothing is set; None: no body."""
    unset_status: int = 200
    applied: object = None
    """What a topic's GET answers for what holds, while no level has set it and nothing here goes by it."""
    removable: bool = True
    remove_path: str = ""
    """Where DELETE is, if not at `path`."""
    readable: bool = True
    status: int = 204
    """Of a change that was made."""
    refusal: str = ""
    """What is said (412) to an empty body or `null`."""
    removed: object = None
    """What DELETE sets; None: nothing is set any more."""
    fixed: object = None
    """What a change sets, whatever its body; None: the body."""


class Policy(NamedTuple):
    """One policy. `name` is the attribute of `EffectivePolicies` and the key in a topic's record."""

    name: str
    kind: Any
    keys: tuple[str, ...] = ()
    """In a namespace's record; of a rate each holds a value for every cluster."""
    is_rate: bool = False
    namespace: Endpoint | None = None
    topic: Endpoint | None = None
    member: str = ""
    """It is one member of the object at its key, with what `whole` has for the others."""
    whole: Any = None
    acted_upon: bool = True
    """Whether anything in this broker goes by it."""
    is_own: bool = False
    """Not Pulsar's: it is served below `/geminga/policies`, not below `/admin/v2`."""


def count_endpoint(
    path: str, text: str = "", *, unset: object = UNSET_SHOWN, empty: Empty = "zero"
) -> Endpoint:
    return Endpoint(path, empty=empty, negative=text or f"{path} must be 0 or more", unset=unset)
