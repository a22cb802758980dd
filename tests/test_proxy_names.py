"""Which names of models a proxy's numbers may have."""

from __future__ import annotations

from aiohttp import web
from aiohttp.test_utils import TestServer

from exporter.config import Target
from exporter.proxy.names import fetch_names


async def test_only_names_that_can_be_labels_are_taken_from_the_list() -> None:
    listed = ["qwen3:8b", "", "a\nb", "a\x1b[2J", "x" * 600, 7, None]

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in listed]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with TestServer(app) as server:
        target = Target("box", str(server.make_url("")).rstrip("/"), "openai")
        assert await fetch_names(target) == frozenset({"qwen3:8b"})
