"""`geminga snapshot seed FILE`: a broker's first state from a file that people write and keep.

`seed_file.py` reads TOML or JSON lines and says what is wrong with them, with the place; it is pure. Read it
first. `seeding.py` then asks for tenants, namespaces, policies, topics and subscriptions over the admin API,
and publishes the messages with the small client of `cli/client`, as any application would. So it works with
any Pulsar broker, and what it makes is what an application would have made.

Must not be broken: what is there already is no error, only messages are published again; and nothing is asked
of the broker before the whole file has been read and checked.
"""
