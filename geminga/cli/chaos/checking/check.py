"""Compares what was sent with what came, and asks of a run what a queue promises. Pure.

A message that had its receipt is acknowledged by the end, or it is lost. Delivery is at least once: a message
may come again, for a cause that the history has (`deliveries.py`). An acknowledgement counts once it is
answered. At the end the broker's own counts are what the history says. Times are judged against what the
machine held up (`machine.py`); where it was too slow to tell, a run shows nothing instead of a fault.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from geminga.cli.chaos.checking.broker_time import BrokerTime
from geminga.cli.chaos.checking.deliveries import DeliveryCheck, forgettings, session_over_ms
from geminga.cli.chaos.checking.findings import Findings, advice
from geminga.cli.chaos.checking.history import Fault, History, Received, Receiving
from geminga.cli.chaos.checking.lateness import firsts, shares
from geminga.cli.chaos.checking.machine import Machine
from geminga.cli.chaos.checking.scenario import Expect

ANSWER_MS: Final = 10_000
"""So long an answer may take; without one after that there will be none."""
HARMLESS: Final = ("advance", "burst", "expire", "grow")
"""Steps that end no connection."""
CLOCKS_APART_MS: Final = 1000
"""So far the clocks of the run and of the broker may drift apart that show the same machine's time."""


def check(history: History, expect: Expect) -> Findings:
    """All findings of one run."""
    found = Findings()
    machine = Machine(history.probes)
    is_untold = machine.is_too_slow(history.ended_ms - history.stuck_ms, history.ended_ms)
    # Of a run that gave up on a machine without time, or was broken off, nothing is known of the end.
    is_whole = history.is_drained and not (history.stuck and is_untold)
    ends: list[_End] = []
    checks: list[DeliveryCheck] = []
    for number, receiving in enumerate(history.subscriptions):
        deliveries = DeliveryCheck(history, number, expect, machine, found)
        deliveries.run()
        checks.append(deliveries)
        ends.append(_check_end(history, receiving, deliveries.of_message, found, is_whole=is_whole))
        if is_whole:
            _check_answers(history, receiving, machine, found)
    _check_clock(history, found)
    _check_left(history, [end.unsettled for end in ends], found)
    late, late_shown, prompt, prompt_shown = _times(history, machine)
    receipts, receipts_shown = _receipt_times(history, machine)
    confirmed = sum(1 for sent in history.sent for one in sent if one.receipt_ms)
    nothing = [] if confirmed else ["no message was confirmed"]
    nothing += [] if history.subscriptions else ["no subscription was there"]
    without_time = [f"{text}; the machine had no time for it; {advice()}" for text in history.stuck]
    return msgspec.structs.replace(
        found,
        sent=sum(1 for sent in history.sent for one in sent if one.first_ms),
        confirmed=confirmed,
        deliveries=sum(len(one.deliveries) for one in history.subscriptions),
        again=sum(one.again for one in checks),
        again_after_crash=sum(one.again_after_crash for one in checks),
        unconfirmed=sum(end.unconfirmed for end in ends),
        taken=sum(end.taken for end in ends),
        late_ms=shares(late),
        late_shown_ms=shares(late_shown),
        prompt_ms=shares(prompt),
        prompt_shown_ms=shares(prompt_shown),
        receipt_ms=shares(receipts),
        receipt_shown_ms=shares(receipts_shown),
        early_by_ms=max((one.early_by_ms for one in checks), default=0),
        timer_late_ms=round(machine.latest_ms),
        machine_waits_ms=machine.waits_ms(history.began_ms, history.ended_ms),
        ended=[one.text for one in history.doings if one.kind == "ended"],
        dead=[one.text for one in history.doings if one.kind == "dead"],
        stuck=[] if is_untold else list(history.stuck),
        not_shown=nothing
        + _missed(history)
        + _gone(ends)
        + (without_time if is_untold else [])
        + history.broken,
        notes=_notes(history, found),
    )


def _notes(history: History, found: Findings) -> list[str]:
    def had(fault: Fault, kind: str) -> bool:
        return fault.text.startswith(f"fault {kind}")

    notes = [
        f"{fault.text}: took no effect; with needs_hits = 1 such a run is not shown"
        for fault in history.faults
        # A clock that is wrong has no hits, and a broker that has ended cannot tell of one.
        if not (fault.hits or fault.needs_hits or fault.ends_broker or had(fault, "clock/"))
    ]
    if cut := _cut_off(history):
        notes.append(
            f"{cut:,} times a consumer was closed, or its connection broke, before anything was done to the "
            "broker"
        )
    took = sum(fault.hits for fault in history.faults if had(fault, "wire/black-hole"))
    hole = f"wire/black-hole took {took:,} frames on connections that stayed open, as no network does: "
    if took and found.counts["lost"].count:
        notes.append(
            f"{hole}what was in them is missing; let the rule end, and do an unload or a kill after it"
        )
    if took and found.counts["out_of_order"].count:
        notes.append(f"{hole}what came after them overtook them; [expect] may allow it with out_of_order")
    return notes


def _cut_off(history: History) -> int:
    """A broker may close a consumer when it likes, and what that consumer held may come again then."""
    began = (
        one.at_ms
        for one in history.doings
        if one.kind not in {"event", "skipped"} and not one.text.startswith(HARMLESS)
    )
    until_ms = min(began, default=history.ended_ms)
    return sum(0 < one.ended_ms < until_ms and not one.left_ms for one in history.sessions)


def _missed(history: History) -> list[str]:
    return [
        f"{fault.text}: took effect {fault.hits} times, {fault.needs_hits} at least are needed"
        for fault in history.faults
        if fault.hits < fault.needs_hits
    ]


def _gone(ends: list[_End]) -> list[str]:
    """A restore takes what came after its copy. What only removed files had is not known."""
    count = sum(end.unclear for end in ends)
    text = f"{count:,} confirmed messages are missing, which may have been in the removed files alone, or not"
    return [text] if count else []


class _End(NamedTuple):
    unsettled: int
    """Messages that the broker may rightly still have."""
    unconfirmed: int
    """Acknowledged, and not answered."""
    unclear: int
    """Confirmed, and perhaps gone with files that an operator removed."""
    taken: int
    """Confirmed, and gone with a restore, with or without acknowledgements."""


def _check_end(
    history: History,
    receiving: Receiving,
    of_message: dict[tuple[int, int], list[Received]],
    found: Findings,
    *,
    is_whole: bool,
) -> _End:
    """What was never acknowledged."""
    subscription, unsettled, unconfirmed, unclear, taken = receiving.subscription, 0, 0, 0, 0
    for producer, sent in zip(history.producers, history.sent, strict=True):
        if producer.topic != subscription.topic:
            continue
        for one in sent:
            if not one.first_ms:
                continue  # planned, and not sent: the broker cannot have it
            came = of_message.get((one.producer, one.number), [])
            counted = [
                delivery
                for delivery in came
                if history.is_after_seeks(delivery) and not history.is_void(delivery)
            ]
            acked = {delivery.id for delivery in counted if delivery.acked_ms}
            # A message may be stored under several ids, each of which has to be acknowledged.
            if acked and acked >= {delivery.id for delivery in counted}:
                continue
            unsettled += 1
            if acked or not one.receipt_ms:
                continue
            if any(delivery.ack_ms for delivery in counted):
                unconfirmed += 1
            elif what := history.may_be_taken(one):
                taken += what == "restore"
                unclear += what != "restore"
            elif is_whole:
                delay = f", delayed by {one.delay_ms} ms" if one.delay_ms else ""
                found.add(
                    "lost",
                    f"topic {subscription.topic}, {subscription.name}: {producer.name} number {one.number}"
                    f", sent at {history.second(one.first_ms)}{delay}: {_fate(came, counted)}",
                )
    return _End(unsettled, unconfirmed, unclear, taken)


def _fate(came: list[Received], counted: list[Received]) -> str:
    if not came:
        return "never delivered"
    if not counted:
        return "not again after a seek or a restore"
    return (
        "asked for again, and never delivered again" if counted[-1].nack_ms else "never to another consumer"
    )


def _check_answers(history: History, receiving: Receiving, machine: Machine, found: Findings) -> None:
    """Acknowledgements that got no answer although their consumer stayed."""
    for delivery in receiving.deliveries:
        if delivery.ack_ms and not delivery.acked_ms:
            over_ms = min(session_over_ms(history.sessions[delivery.session], machine), history.ended_ms)
            waits_ms = machine.waits_ms(delivery.ack_ms, over_ms)
            if over_ms - delivery.ack_ms - waits_ms >= ANSWER_MS:
                topic, name = receiving.subscription.topic, receiving.subscription.name
                place = f"{delivery.ledger_id}:{delivery.entry_id}"
                at = history.second(delivery.ack_ms)
                found.add("unanswered", f"topic {topic}, {name}: acknowledgement of {place} at {at}")


def _check_clock(history: History, found: Findings) -> None:
    """By what the broker answered, and by the machine's time: its clock goes where it is to go, and never
    back.
    """
    reached_ms = 0
    crashes = forgettings(history)
    for number, jump in enumerate(history.jumps):
        if not jump.done_ms:
            continue
        if jump.from_ms < reached_ms:
            found.add("clock", f"it was set back by {reached_ms - jump.from_ms:,} ms")
        # Without this a broker whose clock runs ahead delivers early, and says that it is late already.
        before = BrokerTime(history.offset_ms, history.jumps[:number])
        ahead_ms = jump.from_ms - before.at_most_ms(jump.done_ms)
        # A move that a crash has cut short is asked for again, and the first one may have been made up.
        is_cut = any(one.from_ms <= jump.done_ms and jump.asked_ms <= one.to_ms for one in crashes)
        if ahead_ms > CLOCKS_APART_MS + is_cut * jump.length_ms:
            found.add("clock", f"it was {ahead_ms:,} ms ahead at {history.second(jump.asked_ms)}")
        more_ms = jump.to_ms - jump.from_ms - jump.length_ms
        # Without a length it is not known where it was to end.
        if more_ms < 0 or (more_ms and jump.length_ms):
            way = "short" if more_ms < 0 else "too far"
            found.add("clock", f"a move of {jump.length_ms:,} ms was {abs(more_ms):,} ms {way}")
        reached_ms = jump.to_ms


def _check_left(history: History, unsettled: list[int], found: Findings) -> None:
    """No more may be left than the history knows of: acknowledgements that were not answered, messages
    without a receipt, and what was found to be lost.
    """
    for left in history.left:
        subscription = history.subscriptions[left.subscription].subscription
        part = f" partition {left.partition}" if left.partition >= 0 else ""
        for name in ("backlog", "pending", "delayed"):
            count = getattr(left, name)
            if count < 0:
                found.add(
                    "left_behind", f"topic {subscription.topic}{part}, {subscription.name}: {name} {count}"
                )
            if count > unsettled[left.subscription]:
                found.add(
                    "left_behind",
                    f"topic {subscription.topic}{part}, {subscription.name}: {name} {count}, of which the "
                    f"history explains {unsettled[left.subscription]}",
                )


def _times(history: History, machine: Machine) -> tuple[list[int], list[int], list[int], list[int]]:
    """How late delayed messages were, as it was and without what the machine held up; the same of others."""
    late: tuple[list[int], list[int]] = ([], [])
    prompt: tuple[list[int], list[int]] = ([], [])
    for at_ms, late_ms, is_delayed in firsts(history):
        all_ms, shown_ms = late if is_delayed else prompt
        all_ms.append(late_ms)
        # From the beginning on: what was held up earlier may still be in the way of what comes later.
        shown_ms.append(max(0, late_ms - machine.waits_ms(history.began_ms, at_ms)))
    return *late, *prompt


def _receipt_times(history: History, machine: Machine) -> tuple[list[int], list[int]]:
    """How long receipts took from the first sending on, as it was and without what the machine held up."""
    all_ms, shown_ms = [], []
    for one in (one for sent in history.sent for one in sent):
        # Of what was sent several times too: where topics are unloaded, late receipts have all of it sent
        # again.
        if one.receipt_ms:
            took_ms = max(0, one.receipt_ms - one.first_ms)
            all_ms.append(took_ms)
            shown_ms.append(max(0, took_ms - machine.waits_ms(history.began_ms, one.receipt_ms)))
    return all_ms, shown_ms
