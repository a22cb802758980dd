"""`llm-vitals probe URL`: measures one server once, for a person at a terminal or for a script."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TextIO

import httpx
from prometheus_client import CollectorRegistry

from exporter.access import AccessError, blank
from exporter.backends.ollama_api import ApiError, fetch, open_client
from exporter.detect import UNKNOWN, make_reader
from exporter.model import Outcome
from exporter.probe import stream
from exporter.probe.events import Dialect
from exporter.probe.hosts import Host, Model, wanted
from exporter.probe.hosts.ollama import OllamaHost
from exporter.probe.hosts.openai import OpenAIHost, Standing
from exporter.probe.instruments import Instruments
from exporter.probe.report import Report
from exporter.probe.result import Exchange, ProbeResult
from exporter.probe.schedule import Prober
from exporter.relay.scrape import new_session
from exporter.settings import ProbeSettings, Target

FIRST_TOKEN, TOTAL = 120.0, 300.0
"""Seconds that a person is made to wait at most for a first token, and for a whole answer."""

_OWNERS = {"llamacpp": "llama.cpp", "sglang": "sglang", "vllm": "vllm"}
"""Engines by what /v1/models says who owns a model."""


class ProbeError(Exception):
    """A server that cannot be measured: one line that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for: `times` probes of each size, of `max_tokens` tokens each."""

    model: str = ""
    times: int = 5
    max_tokens: int = 32
    dialect: str = "auto"
    as_json: bool = False


async def probe(target: Target, options: Options, out: TextIO = sys.stdout, err: TextIO = sys.stderr) -> int:
    """Measure a target and print a table or JSON; return 0, or 1 after a line on what went wrong."""
    try:
        async with open_client(target) as client:
            report = await _measure(target, options, client, Progress(err, 2 * options.times + 1))
    except (ProbeError, ApiError, AccessError) as error:
        err.write(f"llm-vitals: {blank(str(error), target)}\n")
        return 1
    out.write(json.dumps(report.as_dict(), indent=2) + "\n" if options.as_json else report.as_text())
    return 0


async def _measure(target: Target, options: Options, client: httpx.AsyncClient, progress: Progress) -> Report:
    make_host = await _find(target, client)
    host = make_host(target)
    model = _choose(await host.look(), options.model, host.backend)
    settings = ProbeSettings(
        timeout=TOTAL,
        first_token_timeout=FIRST_TOKEN,
        max_tokens=options.max_tokens,
        models=(model.name,),
        kinds=("small", "large"),
        dialect=options.dialect,
        load=bool(options.model),
    )
    target = replace(target, probe=settings)
    host = make_host(target)
    prober = Prober(target, host, Instruments(CollectorRegistry()), progress.following(stream.sender(client)))
    results: dict[str, list[ProbeResult]] = {"small": [], "large": []}
    try:
        for _ in range(options.times):
            await prober.turn()
            loaded = any(result.reloaded for result in prober.last.values())
            for (name, kind), result in prober.last.items():
                model = replace(model, name=name)  # by its full name, now that it is in memory
                if not result.ok:
                    raise ProbeError(f"{target.url}, model {model.name}: {result.reason}: {result.error}")
                if not loaded:  # a turn's probes are compared with each other, so they count together
                    results[kind].append(result)
            if why_not := prober.skipped.get(model.name):
                raise ProbeError(f"{target.url}, model {model.name}: not probed: {why_not}")
            if not prober.last:
                raise ProbeError(f"{target.url}, model {model.name}: it was unloaded meanwhile; use it, and try again")
    finally:
        progress.end()
    if not any(results.values()):
        why = "each turn loaded the model anew; somebody asks for it with other options, or for another model"
        raise ProbeError(f"{target.url}, model {model.name}: {why}")
    return Report(target.url, host.backend, model.name, {kind: found for kind, found in results.items() if found})


async def _find(target: Target, client: httpx.AsyncClient) -> Callable[[Target], Host]:
    """Find out what answers at a target's URL and return how it is probed; ApiError if nothing that can be does."""
    async with new_session() as session:
        reader = make_reader(target, session)
        try:
            snapshot = await reader.read(target.timeout)
        finally:
            await reader.close()
    if snapshot.up and snapshot.backend == OllamaHost.backend:
        return lambda target: OllamaHost(target, client)
    samples = snapshot.readings.samples() if snapshot.readings else ()
    standing = Standing(any(sample.family == "vitals_engine_asleep" and sample.value for sample in samples))

    async def read_before() -> Standing:
        return standing

    backend = snapshot.backend if snapshot.up and snapshot.backend != UNKNOWN else await _owner(target, client)
    return lambda target: OpenAIHost(target, client, backend, read_before)


async def _owner(target: Target, client: httpx.AsyncClient) -> str:
    """Return the engine of a server without metrics by what it says of its models; ApiError."""
    deadline = asyncio.get_running_loop().time() + target.timeout
    answer = await fetch(client, target, "/v1/models", deadline=deadline)
    rows = answer.content.get("data") if isinstance(answer.content, dict) else None
    if not isinstance(rows, list):
        raise ApiError(Outcome.NOT_LLM_SERVER, f"{target.url} answers, but is no LLM server; correct the URL")
    owners = [row.get("owned_by") for row in rows if isinstance(row, dict)]
    return _OWNERS.get(str(owners[0]) if owners else "", "openai")


def _choose(models: Mapping[str, Model], name: str, backend: str) -> Model:
    """Return the model asked for, else the first that can be probed; ProbeError if there is none."""
    if name:
        return next((model for model in models.values() if wanted(model.name, (name,))), Model(name))
    if ready := next((model for model in models.values() if not model.why_not), None):
        return ready
    if models:
        raise ProbeError("; ".join(f"model {model.name}: {model.why_not}" for model in models.values()))
    if backend == OllamaHost.backend:
        raise ProbeError("no model is in memory; use one first, or name one with --model, which will load it")
    raise ProbeError("the server has no model; see its log")


class Progress:
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, out: TextIO, total: int) -> None:
        self._out = out
        self._total = total
        self._done = 0
        self._shown = out.isatty()

    def following(self, send: stream.Sender) -> stream.Sender:
        """Return a sender that does the same and moves the bar."""

        async def followed(
            target: Target, dialect: Dialect, body: Mapping[str, object], deadlines: stream.Deadlines
        ) -> Exchange:
            self._show()
            exchange = await send(target, dialect, body, deadlines)
            self._done += 1
            self._show()
            return exchange

        return followed

    def end(self) -> None:
        """Take the bar away."""
        if self._shown:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _show(self) -> None:
        if self._shown:
            # A server that refused a key of the request is asked once more than was planned.
            full = 30 * min(self._done, self._total) // self._total
            self._out.write(f"\rprobing [{'#' * full}{'.' * (30 - full)}] {self._done}/{self._total}")
            self._out.flush()
