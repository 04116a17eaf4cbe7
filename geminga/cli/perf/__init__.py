"""`geminga perf`: rates, latencies, and which cache served what.

`perf.py` publishes, consumes or does both at a pace and prints a line each interval: rates, publish latency
(call to receipt) and end-to-end latency, which is read from the first bytes of each payload so that both
sides may be processes of their own. `caches.py` is `perf tail` and `perf catch-up`: each second it asks the
broker's metrics (`metrics.py`) where the entries were read, from tail cache, write cache, read cache or disk;
`course.py` keeps and sums the samples, `plot.py` draws them. Read `perf.py` first, then `caches.py`.

`catch-up` exists to show the cost of a consumer that falls behind: its reads leave the tail cache for the
bookie, and must not slow the consumers that keep up. docs/caches.md tells what the curves mean. Works with
any Pulsar broker; `metrics.py` knows Geminga's counters and the real broker's rates.

Must not be broken: latencies are counted in buckets of 1.6 % (`Histogram` in `latency.py`), so memory does
not grow with a run; measuring must not be the bottleneck; clocks of two machines are not comparable.
Benchmarks of single parts are in `bench`, not here. matplotlib is imported only for a plot.
"""
