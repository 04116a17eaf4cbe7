"""The figures of all topics at once: rates, backlog, what is delayed and unacknowledged, clients, bytes.

`scrape.py` reads them from one page of metrics, which Pulsar's brokers have as well: nothing is asked topic
by topic, and a thousand topics cost the broker less than a tenth of a second. `rows.py` makes rows of them
for tables and JSON, partitions summed up to their topic, and rates of two looks. Read `rows.py` first.

It stands below `cli/admin` and `cli/watch`, which show the same rows: once in `geminga topics list`, live in
`geminga top`, summed up in `geminga status`.

Must not be broken: no topic is loaded for its figures; topics of a Pulsar that are not loaded have none; the
page is read line by line, whatever its size; what is no page of metrics is an error in words.
"""
