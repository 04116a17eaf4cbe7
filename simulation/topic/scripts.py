"""What a topic is made to do in the campaign: fixed scripts for every way of letting go, and lives by seed.

A script is a coroutine on a `TopicWorld`. They are short, so that the power can go at each operation in turn.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio

from simulation.topic.life import TopicLife, living
from simulation.topic.world import SMALL_TOPIC, TopicWorld

Script = Callable[[TopicWorld], Awaitable[None]]
HOUR_MS: Final = 3_600_000


async def trimming(world: TopicWorld) -> None:
    """Two subscriptions consume, one behind the other, with holes; ledgers go as the slower one passes."""
    async with living(world) as life:
        for name in ("fast", "slow"):
            await life.subscribe(name)
        places = await life.publish(14)
        life.acknowledge("fast", places)
        life.acknowledge("slow", [*places[:6], places[9]])
        assert await life.trim() == 1
        await life.flush()
        await life.persist("slow")
        life.acknowledge("slow", places[6:9])
        assert await life.trim() == 1
        await life.bookie.collect_garbage()
        await life.publish(3)
        life.acknowledge_up_to("slow", places[12])
        await life.trim()
        await life.flush()


async def expiring(world: TopicWorld) -> None:
    """A TTL moves mark-delete over holes and whole ledgers; what has expired is trimmed."""
    async with living(world, close=False) as life:
        await life.subscribe("a")
        places = await life.publish(6)
        life.acknowledge("a", [places[2], places[4]])
        await life.pass_ms(HOUR_MS)
        await life.publish(5)
        await life.expire("a", HOUR_MS // 2)
        await trio.sleep(1)
        assert await life.trim() == 1
        await life.pass_ms(HOUR_MS)
        await life.expire("a", HOUR_MS // 2)
        await life.persist("a")
        await life.trim()
        await life.flush()


async def retaining(world: TopicWorld) -> None:
    """Consumed ledgers stay for a time, and up to a size; then they go, without a subscription too."""
    settings = msgspec.structs.replace(SMALL_TOPIC, retention_time_ms=HOUR_MS, retention_size_bytes=1000)
    async with living(world, settings=settings) as life:
        await life.subscribe("a")
        places = await life.publish(9)
        life.acknowledge("a", places)
        await life.persist("a")
        assert not await life.trim()
        await life.pass_ms(2 * HOUR_MS)
        assert await life.trim() == 2
        for _ in range(6):
            await life.publish(4)
        await life.unsubscribe("a")
        assert await life.trim()
        await life.flush()


async def deleting(world: TopicWorld) -> None:
    """A topic goes with its subscriptions and their ledgers, is made again, and goes again."""
    async with living(world, close=False) as life:
        for name in ("a", "b"):
            await life.subscribe(name)
        places = await life.publish(9)
        for place in places[:4]:
            life.acknowledge("a", [place])
            await life.persist("a")
        await life.flush()
        await life.ledger.life.set_properties({"owner": "somebody"})
        await life.delete()
        await life.load()
        await life.subscribe("a")
        await life.publish(2)
        await life.delete()
        await life.flush()
    async with living(world) as life:
        await life.publish(2)


async def unsubscribing(world: TopicWorld) -> None:
    """Subscriptions go while another one writes on, and come again under the same name."""
    async with living(world, close=False) as life:
        places = await life.publish(9)
        for name in ("a", "b"):
            await life.subscribe(name)
            life.acknowledge(name, places[1:3])
            await life.persist(name)
        await life.unsubscribe("a")
        for place in places[3:8]:
            life.acknowledge("b", [place])
            await life.persist("b")
        await life.subscribe("a", "latest")
        life.acknowledge("b", places)
        await life.trim()
        await life.unsubscribe("b")
        await life.unsubscribe("a")
        await life.trim()
        await life.flush()


async def delaying(world: TopicWorld, *, is_shared: bool = False) -> None:
    """Delayed entries are sealed in buckets, which are merged, delivered, and deleted; over a restart."""
    async with living(world, close=False) as life:
        await life.subscribe("a")
        delay = await life.delay("a", is_shared=is_shared)
        await delay.seal(await life.publish(3, due_ms=world.clock.ms + 100))
        await life.pass_ms(100)
        life.acknowledge("a", await delay.take_due())
        await delay.settled()
        for after_ms in (300, 1000, 200, 600):
            await delay.seal(await life.publish(4, due_ms=world.clock.ms + after_ms))
        await life.pass_ms(400)
        life.acknowledge("a", await delay.take_due())
        await life.persist("a")
        await delay.settled()
        await life.trim()
    async with living(world) as life:
        delay = await life.delay("a", is_shared=is_shared)
        await delay.seal(await life.publish(2, due_ms=world.clock.ms + 5000))
        await life.pass_ms(700)
        life.acknowledge("a", await delay.take_due())
        await delay.settled()
        await life.trim()
        await life.flush()


async def sharing(world: TopicWorld) -> None:
    """The same with the topic's own index: its record names the buckets."""
    await delaying(world, is_shared=True)


async def dropping_delayed(world: TopicWorld) -> None:
    """Subscription and topic go while buckets are named."""
    async with living(world, close=False) as life:
        await life.subscribe("a")
        await life.subscribe("b")
        delay = await life.delay("a")
        for _ in range(2):
            await delay.seal(await life.publish(4, due_ms=world.clock.ms + HOUR_MS))
        await life.unsubscribe("a")
        delay = await life.delay("b")
        await delay.seal(await life.publish(3, due_ms=world.clock.ms + HOUR_MS))
        await life.flush()
        await life.delete()
        await life.load()
        await life.publish(1)


async def truncating(world: TopicWorld) -> None:
    """Everything goes at once, though it is retained, delayed, and not consumed."""
    settings = msgspec.structs.replace(SMALL_TOPIC, retention_time_ms=-1, retention_size_bytes=-1)
    async with living(world, settings=settings) as life:
        await life.publish(6)
        await life.subscribe("a")
        await life.subscribe("b")
        delay = await life.delay("a")
        await delay.seal(await life.publish(4, due_ms=world.clock.ms + HOUR_MS))
        life.acknowledge("b", list(life.truth.receipts)[1:3])
        await life.truncate()
        await life.publish(5)
        await delay.settled()
        await life.flush()
        await life.truncate()
        await life.flush()


async def unloading(world: TopicWorld) -> None:
    """Closed and opened again and again, with and without entries in between; then terminated."""
    async with living(world) as life:
        await life.subscribe("a")
        for count in (0, 3, 0, 5):
            places = await life.publish(count)
            life.acknowledge("a", places[:-1])
            await life.unload()
            await life.load()
        await life.trim()
        await life.publish(2)
        await life.terminate()
        life.acknowledge_up_to("a", life.ledger.last_confirmed)
        await life.trim()
        await life.flush()


async def crowding(world: TopicWorld) -> None:
    """Publishing, acknowledging, trimming, flushing and collecting at the same time."""
    async with living(world) as life:
        await life.subscribe("a")
        await life.subscribe("b")

        async def publish() -> None:
            for count in (3, 1, 5, 2):
                places = await life.publish(count)
                life.acknowledge("a", places)
                life.acknowledge("b", places[:-1] if count == 5 else places)

        async def let_go() -> None:
            for _ in range(4):
                await life.trim()
                await life.flush()
                await life.bookie.collect_garbage()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            nursery.start_soon(let_go)
        await life.bookie.compact(0.9)


SCRIPTS: Final[dict[str, Script]] = {
    script.__name__: script
    for script in (
        trimming,
        expiring,
        retaining,
        deleting,
        unsubscribing,
        delaying,
        sharing,
        dropping_delayed,
        truncating,
        unloading,
        crowding,
    )
}

ACTIONS: Final = (
    "publish",
    "publish",
    "acknowledge",
    "acknowledge",
    "persist",
    "trim",
    "truncate",
    "expire",
    "subscribe",
    "unsubscribe",
    "flush",
    "collect",
    "unload",
    "delete",
    "time",
    "settings",
)
RETENTIONS: Final = ((0, 0), (HOUR_MS, -1), (-1, 500), (HOUR_MS, 800), (-1, -1))


def random_life(chance: random.Random) -> Script:
    """One life: some actions often, some never, as this life has it; its end in order or not."""
    weights = [chance.choice((0, 1, 1, 4)) for _ in ACTIONS]
    weights[0] += 1
    steps = chance.randrange(5, 30)

    async def life_of(world: TopicWorld) -> None:
        async with living(world, close=chance.random() < 0.5) as life:
            for _ in range(steps):
                await _act(life, chance.choices(ACTIONS, weights)[0], chance)

    return life_of


REMINDERS: Final = ("remind", "remind", "jump", "take", "take", "tick", "persist", "trim", "flush", "unload")
DELAYS_MS: Final = (1, 50, 1000, HOUR_MS, 30 * 24 * HOUR_MS)


def random_reminders(chance: random.Random) -> Script:
    """One life of a subscription with delayed entries, from milliseconds to months ahead, and jumps."""
    weights = [chance.choice((1, 1, 3)) for _ in REMINDERS]
    steps = chance.randrange(5, 25)

    async def life_of(world: TopicWorld) -> None:
        # By the world, as an index does not change hands between two lives.
        is_shared = world.seed % 2 == 1
        async with living(world, close=chance.random() < 0.5) as life:
            await life.subscribe("a")
            await life.delay("a", is_shared=is_shared)
            for _ in range(steps):
                await _remind(life, chance.choices(REMINDERS, weights)[0], chance, is_shared=is_shared)

    return life_of


async def _remind(life: TopicLife, kind: str, chance: random.Random, *, is_shared: bool) -> None:
    clock, length_ms = life.world.clock, chance.choice(DELAYS_MS)
    if kind == "remind":
        due_ms = clock.ms + chance.randrange(length_ms + 1)
        await life.delays["a"].seal(await life.publish(chance.randrange(1, 6), due_ms=due_ms))
    elif kind == "jump":
        await life.pass_ms(chance.randrange(1, length_ms + 1))
    elif kind == "tick":
        clock.pass_ms(chance.choice((1, 50)))
    elif kind == "take":
        delay = life.delays["a"]
        # Ticks wake nothing by themselves.
        delay.buckets.poke()
        life.acknowledge("a", await delay.take_due())
        await delay.settled()
    elif kind == "persist":
        await life.persist("a")
    else:
        await getattr(life, kind)()
        if kind == "unload":
            await life.load()
            await life.delay("a", is_shared=is_shared)


async def _act(life: TopicLife, kind: str, chance: random.Random) -> None:
    names = list(life.ledger.cursors)
    if kind == "publish":
        await life.publish(chance.randrange(1, 7), size=chance.choice((1, 60, 400)))
    elif kind == "time":
        length_ms = chance.choice((1, HOUR_MS // 3, 2 * HOUR_MS))
        # A clock that jumps ticks as well.
        if chance.random() < 0.3:
            life.world.clock.pass_ms(length_ms)
        else:
            await life.pass_ms(length_ms)
    elif kind == "settings":
        time_ms, size_bytes = chance.choice(RETENTIONS)
        settings = life.ledger.settings
        life.ledger.apply(
            msgspec.structs.replace(settings, retention_time_ms=time_ms, retention_size_bytes=size_bytes)
        )
    elif kind in ("trim", "truncate", "flush", "unload", "delete", "collect"):
        if kind == "collect":
            await life.bookie.collect_garbage()
            await life.bookie.compact(chance.choice((0.5, 0.9)))
        else:
            await getattr(life, kind)()
        if kind in ("unload", "delete"):
            await life.load()
    elif kind == "subscribe" or not names:
        await life.subscribe(chance.choice("abc"), chance.choice(("earliest", "latest")))
    else:
        await _consume(life, kind, chance.choice(names), chance)


async def _consume(life: TopicLife, kind: str, name: str, chance: random.Random) -> None:
    places = list(life.truth.receipts)
    if kind == "acknowledge":
        some = chance.sample(places, min(len(places), chance.randrange(1, 6)))
        if chance.random() < 0.5:
            life.acknowledge(name, some)
        elif some:
            life.acknowledge_up_to(name, max(some))
    elif kind == "persist":
        await life.persist(name)
    elif kind == "expire":
        await life.expire(name, chance.choice((0, HOUR_MS)))
    else:
        await life.unsubscribe(name)


__all__ = ["SCRIPTS", "Script", "random_life", "random_reminders"]
