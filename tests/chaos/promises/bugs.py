"""Bugs for the broker, each with the shipped scenario that has to find it."""

from __future__ import annotations

from typing import NamedTuple

from tests.mutants.mutant import Mutant

APPENDER = "geminga/managed_ledger/chain/appender.py"
CONSUMER = "geminga/broker/dispatch/consumer.py"
CURSOR = "geminga/managed_ledger/cursor/cursor.py"
ACKNOWLEDGMENTS = "geminga/managed_ledger/cursor/acknowledgments.py"
DEDUP = "geminga/broker/topic/dedup.py"
DELAYING = "geminga/broker/dispatch/delaying.py"
DELAYS = "geminga/broker/delays/subscription_delays.py"
DISPATCHER = "geminga/broker/dispatch/dispatcher.py"
HASH_RANGES = "geminga/broker/dispatch/hash_ranges.py"
JUMPS = "geminga/broker/jumps/jumps.py"
KEY_SHARED = "geminga/broker/dispatch/key_shared.py"
PRODUCER = "geminga/broker/topic/producer.py"
PUBLISHING = "geminga/broker/topic/publishing.py"
READER = "geminga/broker/dispatch/reader.py"
REPLAY = "geminga/broker/dispatch/replay.py"
SEND = "geminga/broker/dispatch/send.py"
SUBSCRIPTION = "geminga/broker/subscription/subscription.py"
UNACKED = "geminga/broker/dispatch/unacked.py"


class Bug(NamedTuple):
    name: str
    area: str
    path: str
    old: str
    """Occurs exactly once in that file."""
    new: str
    scenario: str
    """The name of a shipped one."""
    word: str = "wrong"
    """With which it is found."""
    is_whole: bool = False
    """Whether the scenario has to be as large as it is, not in the size in which many are run."""

    @property
    def mutant(self) -> Mutant:
        return Mutant(self.name, self.path, self.old, self.new, (), "")


BUGS = (
    # -- the four with which a former checker was lied to ----------------------------------------------------
    Bug(
        "nacked-messages-never-come-again",
        "redelivery",
        UNACKED,
        "            self.redelivery.add(*position, slot)\n",
        "",
        "pulsar-25617",
    ),
    Bug(
        "each-tenth-message-twice",
        "dispatcher",
        SEND,
        ".encode_plain(positions, [entry.body for entry in entries])\n",
        ".encode_plain(*map(list, zip(*[\n"
        "            (e.position, e.body) for e in entries for _ in range(1 + (e.position[1] % 10 == 9))\n"
        "        ])))\n",
        "pulsar-20099",
    ),
    Bug(
        "no-acknowledgement-is-saved",
        "cursor",
        CURSOR,
        "left_out = await ledger.write(self.state())",
        "left_out = 0",
        "restarts",
    ),
    Bug(
        "a-leaving-consumer-gives-nothing-back",
        "redelivery",
        UNACKED,
        "            self.redelivery.add_all(codes)\n",
        "            pass\n",
        "pulsar-25617",
    ),
    # -- the dispatcher --------------------------------------------------------------------------------------
    Bug(
        "what-waits-for-its-key-is-forgotten",
        "dispatcher",
        REPLAY,
        "                add(*entry.position, slot)\n",
        "                pass\n",
        "pulsar-12091",
    ),
    Bug(
        "one-consumer-gets-a-read-backwards",
        "dispatcher",
        SEND,
        "            [entry.position for entry in entries], [entry.body for entry in entries]\n",
        "            [entry.position for entry in entries[::-1]], [entry.body for entry in entries[::-1]]\n",
        "restarts",
    ),
    Bug(
        "the-first-of-a-read-is-not-sent",
        "dispatcher",
        DISPATCHER,
        "            messages = send(consumer, entries, sizes, now_ms, ",
        "            entries, sizes = entries[len(entries) > 40 :], sizes[len(entries) > 40 :]\n"
        "            messages = send(consumer, entries, sizes, now_ms, ",
        "flood",
    ),
    Bug(
        "a-new-active-consumer-begins-at-the-end",
        "dispatcher",
        DISPATCHER,
        "        # is not sent again.\n        self._reader.rewind()\n        active",
        "        # is not sent again.\n        active",
        "network",
    ),
    Bug(
        "no-rewind-for-the-first-consumer",
        "dispatcher",
        READER,
        "        self._cursor.set_read_position(self._ledger.next_position(self._cursor.mark_delete))\n",
        "        pass\n",
        "network",
    ),
    Bug(
        "what-is-acknowledged-is-sent-again",
        "dispatcher",
        READER,
        "            entries = cursor.unacknowledged(entries)\n",
        "            pass\n",
        "pulsar-20099",
    ),
    # -- cursors ---------------------------------------------------------------------------------------------
    Bug(
        "acknowledgements-out-of-turn-are-lost",
        "cursor",
        ACKNOWLEDGMENTS,
        "                apart.append(position)\n",
        "                pass\n",
        "pulsar-12091",
    ),
    Bug(
        "holes-are-forgotten-by-a-load",
        "cursor",
        CURSOR,
        "        self.restore(state)\n",
        "        self.restore(state.__class__(state.mark_delete, {}, {}))\n",
        "pulsar-20099",
    ),
    Bug(
        "a-load-acknowledges-the-backlog",
        "cursor",
        CURSOR,
        "        self.restore(state)\n",
        "        self.restore(state)\n        self.clear(self._chain.tail)\n",
        "pulsar-26230",
    ),
    Bug(
        "a-seek-goes-to-the-end",
        "cursor",
        CURSOR,
        "            self.clear(min(chain.before(position), chain.tail))\n",
        "            self.clear(chain.tail)\n",
        "pulsar-26420",
    ),
    Bug(
        "an-older-state-is-read",
        "cursor",
        "geminga/managed_ledger/cursor/cursor_ledger.py",
        "for entry_id in range(last, max(-1, last - STATES_TRIED_MAX), -1):",
        "for entry_id in range(max(0, last - 8), -1, -1):",
        "pulsar-20099",
    ),
    Bug(
        "an-acknowledgement-takes-the-next-with-it",
        "cursor",
        ACKNOWLEDGMENTS,
        "newly = self._advance(expected - 1) if expected > first else 0",
        "newly = self._advance(min(expected, limit - 1)) if expected > first else 0",
        "restarts",
    ),
    # -- redelivery ------------------------------------------------------------------------------------------
    Bug(
        "asked-for-one-gives-back-all",
        "redelivery",
        UNACKED,
        "        if positions is None:\n            taken = consumer.pending.take_all()",
        "        if True:\n            taken = consumer.pending.take_all()",
        "pulsar-25617",
    ),
    Bug(
        "each-redelivery-counts-twice",
        "redelivery",
        UNACKED,
        "            self.counts.increment(*position)\n",
        "            self.counts.increment(*position)\n            self.counts.increment(*position)\n",
        "pulsar-25617",
    ),
    Bug(
        "redeliveries-are-not-counted",
        "redelivery",
        SEND,
        "counts.get(position, 0)",
        "0",
        "pulsar-25617",
    ),
    Bug(
        "a-nack-is-an-acknowledgement",
        "redelivery",
        UNACKED,
        "            self.redelivery.add(*position, slot)\n",
        "            self._cursor.acknowledge([position])\n",
        "deduplication",
    ),
    # -- delays ----------------------------------------------------------------------------------------------
    Bug(
        "half-a-second-early",
        "delays",
        "geminga/tracker/index/reader.py",
        "        return self._now_ms() + self.slack.due_ms\n",
        "        return self._now_ms() + 500\n",
        "pulsar-14721",
    ),
    Bug(
        "what-is-due-while-it-is-read-waits-for-ever",
        "delays",
        DELAYS,
        "            held.difference_update(part[place].position for place in refused)\n",
        "",
        "pulsar-26230",
    ),
    Bug(
        "the-first-that-is-due-is-dropped",
        "delays",
        DELAYING,
        "        self._books.redelivery.add_all(taken)\n",
        "        self._books.redelivery.add_all(taken[1:] if len(taken) > 9 else taken)\n",
        "pulsar-14721",
    ),
    Bug(
        "what-a-bucket-held-is-not-read-again",
        "delays",
        DELAYS,
        "        self._again.add(first_ledger, last_ledger)\n",
        "",
        "bucket-loss",
    ),
    Bug(
        "due-messages-gather-for-three-seconds",
        "delays",
        DELAYING,
        "DUE_PAUSE_MS: Final = 8",
        "DUE_PAUSE_MS: Final = 3000",
        "pulsar-25996",
        "late",
    ),
    Bug(
        "delays-count-from-the-machines-clock",
        "delays",
        "geminga/broker/topic/stamper.py",
        "self._made = virtual_stamp if clock.is_virtual else stamp",
        "self._made = stamp",
        "pulsar-22716",
    ),
    Bug(
        "a-ttl-takes-what-is-not-due",
        "delays",
        "geminga/broker/topic/upkeep.py",
        "topic.policies.message_ttl_s, topic.policies.ttl_from_due_time",
        "topic.policies.message_ttl_s, False",
        "pulsar-21898",
    ),
    # -- Key_Shared ------------------------------------------------------------------------------------------
    Bug(
        "a-key-moves-before-it-is-free",
        "Key_Shared",
        HASH_RANGES,
        "        if draining is None or draining.consumer is consumer:\n            return False\n",
        "        if draining is not None or draining is None or draining.consumer is consumer:\n"
        "            return False\n",
        "pulsar-12091",
    ),
    Bug(
        "keys-go-anywhere",
        "Key_Shared",
        KEY_SHARED,
        "        return self.selector.slot(sticky_hash(sticky_key(entry.peek)))\n",
        "        return self.selector.slot(sticky_hash(str(entry.position[1]).encode()))\n",
        "restarts",
    ),
    Bug(
        "newer-messages-of-a-key-pass-older-ones",
        "Key_Shared",
        KEY_SHARED,
        "        return not self.allows_out_of_order and self._redelivery.holds_slot(slot)\n",
        "        return False\n",
        # Only while a read waits for the disk can a consumer have room for the newer and not for the older.
        "power-loss",
        is_whole=True,
    ),
    # -- publishing and the journal --------------------------------------------------------------------------
    Bug(
        "a-receipt-for-what-is-not-stored",
        "journal",
        PUBLISHING,
        "        self._ledger.append(stored, run, parsed)\n",
        "        if sequence_ids[0] % 4 == 2 and is_alone:\n"
        "            producer.confirm(sequence_ids, highest_sequence_ids, 0, 0)\n"
        "            return\n"
        "        self._ledger.append(stored, run, parsed)\n",
        "pulsar-25996",
    ),
    Bug(
        "receipts-name-the-next-entry",
        "journal",
        PUBLISHING,
        "ledger_id, receipts_from)\n        self._count_latency",
        "ledger_id, receipts_from + 1)\n        self._count_latency",
        "pause",
    ),
    Bug(
        "a-byte-of-some-messages-is-changed",
        "journal",
        PUBLISHING,
        "        self._ledger.append(stored, run, parsed)\n",
        "        stored = [\n"
        "            bytes(body[:-1]) + bytes([body[-1] ^ 1]) if sequence_id % 64 == 9 else body\n"
        "            for sequence_id, body in zip(sequence_ids, stored, strict=True)\n"
        "        ]\n"
        "        self._ledger.append(stored, run, parsed)\n",
        "slow-disk",
    ),
    Bug(
        "a-replay-forgets-the-last-group",
        "recovery",
        "geminga/bookie/recovery/journal_replay.py",
        "            for group in scan.groups(start.offset if journal_id == start.journal_id else 0):\n",
        "            offset = start.offset if journal_id == start.journal_id else 0\n"
        "            for group in list(scan.groups(offset))[:-9]:\n",
        "restarts",
    ),
    Bug(
        "a-replay-takes-one-ledger-of-a-group",
        "recovery",
        "geminga/bookie/recovery/journal_replay.py",
        "                end = JournalPosition(journal_id, group.end)\n"
        "                for segment in group.segments:\n",
        "                end = JournalPosition(journal_id, group.end)\n"
        "                for segment in group.segments[:1]:\n",
        "power-loss",
    ),
    Bug(
        "a-recovered-ledger-lacks-its-last-entries",
        "recovery",
        "geminga/managed_ledger/opening.py",
        "            entries = storage.bookie.last_entry_id(ledger.ledger_id) + 1\n",
        "            entries = max(0, storage.bookie.last_entry_id(ledger.ledger_id) - 99)\n",
        "restarts",
    ),
    # -- the clock -------------------------------------------------------------------------------------------
    Bug(
        "a-move-leaps-to-its-end",
        "clock",
        JUMPS,
        "        stop_ms = self.to_ms if next_ms is None else min(max(next_ms, now_ms + 1), self.to_ms)\n",
        "        stop_ms = self.to_ms\n",
        "bucket-loss",
    ),
    Bug(
        "a-move-ends-before-its-end",
        "clock",
        JUMPS,
        "return await self._jump(from_ms, from_ms + length_ms, wait, wait_s)",
        "return await self._jump(from_ms, from_ms + length_ms // 2, wait, wait_s)",
        "pulsar-22802",
    ),
    # -- deduplication ---------------------------------------------------------------------------------------
    Bug(
        "everything-is-new",
        "deduplication",
        DEDUP,
        "        if ids is None or sequence_id > ids.pushed:\n            return Verdict.NEW\n",
        "        if ids is None or sequence_id > NEVER:\n            return Verdict.NEW\n",
        "deduplication",
    ),
    Bug(
        "the-next-id-is-a-duplicate",
        "deduplication",
        DEDUP,
        "        if ids is None or sequence_id > ids.pushed:\n            return Verdict.NEW\n",
        "        if ids is None or sequence_id != ids.pushed + 1 or sequence_id % 50:\n"
        "            return Verdict.NEW\n",
        "deduplication",
    ),
    # -- unloads ---------------------------------------------------------------------------------------------
    Bug(
        "consumers-do-not-hear-of-an-unload",
        "unload",
        SUBSCRIPTION,
        "        if not consumer.closed:\n            consumer.tell_closed()\n",
        "        if not consumer.closed:\n            pass\n",
        "pulsar-20099",
    ),
    Bug(
        "an-unload-saves-no-cursor",
        "unload",
        "geminga/managed_ledger/lifecycle.py",
        "            await self.cursors.persist_all()\n            if self.chain.newest_is_open",
        "            if self.chain.newest_is_open",
        "pulsar-20099",
    ),
    # -- planted later: a former checker, with the scenarios of that time, found none of these --------------
    Bug(
        "a-move-goes-twice-as-far",
        "clock",
        JUMPS,
        "return await self._jump(from_ms, from_ms + length_ms, wait, wait_s)",
        "return await self._jump(from_ms, from_ms + length_ms * 2, wait, wait_s)",
        "bucket-loss",
    ),
    Bug(
        "unacknowledged-ones-fall-below-zero",
        "redelivery",
        UNACKED,
        "            self._count(-messages)\n\n    def limit",
        "            self._count(-messages - 1)\n\n    def limit",
        "pulsar-25617",
    ),
    Bug(
        "the-redelivery-count-stays-at-one",
        "redelivery",
        "geminga/broker/dispatch/redelivery.py",
        "self.counts.get((ledger_id, entry_id), 0) + 1",
        "1",
        "pulsar-25617",
    ),
    Bug(
        "permits-are-hardly-counted",
        "dispatcher",
        CONSUMER,
        "        self.permits -= messages\n",
        "        self.permits -= (messages + 1) // 2\n",
        "pulsar-26230",
    ),
    Bug(
        "what-a-seek-brings-again-comes-twice",
        "dispatcher",
        SEND,
        ".encode_plain(positions, [entry.body for entry in entries])\n",
        ".encode_plain(*map(list, zip(*[\n"
        "            (e.position, e.body)\n"
        "            for seen in [send_tracked.__dict__.setdefault('seen', set())]\n"
        "            for e in entries for _ in range(1 + (e.position in seen))\n"
        "        ])))\n"
        "        send_tracked.__dict__['seen'].update(positions)\n",
        "pulsar-26420",
    ),
    Bug(
        "what-a-consumer-left-comes-backwards",
        "Key_Shared",
        KEY_SHARED,
        "            for consumer, numbers in shares.items()\n        ]\n",
        "            for consumer, found in shares.items()\n"
        "            for had in [self.__dict__.setdefault('had', set())]\n"
        "            for numbers in [sorted(found, key=lambda n: -n if entries[n].position in had else n)]\n"
        "        ]\n"
        "        self.__dict__['had'] = self.__dict__.get('had', set()).union(\n"
        "            entry.position for one in given for entry in one.entries\n"
        "        )\n",
        "pulsar-12091",
    ),
    Bug(
        "what-comes-while-a-ledger-is-made-is-turned-round",
        "journal",
        APPENDER,
        "        queue = self._take_queue()\n",
        "        queue = self._take_queue()[::-1]\n",
        "flood",
    ),
    Bug(
        "receipts-come-three-seconds-late",
        "journal",
        PRODUCER,
        "self.outbox.write(receipts)\n",
        "import trio\n"
        "            if not hasattr(Producer, 'late'):\n"
        "                Producer.late = []\n"
        "                async def flush():\n"
        "                    while True:\n"
        "                        await trio.sleep(0.02)\n"
        "                        while Producer.late and Producer.late[0][0] <= trio.current_time():\n"
        "                            _, box, many = Producer.late.pop(0)\n"
        "                            box.write(many)\n"
        "                trio.lowlevel.spawn_system_task(flush)\n"
        "            Producer.late.append((trio.current_time() + 3, self.outbox, receipts))\n",
        "slow-disk",
        "late",
    ),
)
