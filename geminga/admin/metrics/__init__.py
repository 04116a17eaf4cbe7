"""Prometheus exposition: Pulsar's names for topics and subscriptions, BookKeeper's for the bookie.

A scrape meets `Pages` (`page.py`): requests that arrive while a page is rendered share it, render it slice by
slice, and drop it when the last of them is gone. `exposition` (`exposition.py`) is the rendering itself: it
collects figures from each topic's statistics, then writes the families one after the other. `families.py`
lists each metric of topic and subscription and how it is read off a struct; `delayed.py` has the delayed
index with buckets; `bookie.py` has journal, caches, garbage collection and recovery, and memory under our
own names. Read `families.py` first.

The names are those that the public dashboards query, so they show figures unchanged; names without a meaning
here are there with a constant. Families are gauges, counters included, because the real broker declares them
so. Bucket metrics exist for each subscription and, without that label, for the topic, which doubles sums over
the family: Pulsar does it, so it is kept (`pulsar_delayed_message_index_bucket_total` and its kin, PIP-195).

Must not be broken: nothing is counted here and no statistic is invented, so no quantiles of what is not
measured; a shared index is counted once; no slice looks at more than some hundred rows, on the event loop as
it is. prometheus-client takes longer to import than a start may, so only `process.py` imports it, and only a
scrape imports that.
"""
