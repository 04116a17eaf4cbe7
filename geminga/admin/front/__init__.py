"""The page at `/`: what runs, what is wrong, the largest topics, and when delayed messages are due.

`overview.py` gathers the figures in slices, `page.py` turns them into HTML, and `due_picture.py` draws the
delayed messages as SVG. Read `Overview` in `overview.py` first. The page is rendered by the server and has no
script. It is for a person with a browser and promises no format; programs read `/metrics` or the admin API.

Must not be broken: names of topics and subscriptions are chosen by clients, so all text is escaped, and the
response forbids scripts and foreign content. The page has a bounded size however many topics there are, and
gathering it never loads a topic.
"""
