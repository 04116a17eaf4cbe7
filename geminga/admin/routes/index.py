"""The front page of the web port, for a user with a browser."""

from __future__ import annotations

from geminga import __version__
from geminga.admin.http.router import Request, Response, Router, text_response

LINKS = (
    ("/admin/v2/brokers/health", "is the broker well"),
    ("/admin/v2/clusters", "clusters"),
    ("/admin/v2/tenants", "tenants"),
    ("/admin/v2/namespaces/public", "namespaces of the tenant public"),
    ("/admin/v2/persistent/public/default", "topics of public/default"),
    ("/admin/v2/brokers/configuration/runtime", "configuration"),
    ("/metrics", "metrics for Prometheus"),
)


class IndexRoutes:
    def add_to(self, router: Router) -> None:
        router.add("GET", "/", self.index)

    async def index(self, request: Request) -> Response:
        links = "\n".join(f'<li><a href="{path}">{path}</a> {text}</li>' for path, text in LINKS)
        return text_response(
            "<!doctype html>\n<html lang=en><title>Geminga</title>\n"
            f"<h1>Geminga {__version__}</h1>\n"
            "<p>The admin API (Pulsar's REST API v2) and the metrics of this broker. "
            "Clients connect to the other port, with pulsar://.</p>\n"
            f"<ul>\n{links}\n</ul>\n",
            "text/html; charset=utf-8",
        )
