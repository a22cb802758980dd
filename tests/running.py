"""The exporter in this process, on a port of its own, and what it exports as numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from exporter.app import App
from exporter.config import DEFAULT_LISTEN, Config, load
from exporter.web import make_web
from tests.peers import Engine, serving, target

TIMEOUT = "X-Prometheus-Scrape-Timeout-Seconds"


class Running:
    """A running exporter: `get` and `post` give status, headers and text; `series` what /metrics says."""

    def __init__(self, app: App, url: str, client: aiohttp.ClientSession) -> None:
        self.app = app
        self.url = url
        self._client = client

    async def get(self, path: str, **headers: str) -> tuple[int, Mapping[str, str], str]:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._client.get(self.url + path, headers=names) as response:
            return response.status, response.headers, await response.text()

    async def post(self, path: str) -> tuple[int, str]:
        async with self._client.post(self.url + path) as response:
            return response.status, await response.text()

    async def metrics(self, within: str = "10") -> list[Sample]:
        """Scrape, and check what holds for every answer: no series twice, one HELP and TYPE a family."""
        async with self._client.get(f"{self.url}/metrics", headers={TIMEOUT: within}) as response:
            assert response.status == 200
            text = await response.text()
        return samples(text)

    async def series(self, name: str, within: str = "10", **labels: str) -> dict[str, float]:
        """Return, by target, the one value that a name and labels have; `within`: the scraper's timeout in seconds."""
        found: dict[str, float] = {}
        for sample in await self.metrics(within):
            if sample.name == name and labels.items() <= sample.labels.items():
                of = sample.labels.get("target", "")
                assert of not in found, f"{name} of {of} is there twice"
                found[of] = sample.value
        return found

    async def names(self, target: str) -> set[str]:
        """Return the names of the series that a target has."""
        return {sample.name for sample in await self.metrics() if sample.labels.get("target") == target}

    async def tried(self) -> None:
        """Wait until every target was tried once."""
        async with asyncio.timeout(10):
            while (await self.get("/-/ready"))[0] != 200:
                pass

    async def until(self, condition: Callable[[list[Sample]], bool]) -> list[Sample]:
        """Scrape until the condition holds."""
        async with asyncio.timeout(20):
            while not condition(found := await self.metrics()):
                pass
        return found


def samples(text: str) -> list[Sample]:
    """Parse a text exposition strictly."""
    comments = [line for line in text.splitlines() if line.startswith("#")]
    heads = [tuple(line.split(" ")[1:3]) for line in comments]
    assert len(set(heads)) == len(heads)
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in found]
    assert len(set(keys)) == len(keys)
    return found


@asynccontextmanager
async def running(
    config: Config, reload: Callable[[], Config] | None = None, lifecycle: bool = True
) -> AsyncIterator[Running]:
    """Run the exporter until the block ends, and then check that nothing of it is left."""
    app = App(config, reload or (lambda: config))
    server = TestServer(make_web(app, enable_lifecycle=lifecycle), shutdown_timeout=0.0)
    await server.start_server()
    await app.start()
    try:
        async with aiohttp.ClientSession() as client:
            yield Running(app, str(server.make_url("")).rstrip("/"), client)
    finally:
        await server.close()
        async with asyncio.timeout(5):
            await app.close()
    left = [
        task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(("read ", "probe ", "first "))
    ]
    assert left == []


@asynccontextmanager
async def watching(*pages: str) -> AsyncIterator[Running]:
    """Run an exporter of a vLLM for each page, as targets t0, t1, ..., each tried once."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(serving(Engine(text))) for text in pages]
        targets = tuple(target(engine.url, name=f"t{number}") for number, engine in enumerate(engines))
        exporter = await stack.enter_async_context(running(Config(DEFAULT_LISTEN, targets)))
        await exporter.tried()
        yield exporter


class ConfigFile:
    """A configuration file that tests rewrite."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "vitals.yml"

    def write(self, *targets: dict[str, Any]) -> Config:
        self.path.write_text(yaml.safe_dump({"targets": list(targets)}), encoding="utf-8")
        return self.load()

    def load(self) -> Config:
        return load(self.path, {}, in_container=False)
