"""The operator's side of the broker: implements the views of the admin API.

`View` (`view.py`) combines the parts, and a request of the admin API calls one of them: `TopicsOperator`
(`topics.py`), `SubscriptionsOperator` (`subscriptions.py`: skip, expire, reset), `StatisticsOperator`
(`statistics.py`), or `DelayedOperator` (`delayed_view.py`): summary, histogram, why, cancel, expedite,
postpone. `adopt_buckets` (`delayed_adopt.py`) adds buckets that were built elsewhere: it decodes them and
checks them against the topic off the loop, writes them, names them in one write, and adds them to the index.
Read `View` first.

This is the broker's top package because it needs all others. The protocols that it implements are in
`admin/view`, so that routes never use a topic directly. The structs in `delayed_statistics.py` are the
answers, with names and units. Pulsar has no such view of its delayed index; the paths are below `/geminga`.

Invariants: a refusal changes nothing; a successful answer means durable. A query takes bounded time on the
loop, so histograms read at most twenty segments. While an index is being recovered, the answer is 503, "ask
again", and not a number that is too low. HTTP, JSON spelling and status codes belong to `admin`; the rules
for the content of an index belong to `tracker/index/adopting.py`.
"""
