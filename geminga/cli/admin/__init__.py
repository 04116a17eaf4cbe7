"""Commands that speak a running broker's admin API: topics, namespaces, schemas, policies, delayed, memory.

A command line such as `geminga topics stats my-topic` goes through `run_group` in `admin_http.py`, which
finds the `Verb`, parses its flags, calls it with an `Admin` (one HTTP request, its answer, or
`RequestFailed`) and prints what it returns. Verbs of policies are generated: `policy_flags.py` says how
pulsar-admin names each policy and its values, `policy_verbs.py` makes `set-`, `get-` and `remove-` of it.
Read `admin_http.py` first, then `topics.py`.

Verbs, flags and units are pulsar-admin's, down to `topicPolicies` in camel case, so that a line from Pulsar's
documentation works. `delayed` and `memory` have no counterpart there and are Geminga's own.

Must not be broken: nothing is decided here that the broker decides, so any other client of the REST API gets
the same answers; a value in another unit than the API's is converted and, where that loses something, said.
Only the standard library's HTTP client is used, imported late. The blocking client of Spark workers is
another one, in `pipeline/client/admin_http.py`.
"""
