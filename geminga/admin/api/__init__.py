"""The admin API as a whole: all routes in one router, its OpenAPI document, and what it was asked in vain.

`table.py` puts the routes together; `late.py` does that with the first request, in a thread as far as it is
imports, so that a start does not pay for it; `openapi.py` describes the routes in a document, made when it is
first asked for; `about.py` serves that document and the list of what was asked for and is not served.

Read `table.py` first. A new class of routes is added there and nowhere else: the OpenAPI document and the
list of routes follow from the router.

Must not be broken: nothing here is imported before the broker is ready; the document and the list are
bounded. The routes themselves belong to `admin/routes`, HTTP to `admin/http`.
"""
