"""How a level of the admin API serves a policy: the parts of the rows in `table.py` and `inert.py`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Empty = Literal["unset", "keep", "zero", "refuse"]
UNSET_SHOWN = None


class Endpoint(NamedTuple):
    """How one level of the admin API serves a policy."""

    path: str
    """The path after the namespace's or the topic's own path."""
    method: str = "POST"
    empty: Empty = "unset"
    """How a body of `null` is treated; "zero" and "refuse" do not accept an empty body either."""
    negative: str = ""
    """The text for a number below 0; if empty, the number is accepted."""
    unset: object = UNSET_SHOWN
    """The answer of GET while nothing is set; None: no body."""
    unset_status: int = 200
    applied: object = None
    """A topic's answer to GET for the effective value, while no level has set it and the policy has no
    effect here.
    """
    removable: bool = True
    remove_path: str = ""
    """The path of DELETE, if it differs from `path`."""
    readable: bool = True
    status: int = 204
    """The status of a successful change."""
    refusal: str = ""
    """The text (412) for an empty body or `null`."""
    removed: object = None
    """The value that DELETE sets; None: DELETE removes the value."""
    fixed: object = None
    """The value that a change sets, whatever its body is; None: the body."""


class Policy(NamedTuple):
    """One policy. `name` is the attribute of `EffectivePolicies` and the key in a topic's record."""

    name: str
    kind: Any
    keys: tuple[str, ...] = ()
    """The keys in a namespace's record; for a rate, each key has a value for every cluster."""
    is_rate: bool = False
    namespace: Endpoint | None = None
    topic: Endpoint | None = None
    member: str = ""
    """The policy is one member of the object at its key; `whole` has the values of the other members."""
    whole: Any = None
    acted_upon: bool = True
    """Whether the policy has an effect in this broker."""
    warning: str = ""
    """How the effect of any value but 0 differs from Pulsar's, if it does: ASCII without quotes."""
    is_own: bool = False
    """Whether the policy is Geminga's own, and served below `/geminga/policies` instead of `/admin/v2`."""


def count_endpoint(
    path: str, text: str = "", *, unset: object = UNSET_SHOWN, empty: Empty = "zero"
) -> Endpoint:
    return Endpoint(path, empty=empty, negative=text or f"{path} must be 0 or more", unset=unset)
