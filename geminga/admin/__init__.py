"""The web port: Pulsar's admin REST v2, lookup over HTTP, the `/geminga` paths, Prometheus metrics.

A request meets `http/connection.py` (h11, limits), `http/router.py` (method and path to a handler), a class
in `routes`, those parts of the `BrokerView` of `view` that this class needs (`broker/operator` implements
them), and on the way back `statistics` for JSON in Pulsar's shape or `metrics` for an exposition. Read
`router_for` in `api/table.py` first: it lists all routes; then one of the route classes.

The parts are protocols so that routes depend on what they need of a broker and not on topics or dispatchers.
h11 with a small router was measured against an ASGI stack: Starlette on Hypercorn cost 90 to 150 ms of a
start-up budget of 500 ms.

Must not be broken: paths, verbs, status codes and texts are Pulsar's, compared with a real 4.0
(docs/compatibility.md), because admin clients branch on them and print them. A path of Pulsar's API without a
route is not answered with 404, which clients take for "no such object". Changes are durable when answered.
Rules about policies, schemas or topics belong to the broker; a route parses, calls and answers.
"""
