"""vLLM's face: its HTTP API over the simulated engine, recorded from version 0.32."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from aiohttp import web

from exporter.simulator import openai_request, vllm_families, words
from exporter.simulator.cache import PagedCache
from exporter.simulator.clock import Clock
from exporter.simulator.driver import Driver, Stream
from exporter.simulator.engine import Engine, Limits
from exporter.simulator.hardware import A10, LLAMA_3_1_8B, Device, Model
from exporter.simulator.lengths import SHAREGPT, LogNormal
from exporter.simulator.server import BodyError, Server, json_object, new_application
from exporter.simulator.vllm_answer import Answer, error, quoted
from exporter.simulator.vllm_metrics import Page, VllmMetrics
from exporter.simulator.vllm_page import cache_config

_UNCOUNTED = ("/metrics", "/health", "/ping", "/version", "/load")
"""Paths that vLLM leaves out of its HTTP metrics."""

_ACTIVATIONS = 1.5e9
"""Bytes kept free for activations when the number of blocks is derived from the device's memory."""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """A server's device, model and settings; names are vLLM's where it has them.

    `num_gpu_blocks` None: what the device's memory leaves.  `version`: 0.32.0, or an older one, with `-v0`
    for the older engine core.  `startup`: seconds from the process's start until it listens, on top of reading
    the weights.  `answers`: lengths at which the model ends an answer by itself.
    """

    device: Device = A10
    model: Model = LLAMA_3_1_8B
    version: str = "0.32.0"
    max_model_len: int = 16384
    block_size: int = 16
    num_gpu_blocks: int | None = None
    gpu_memory_utilization: float = 0.92
    prefix_caching: bool = True
    limits: Limits = field(default_factory=Limits)
    answers: LogNormal = SHAREGPT.output
    api_key: str | None = None
    enable_per_request_metrics: bool = False
    startup: float = 20.0
    seed: int = 0

    @property
    def blocks(self) -> int:
        """Number of KV blocks, the null block included."""
        if self.num_gpu_blocks is not None:
            return self.num_gpu_blocks
        left = self.device.memory * self.gpu_memory_utilization - self.model.weight_bytes - _ACTIVATIONS
        return int(left // (self.block_size * self.model.kv_bytes_per_token))

    @property
    def load_seconds(self) -> float:
        """Seconds from start until it listens."""
        return self.startup + self.model.weight_bytes / self.device.disk_bandwidth


class VllmServer(Server):
    """A simulated vLLM; `driver` and `metrics` belong to the current run and begin anew at each start.

    ValueError if the context does not fit in the cache or the version is none.
    """

    driver: Driver
    metrics: VllmMetrics

    def __init__(
        self,
        settings: VllmSettings,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = 0,
        keep: int = 2000,
    ) -> None:
        super().__init__(clock, host, port, keep)
        if (settings.blocks - 1) * settings.block_size < settings.max_model_len:
            raise ValueError(
                f"max_model_len {settings.max_model_len} does not fit in {settings.blocks} blocks of "
                f"{settings.block_size} tokens; give the device more memory or lower max_model_len"
            )
        vllm_families.parse(settings.version.partition("-")[0])
        self.settings = settings
        self._random = random.Random(settings.seed)  # noqa: S311 - simulated noise, reproducible
        self._runs = 0

    def _application(self) -> web.Application:
        s = self.settings
        cache = PagedCache(s.blocks, s.block_size, s.prefix_caching)
        self._runs += 1
        engine = Engine(s.device, s.model, cache, s.limits, s.seed + self._runs)
        config = cache_config(s.version, s.max_model_len, s.gpu_memory_utilization, cache, s.model)
        page = Page(s.model.name, s.version, s.max_model_len, config, s.limits.num_speculative_tokens)
        self.metrics = VllmMetrics(page, lambda: self.clock.unix(self.clock.now()))
        self.driver = Driver(engine, self.clock, self.ledger, self.metrics.on_step, self.metrics.on_end)
        self._own(asyncio.create_task(self.driver.run(), name=f"engine of {s.model.name}"))
        app = new_application()
        app.middlewares.append(self._around)
        app.on_response_prepare.append(_sign)
        app.add_routes([
            web.get("/metrics", self._metrics),
            web.get("/health", self._empty),
            web.get("/ping", self._empty),
            web.get("/version", self._version),
            web.get("/v1/models", self._models),
            web.post("/tokenize", self._tokenize),
            web.post("/v1/completions", self._complete),
            web.post("/v1/chat/completions", self._complete),
        ])  # fmt: skip
        return app

    async def start_cold(self) -> None:
        """Start as a new process does: it listens only after the weights are loaded."""
        await self.clock.sleep_until(self.clock.now() + self.settings.load_seconds)
        await self.start()

    async def stop(self) -> None:
        """Close the port; requests that did not come over HTTP end with an error."""
        was_up = self.up
        await super().stop()
        if was_up:
            self.driver.fail()

    async def cool(self) -> None:
        """Restart with nothing in the cache and counters at zero."""
        await self.kill()
        await self.start_cold()

    def speculate(self, tokens: int) -> None:
        """Propose up to so many tokens a step from the next start on; 0 turns speculative decoding off."""
        limits = replace(self.settings.limits, num_speculative_tokens=tokens)
        self.settings = replace(self.settings, limits=limits)

    async def send(self, prompt: list[int], max_tokens: int, stop_after: int | None = None) -> list[int] | None:
        """Send a request without HTTP; return its answer, None if there is none."""
        if not self.up:
            return None
        room = self.settings.max_model_len - len(prompt)
        if room < 1:
            return None
        driver = self.driver
        stream = driver.submit(prompt, min(max_tokens, room), stop_after)
        try:
            return await stream.answer()
        finally:
            driver.abort(stream)

    @web.middleware
    async def _around(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        began = self.clock.now()
        await self._note(request)
        key = self.settings.api_key
        if key and request.path.startswith("/v1") and request.headers.get("Authorization") != f"Bearer {key}":
            response: web.StreamResponse = web.json_response({"error": "Unauthorized"}, status=401)
        else:
            try:
                response = await handler(request)
            except web.HTTPException as problem:
                response = web.json_response({"detail": problem.reason}, status=problem.status)
        if request.path not in _UNCOUNTED and request.match_info.http_exception is None:
            sent = response.body_length if response.prepared else int(response.content_length or 0)
            self.metrics.on_http(
                request.method, request.path, response.status, request.content_length or 0, sent,
                self.clock.now() - began,
            )  # fmt: skip
        return response

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self.metrics.render(), headers={"Content-Type": "text/plain; version=1.0.0; charset=utf-8"}
        )

    async def _empty(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self.settings.version.partition("-")[0]})

    async def _models(self, _: web.Request) -> web.Response:
        name = self.settings.model.name
        created = int(self.clock.unix(self.clock.now()))
        model = {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": name,
            "parent": None,
        }
        data = [model | {"max_model_len": self.settings.max_model_len, "permission": []}]
        return web.json_response({"object": "list", "data": data})

    async def _tokenize(self, request: web.Request) -> web.Response:
        try:
            body = await json_object(request)
            asks = openai_request.read(body, chat="messages" in body)
        except BodyError as problem:
            return _refusal(error(str(problem), "BadRequestError", None, 400), 400)
        longest = self.settings.max_model_len
        count = {
            "count": len(asks.prompt),
            "max_model_len": longest,
            "tokens": asks.prompt,
            "token_strs": None,
        }
        return web.json_response(count)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        chat = request.path == "/v1/chat/completions"
        try:
            asks = openai_request.read(await json_object(request), chat)
        except BodyError as problem:
            return _refusal(error(str(problem), "BadRequestError", None, 400), 400)
        name, longest = self.settings.model.name, self.settings.max_model_len
        if asks.model and asks.model != name:
            text = f"The model `{asks.model}` does not exist. Valid aliases: {name}."
            return _refusal(error(text, "NotFoundError", "model", 404), 404)
        room = longest - len(asks.prompt)
        if room < 1 or (asks.max_tokens or 0) > room or not asks.prompt:
            text = (
                f"This model's maximum context length is {longest} tokens; {len(asks.prompt)} in the prompt and "
                f"{asks.max_tokens or 0} for the answer do not fit. (parameter=input_tokens, value={len(asks.prompt)})"
            )
            return _refusal(error(text, "BadRequestError", "input_tokens", 400), 400)
        stop_after = None if asks.ignore_eos else max(asks.min_tokens, self.settings.answers.draw(self._random))
        most = asks.max_tokens or (room if chat else min(16, room))
        driver = self.driver
        stream = driver.submit(asks.prompt, most, stop_after)
        kind = "chatcmpl" if chat else "cmpl"
        created = int(self.clock.unix(self.clock.now()))
        timed = stream.record if self.settings.enable_per_request_metrics else None
        answer = Answer(f"{kind}-{self._random.getrandbits(64):016x}", created, asks, timed)
        try:
            return await (self._streamed(request, stream, answer) if asks.stream else _whole(stream, answer))
        finally:
            driver.abort(stream)  # a client that has gone is not served on; after the end this does nothing

    async def _streamed(self, request: web.Request, stream: Stream, answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)  # vLLM sends the headers when it accepts, long before the first token
        before, after = answer.template()
        plain = not answer.asks.continuous_usage
        tokens = 0
        opening = answer.opening()
        while True:
            update = await stream.next()
            if update.finished in ("abort", "error"):
                text = error("EngineCore encountered an issue.", "InternalServerError", None, 500)
                await response.write(f"data: {text}\n\ndata: [DONE]\n\n".encode())
                break
            tokens += len(update.tokens)
            text = words.decode(update.tokens)
            if update.finished is None and plain:
                event = before + quoted(text) + after
            else:
                event = answer.chunk(text, tokens, update.finished)
            ending = answer.closing(tokens) if update.finished else b""
            await response.write(opening + event + ending)
            opening = b""
            if update.finished:
                break
        await response.write_eof()
        return response


async def _whole(stream: Stream, answer: Answer) -> web.Response:
    tokens: list[int] = []
    while True:
        update = await stream.next()
        tokens += update.tokens
        if update.finished in ("abort", "error"):
            return _refusal(error("EngineCore encountered an issue.", "InternalServerError", None, 500), 500)
        if update.finished:
            body = answer.whole(words.decode(tokens), len(tokens), update.finished, stream.record.cached_tokens)
            return web.Response(body=body, content_type="application/json")


async def _sign(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "uvicorn"


def _refusal(body: str, status: int) -> web.Response:
    return web.Response(text=body, status=status, content_type="application/json")
