"""Mutants of `geminga/wire/`: the short way through the decoder, behind which protobuf says the same. And of
`geminga/client/`: what a client takes for an answer.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DECODER = "geminga/wire/decoder.py"
SHORT_WAY = "tests/wire/test_short_way.py::"
SENDS = (SHORT_WAY + "test_sends_of_clients_take_the_short_way",)
SESSION, SESSION_TESTS = "geminga/client/session.py", "tests/client/test_session.py::"
ACKS = (SHORT_WAY + "test_acks_of_clients_take_the_short_way",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "consumers-above-127-the-long-way",
        DECODER,
        "                    consumer_id = id_field & 0x7F | tag << 7\n",
        "                    consumer_id = id_field & 0x7F | tag << 8\n",
        (SHORT_WAY + "test_flows_of_clients_take_the_short_way",),
        "that ACKs and FLOWs of a client with many consumers are scanned, with their ids",
    ),
    Mutant(
        "client-answers-twice",
        SESSION,
        "        self._open.discard(request_id)\n        return Answer(",
        "        return Answer(",
        (SESSION_TESTS + "test_answers_find_their_requests_in_any_order_and_once",),
        "that a request has one answer, and what comes later is none",
    ),
    Mutant(
        "client-refused-connect-unheard",
        SESSION,
        "not (self.is_connected or request_id in self._open)",
        "False",
        (SESSION_TESTS + "test_an_error_before_the_connection_stands_refuses_connect_whatever_its_id",),
        "that a broker's refusal of CONNECT is heard, whose id nothing has",
    ),
    Mutant(
        "client-redirected-without-authority",
        "geminga/client/lookup.py",
        "        self._is_authoritative = answer.authoritative\n",
        "",
        (SESSION_TESTS + "test_a_redirection_is_followed_with_the_authority_that_it_gave",),
        "that the next broker is told to decide, so that two do not refer to each other for ever",
    ),
    Mutant(
        "decoder-batch-without-highest-id-the-long-way",
        DECODER,
        "            if at != command_end:\n                if data[at] != 0x30:",
        "            if True:\n                if data[at] != 0x30:",
        (*SENDS, "tests/wire/test_official_client.py::test_batches_are_sent_and_acknowledged_the_short_way"),
        "that SENDs with a number of messages and no highest id, as most clients send batches, are scanned",
    ),
    Mutant(
        "decoder-batch-the-long-way",
        DECODER,
        "            if data[at] == 0x18:\n",
        "            if data[at] == 0x19:\n",
        (*SENDS, "tests/wire/test_official_client.py::test_batches_are_sent_and_acknowledged_the_short_way"),
        "that SENDs with a number of messages are scanned",
    ),
    Mutant(
        "decoder-highest-id-the-long-way",
        DECODER,
        "                if data[at] != 0x30:\n",
        "                if True:\n",
        SENDS,
        "that SENDs with a highest id, as Java's client sends batches, are scanned",
    ),
    Mutant(
        "decoder-producer-id-of-two-bytes-the-long-way",
        DECODER,
        "if not 0x80 <= producer_id <= 0xFF or tag >= 0x80 or data[at] != 0x10:",
        "if True:",
        SENDS,
        "that SENDs of producers above 127 are scanned",
    ),
    Mutant(
        "decoder-long-sequence-id-the-long-way",
        DECODER,
        "                if sequence_id < 0:\n",
        "                if sequence_id >= 0:\n",
        SENDS,
        "that SENDs with a sequence id of more than three bytes are scanned",
    ),
    Mutant(
        "decoder-acks-of-a-partition-the-long-way",
        "geminga/wire/scan_ack.py",
        "if at != sub_end and _skip_rest(data, at, sub_end) != sub_end:",
        "if at != sub_end:",
        ACKS,
        "that ACKs with a partition and a batch index are scanned",
    ),
    Mutant(
        "decoder-acks-with-a-receipt-the-long-way",
        "geminga/wire/scan_ack.py",
        "            if request_id < 0:\n",
        "            if True:\n",
        ACKS,
        "that ACKs that ask for a receipt are scanned",
    ),
)
