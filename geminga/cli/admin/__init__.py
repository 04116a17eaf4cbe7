"""Geminga's own commands that speak a running broker's admin API: delayed, memory, backup.

`admin_http.py` has what all commands use that speak the admin API, those of pulsar-admin in `cli/verbs` as
well: an `Admin` makes one HTTP request and returns its answer, or raises `RequestFailed`. Read it first, then
`delayed.py`, which shows what a subscription holds back, with its text in `delayed_text.py`.

Must not be broken: nothing is decided here that the broker decides, so any other client of the REST API gets
the same answers. Only the standard library's HTTP client is used, imported late. The blocking client of Spark
workers is another one, in `pipeline/client/admin_http.py`.
"""
