"""`geminga perf`: rates, latencies, which cache served what."""
