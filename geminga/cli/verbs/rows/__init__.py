"""What a verb of pulsar-admin is, how it runs, and the verbs that set policies.

`verb.py` has the row: the method and path of its request, its flags, which of them go into the query and the
body, how the answer is shown. `running.py` finds the row of a command line, parses the flags, sends the
request and prints the answer; read these two first. `values.py` parses times, sizes, positions and lists.
`whole.py` takes a partitioned topic whole where the API refuses it, `near.py` finds the name that was
probably meant by one that does not exist.

A policy has a `get-`, a `set-` and a `remove-` verb in up to three groups. `policy_flags.py` says how each is
named and what it takes, `offload.py` the same of the largest one, `policies.py` makes rows of that;
`namespace_policies.py` has those whose verbs are not alike, `older_policies.py` those that `topics` has under
older names.

Must not be broken: a row names a request that the real Pulsar serves as well, with its units.
"""
