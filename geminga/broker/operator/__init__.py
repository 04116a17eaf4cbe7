"""What an operator sees of the broker and may change: the implementation of the admin API's views.

`View` (`view.py`) puts the parts together, and a request of the admin API arrives at one of them:
`TopicsOperator` (`topics.py`), `SubscriptionsOperator` (`subscriptions.py`: skip, expire, reset),
`StatisticsOperator` (`statistics.py`), or `DelayedOperator` (`delayed_view.py`): summary, histogram, why,
cancel, expedite, postpone. Buckets that were built elsewhere are taken in by `adopt_buckets`
(`delayed_adopt.py`): decoded and checked against the topic off the loop, written, named in one write, told to
the index. Read `View` first.

It is the broker's top package because it needs all others; the protocols that it implements are in
`admin/view`, so that routes never touch a topic. The structs in `delayed_statistics.py` are what is shown, by
name and unit. Pulsar has no such view of its delayed index; the paths are below `/geminga`.

Must not be broken: a refusal changes nothing; an answer of success means durable; a look costs bounded time
on the loop, so histograms read at most twenty segments. While an index is still being recovered the answer is
503, "ask again", not a number that is too low. HTTP, JSON spelling and status codes belong to `admin`; rules
about what an index may contain to `tracker/index/adopting.py`.
"""
