"""HTTP/1.1 on h11, and a router. Nothing here knows the broker.

`serve_http` in `connection.py` serves one accepted socket: h11 parses, the connection waits, bounds head,
body and time, and hands a `Request` to the application. `Router` in `router.py` finds the handler for a
method and a path, literal segments before `{name}` segments, and turns what a handler raises into a status: a
`PeerError` carries its own. `OwnHost` in `own_host.py` refuses what a web page of another site may have sent.
Read `router.py` first, it is pure.

h11 and these modules replace an ASGI stack because of the start-up budget and memory (ARCHITECTURE.md,
"Choices"). Paths are split before they are percent-decoded, so that an encoded slash stays inside its
segment: a topic's local name may hold almost anything. An answer that may be long is written in parts
(`streaming.py`), each drawn when the one before has been taken. With `--chaos`, `FaultyApplication` in
`faulty.py` stands before the router.

Must not be broken: a client that sends too much, too slowly, or something that is not HTTP loses its own
connection and disturbs no other; all but answering a request is idle, and what is idle may be closed for
others; at most one large body (a bundle of buckets) is read at a time; a bug in a handler is a 500 for one
request, logged once. A path of Pulsar's API without a handler is `NotServed`, a wrong method 405. Routes and
JSON shapes belong to `admin/routes` and `admin/statistics`, accepting sockets to `server/listener.py`.
"""
