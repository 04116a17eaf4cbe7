"""A stored entry as an admin client gets it: Pulsar's `X-Pulsar-...` headers, and the payload inflated.

A route reads an entry through `admin.view.messages`; `http_message.py` makes the headers and takes the
payload out, `inflate.py` inflates it, and `shown_message.py` makes an answer of it, a large one in parts. A
batch stays the batch that its producer sent: Java's and Go's admin clients take it apart by
`X-Pulsar-num-batch-message`. Read `http_message.py` first.

Everything here is a function of the entry's bytes, which a producer has chosen: they are never trusted to be
metadata, UTF-8, a header, or as long as they say. What an entry inflates to is bounded, and so is what all
large answers hold together; the work is done in slices or in a thread that does not hold the interpreter, so
publishers do not notice.

Must not be broken: names and values of the headers are those of the real broker (`tests/e2e/messages` has its
answers), since clients rebuild the message from them. In Pulsar this is `generateResponseWithEntry`.
"""
