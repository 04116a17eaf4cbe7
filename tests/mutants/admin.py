"""Mutants of `geminga/admin/`, and of the looks that it takes in slices."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PAGE = "geminga/admin/metrics/page.py"
PAGE_TESTS = ("tests/admin/metrics/test_page.py",)
PARTS = "geminga/tracker/index/composition.py"
PARTS_TESTS = ("tests/tracker/index/test_composition.py",)
EYES_TESTS = ("tests/tracker/index/test_eyes.py",)

UNSERVED = "geminga/admin/http/unserved.py"
UNSERVED_TESTS = ("tests/admin/http/test_unserved.py",)
NTH_TESTS = ("tests/managed_ledger/cursor/test_nth_unacknowledged.py",)
HEADER_TESTS = ("tests/admin/messages/test_http_message.py",)
INFLATE_TESTS = ("tests/admin/messages/test_inflate.py",)
KEPT_TESTS = ("tests/e2e/differential/test_e2e_kept.py",)
TOUR_TESTS = ("tests/e2e/tours/test_e2e_tours.py",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "bodies-of-all-connections-without-a-bound",
        "geminga/admin/http/body_memory.py",
        "if more and self.held_bytes + more > BODIES_BYTES_MAX:",
        "if False:",
        ("tests/admin/http/test_http.py",),
        "that many peers with half a body each take bounded memory",
    ),
    Mutant(
        "large-messages-without-a-bound",
        "geminga/admin/messages/shown_message.py",
        "if self.held_bytes and self.held_bytes + size_bytes > LARGE_BYTES_MAX:",
        "if False:",
        ("tests/admin/messages/test_shown_message.py",),
        "that large messages which peers do not read take bounded memory",
    ),
    Mutant(
        "global-policies-without-effect",
        "geminga/broker/policies/policies.py",
        "return {**from_topic(record.global_policies, topic), **own} if record.global_policies else own",
        "return own",
        ("tests/e2e/operators/test_e2e_policies.py",),
        "that a policy with isGlobal holds behind the topic's own",
    ),
    Mutant(
        "long-looks-keep-the-interpreters-lock",
        "geminga/broker/flow/slices.py",
        "await trio.sleep(self._pause_s)",
        "await trio.lowlevel.checkpoint()",
        ("tests/broker/flow/test_slices.py",),
        "that the loop sleeps between the slices of a long look",
    ),
    Mutant(
        "subscription-without-roles-stays-listed",
        "geminga/broker/policies/permissions.py",
        "if kept else _without(subscriptions, subscription)",
        "",
        TOUR_TESTS,
        "that the last role of a subscription takes its row along",
    ),
    Mutant(
        "resource-group-without-its-defaults",
        "geminga/admin/routes/cluster/resources.py",
        "**(UNLIMITED if old is ABSENT else old)",
        "**({} if old is ABSENT else old)",
        TOUR_TESTS,
        "that a new resource group shows every rate",
    ),
    Mutant(
        "unserved-without-a-bound",
        UNSERVED,
        "if asked in self._counts or len(self._counts) < KINDS_MAX:",
        "if True:",
        UNSERVED_TESTS,
        "that a flood of unknown paths takes no memory without bound",
    ),
    Mutant(
        "kept-policy-without-a-header",
        "geminga/admin/routes/policies.py",
        "if policy.acted_upon or value is None:",
        "if True:",
        KEPT_TESTS,
        "that the answer names a policy that has no effect",
    ),
    Mutant(
        "member-of-a-policy-takes-the-whole",
        "geminga/broker/policies/records.py",
        "if policy.member:\n        return _with_member(policies, policy, value)",
        "if False:\n        return _with_member(policies, policy, value)",
        KEPT_TESTS,
        "that thresholds are members of the offload policies and leave the others",
    ),
    Mutant(
        "dynamic-setting-told-nobody",
        "geminga/broker/operator/dynamic_configuration.py",
        "await self._documents.change(DYNAMIC_CONFIGURATION, BROKER, change=changed)\n"
        "        await self._policies.change_defaults(self._policies_of(self.current()))",
        "await self._documents.change(DYNAMIC_CONFIGURATION, BROKER, change=changed)",
        ("tests/e2e/operators/test_e2e_dynamic_configuration.py",),
        "that a setting changed at run time holds at once",
    ),
    Mutant(
        "peek-counts-what-is-acknowledged",
        "geminga/managed_ledger/cursor/acknowledged.py",
        "key=lambda entry: entry + 1 - first - bitmap.rank(entry)",
        "key=lambda entry: entry + 1 - first",
        NTH_TESTS,
        "that the n-th entry of a backlog is found over holes",
    ),
    Mutant(
        "header-with-a-line-break",
        "geminga/admin/messages/http_message.py",
        'return _CONTROLS.sub(" ", ',
        "return (",
        HEADER_TESTS,
        "that what a producer wrote cannot end a header",
    ),
    Mutant(
        "inflated-without-a-bound",
        "geminga/wire/blocks.py",
        "_copy(found, offset, min(length + 4, size_max + 1))",
        "_copy(found, offset, length + 4)",
        INFLATE_TESTS,
        "that a block inflates to no more than it claims",
    ),
    Mutant(
        "scan-without-a-limit",
        "geminga/broker/operator/messages.py",
        "if not left or self._clock.monotonic_s() >= ends_s:",
        "if self._clock.monotonic_s() >= ends_s:",
        ("tests/broker/operator/test_messages.py",),
        "that one request reads a bounded part of a backlog",
    ),
    Mutant(
        "rate-of-one-subscription-for-none",
        "geminga/broker/topic/topic.py",
        "subscription.name, self.policies.subscription_dispatch_rate",
        '"", self.policies.subscription_dispatch_rate',
        ("tests/e2e/messages/test_e2e_kept_on_topics.py",),
        "that a subscription's own rate holds",
    ),
    Mutant(
        "metrics-page-for-each-scrape",
        PAGE,
        "            if page.open_metrics is open_metrics:\n",
        "            if False:\n",
        PAGE_TESTS,
        "that scrapes at the same time share one page",
    ),
    Mutant(
        "metrics-page-joined-when-whole",
        PAGE,
        "                if page.is_whole or page.is_broken:\n",
        "                if False:\n",
        PAGE_TESTS,
        "that a page which is whole, or broken, is given to nobody else",
    ),
    Mutant(
        "metrics-page-never-abandoned",
        PAGE,
        "            if not page.readers:\n",
        "            if False:\n",
        PAGE_TESTS,
        "that a page which nobody waits for is let go",
    ),
    Mutant(
        "metrics-formats-share-a-page",
        PAGE,
        "            if page.open_metrics is open_metrics:\n",
        "            if True:\n",
        PAGE_TESTS,
        "which format the scraper has asked for",
    ),
    Mutant(
        "metrics-write-rate-of-messages",
        "geminga/admin/metrics/families.py",
        '"Entries written per second; a batch is one", "write_rate"',
        '"Entries written per second; a batch is one", "msg_rate_in"',
        ("tests/admin/metrics/test_families.py",),
        "that Pulsar's rates of storage count entries",
    ),
    Mutant(
        "metrics-series-without-bound",
        "geminga/admin/metrics/exposition.py",
        "if self._series + series > self._levels.series_max:",
        "if False:",
        ("tests/admin/metrics/test_families.py",),
        "how many series a page has at most",
    ),
    Mutant(
        "metrics-page-in-one-slice",
        "geminga/admin/metrics/exposition.py",
        "        stop = start + LINES_MAX\n",
        "        stop = len(values)\n",
        ("tests/admin/metrics/test_exposition.py",),
        "how many lines are written between two checkpoints",
    ),
    Mutant(
        "histogram-width-one-doubling-too-far",
        "geminga/tracker/index/histogram.py",
        "while len(self._exact.keys() | self._spread.keys()) > self._classes_max:",
        "while len(self._exact.keys() | self._spread.keys()) > self._classes_max // 2:",
        EYES_TESTS,
        "that the width is no wider than it has to be",
    ),
    Mutant(
        "histogram-spreads-what-it-has-decoded",
        "geminga/tracker/index/histogram.py",
        "            counts[_known_of(bucket, offset, len(counts), known)] = 0\n",
        "",
        EYES_TESTS,
        "that a decoded segment counts once",
    ),
    Mutant(
        "parts-count-what-is-passed",
        PARTS,
        "left = BitMap(tracked) if passed is None else tracked - passed",
        "left = BitMap(tracked)",
        PARTS_TESTS,
        "that a part counts what waits for the view that was asked for",
    ),
    Mutant(
        "parts-count-a-rescheduled-message-twice",
        PARTS,
        "                left -= claimed\n",
        "",
        PARTS_TESTS,
        "that a position is in one part",
    ),
    Mutant(
        "not-read-forgets-the-rest",
        "geminga/broker/operator/delayed_unread.py",
        "    elif left:\n",
        "    elif False:\n",
        ("tests/broker/operator/test_delayed_view.py",),
        "that nothing is said to wait for nothing where no consumer is connected",
    ),
    Mutant(
        "an-empty-operator-token-opens",
        "geminga/config/operator_token.py",
        "if not self._token or authorization",
        "if authorization",
        ("tests/config/test_operator_token.py",),
        "that a broker without a token lets in no empty one",
    ),
    Mutant(
        "damage-is-not-for-operators-only",
        "geminga/admin/routes/delayed.py",
        "        self._gate.check(request)\n",
        "",
        ("tests/docker/test_operator_access.py",),
        "that nothing is broken from another machine without the token",
    ),
)
