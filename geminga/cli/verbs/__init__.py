"""pulsar-admin's verbs: `geminga tenants|clusters|brokers|namespaces|topics|topicPolicies|schemas|...`.

Each group of verbs is a module with its rows (`rows/verb.py`), which is imported when the group is asked for;
`tenants.py` is the shortest. `topics.py` has those that need more than one request, and `messages.py` what
shows single messages. `pulsar_admin.py` takes pulsar-admin's own command line with its global flags and words
its errors.

Verbs, flags, units and exit codes are pulsar-admin's, down to `topicPolicies` in camel case, so that a line
from Pulsar's documentation works.

Must not be broken: nothing is decided here that the broker decides, so any other client of the REST API gets
the same answers; a value in another unit than the API's is converted and, where that loses something, said.
"""
