"""The pages for a person with a browser: `/` and one for each topic. They say what runs, what is wrong, which
topics and subscriptions have the most, how the buckets of delayed messages are, and what has happened.

`overview.py` gathers the figures of `/` in slices, and `topic_rows.py` keeps those of all topics to search
and sort them; `topic_look.py` gathers those of one topic. `shared.py` has one request gather for all that
wait. `page.py`, `topic_page.py` and `due_picture.py` turn figures into HTML, of the pieces in `markup.py` and
`style.py`; `script.py` renews a page that is shown. Read `Overview` in `overview.py` first. The pages promise
no format; programs read `/metrics` or the admin API.

Must not be broken: names of topics and subscriptions are chosen by clients, so all text is escaped, and the
response forbids inline scripts and foreign content. A page has a bounded size however many topics there are,
gathering it never loads a topic, and no figure is gathered while no page is open.
"""
