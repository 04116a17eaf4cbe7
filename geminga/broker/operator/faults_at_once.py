"""Faults that act once, when their rule is set: on topics, cursors and buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from geminga.broker.operator.delayed_looks import Looked
from geminga.chaos.bucket_damage import Damage, damage_bucket
from geminga.chaos.rules.killing import pause
from geminga.chaos.rules.places import kind_of
from geminga.errors import PeerError, StorageError
from geminga.names import TopicName

if TYPE_CHECKING:
    from geminga.broker.topic.topics import Topics
    from geminga.chaos.rules.rule import Rule
    from geminga.tracker.buckets.buckets import Buckets


class NothingThere(PeerError):
    """The rule selects a bucket or a property that does not exist."""

    http_status = 404


def acts_at_once(rule: Rule) -> bool:
    return kind_of(rule).at_once


async def act(rule: Rule, topics: Topics) -> None:
    """Do what the rule says. Raises PeerError, StorageError; some of several buckets may be damaged then."""
    if rule.place == "process":
        pause(rule.latency_ms)
        return
    name = TopicName.parse(rule.topic)
    if (rule.place, rule.kind) == ("topic", "unload"):
        await topics.unload(name)
        return
    topic = await topics.get(name, create=False)
    if rule.place == "topic":
        topic.ledger.fence(StorageError("fenced by a rule of faults (injected)"))
        return
    looked = Looked(topic, topic.subscription(rule.subscription), None)
    if rule.place == "cursor":
        await _lose_properties(looked, rule.name)
    else:
        await _damage(looked, rule)


async def _lose_properties(looked: Looked, name: str) -> None:
    from geminga.broker.delays.open_index import CursorOwner, TopicOwner

    is_shared = looked.topic.delays.settings.is_shared
    owner = TopicOwner(looked.topic.ledger) if is_shared else CursorOwner(looked.subscription.cursor)
    held: Mapping[str, int] = owner.properties()
    lost = {key: value for key, value in held.items() if name in ("", key)}
    if not lost:
        raise NothingThere(f"there is no such property; there are {', '.join(sorted(held)) or 'none'}")
    await owner.swap({}, lost)


async def _damage(looked: Looked, rule: Rule) -> None:
    buckets = looked.buckets_to_be
    chosen = [] if buckets is None or not buckets.keeps else selected(buckets, rule.which, rule.ledger_id)
    if buckets is None or not chosen:
        raise NothingThere("there is no such bucket: 'geminga delayed buckets' lists those there are")
    how: Damage = cast("Damage", rule.kind)
    for ledger_id in chosen:
        await damage_bucket(buckets, how, ledger_id, quietly=rule.quietly)


def selected(buckets: Buckets, which: str, ledger_id: int) -> Sequence[int]:
    """Ledgers of the buckets that a rule is about: the one named; else all, or the first or last by due time
    (the first without a choice).
    """
    if ledger_id >= 0:
        return [bucket.ledger_id for bucket in buckets.stored if bucket.ledger_id == ledger_id]
    by_due = sorted(buckets.stored, key=lambda bucket: int(bucket.directory.min_ms.min()))
    if which == "all":
        return [bucket.ledger_id for bucket in by_due]
    return [bucket.ledger_id for bucket in (by_due[-1:] if which == "last" else by_due[:1])]
