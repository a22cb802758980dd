"""Ollama's face: its own HTTP API and its OpenAI-compatible one over simulated engines, one a loaded model."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Awaitable, Callable
from email.utils import formatdate

from aiohttp import web

from exporter.simulator import ollama_request
from exporter.simulator.clock import Clock
from exporter.simulator.ollama_answer import Dialect, Native, OpenAI, timestamp
from exporter.simulator.ollama_models import OllamaModel, OllamaSettings
from exporter.simulator.ollama_request import OllamaAsks, OptionError
from exporter.simulator.ollama_runner import Runners, ServerBusyError, ServerGoneError
from exporter.simulator.ollama_stream import Faults, OngoingAnswer, Opening, json_reply, refuse, reply
from exporter.simulator.server import BodyError, MalformedError, Server, compact, json_object, new_application

_BUSY = "server busy, please try again.  maximum pending requests exceeded"

_KEPT = 5
"""Tokens at a prompt's start that cutting it to the context spares."""


class OllamaServer(Server):
    """A simulated Ollama; `runners` belong to the current run."""

    runners: Runners

    def __init__(
        self, settings: OllamaSettings, clock: Clock, host: str = "127.0.0.1", port: int = 0, keep: int = 2000
    ) -> None:
        super().__init__(clock, host, port, keep)
        self.settings = settings
        self.faults = Faults()
        self._random = random.Random(settings.seed)  # noqa: S311 - simulated noise, reproducible
        self._installed = clock.unix(clock.now())

    def _application(self) -> web.Application:
        self.runners = Runners(self.settings, self.clock, self.ledger)
        app = new_application()
        app.middlewares.append(self._around)
        app.add_routes([
            web.get("/", self._root),
            web.get("/api/version", self._version),
            web.get("/api/ps", self._ps),
            web.get("/api/tags", self._tags),
            web.post("/api/show", self._show),
            web.get("/v1/models", self._v1_models),
            web.post("/api/generate", self._native),
            web.post("/api/chat", self._native),
            web.post("/v1/completions", self._v1),
            web.post("/v1/chat/completions", self._v1),
        ])  # fmt: skip
        return app

    async def stop(self) -> None:
        """Close the port and unload all models."""
        was_up = self.up
        await super().stop()
        if was_up:
            await self.runners.close()

    async def cool(self) -> None:
        """Unload every model; the next request waits for a load."""
        for model in self.settings.models:
            self.runners.unload(model.name)

    def kill_runner(self, name: str) -> None:
        """Kill a loaded model's process in the middle of whatever it computes; KeyError if it is not loaded."""
        self.runners.kill(name)

    async def send(self, prompt: list[int], max_tokens: int, stop_after: int | None = None) -> list[int] | None:
        """Send a request for the first model without HTTP; return its answer, None if there is none."""
        if not self.up:
            return None
        try:
            runner = await self.runners.acquire(self.settings.models[0], None, None)
        except (ServerBusyError, ServerGoneError):
            return None
        prompt = _fit(prompt, runner.num_ctx)
        most = min(max_tokens, max(1, runner.num_ctx - len(prompt)))
        stream = runner.driver.submit(prompt, most, stop_after)
        try:
            return await stream.answer()
        finally:
            runner.driver.abort(stream)
            self.runners.release(runner)

    @web.middleware
    async def _around(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        await self._note(request)
        if not self._host_allowed(request.host):
            return web.Response(status=403)
        try:
            response = await handler(request)
        except web.HTTPNotFound:
            response = web.Response(text="404 page not found", status=404)
        if not response.prepared:
            response.headers["Date"] = formatdate(self.clock.unix(self.clock.now()), usegmt=True)
        return response

    def _host_allowed(self, host: str) -> bool:
        """Apply the rule against DNS rebinding: on a loopback address only names of this machine are served."""
        if self.host not in ("127.0.0.1", "::1", "localhost"):
            return True
        name = host.rsplit(":", 1)[0].strip("[]")
        if name in ("localhost", "") or name.endswith((".localhost", ".local", ".internal")):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    async def _root(self, _: web.Request) -> web.Response:
        return web.Response(text="Ollama is running")

    async def _version(self, _: web.Request) -> web.Response:
        return json_reply({"version": self.settings.version})

    async def _ps(self, _: web.Request) -> web.Response:
        models = [
            {
                "name": runner.model.name,
                "model": runner.model.name,
                "size": runner.size,
                "digest": runner.model.digest,
                "details": runner.model.details(),
                "expires_at": timestamp(self.clock.unix(runner.expires_at)),
                "size_vram": min(runner.size, int(self.settings.device.memory)),
                "context_length": runner.num_ctx,
            }
            for runner in self.runners.loaded()
        ]
        return json_reply({"models": models})

    async def _tags(self, _: web.Request) -> web.Response:
        return json_reply({"models": [model.tag(timestamp(self._installed)) for model in self.settings.models]})

    async def _show(self, request: web.Request) -> web.Response:
        try:
            body = await json_object(request)
        except BodyError as problem:
            return json_reply({"error": str(problem)}, 400)
        name = str(body.get("model") or body.get("name") or "")
        model = self._find(name)
        if model is None:
            return json_reply({"error": f"model '{name}' not found"}, 404)
        return json_reply(model.show(timestamp(self._installed)))

    async def _v1_models(self, _: web.Request) -> web.Response:
        own = {"object": "model", "created": int(self._installed), "owned_by": "library"}
        return json_reply({"object": "list", "data": [{"id": model.name} | own for model in self.settings.models]})

    def _find(self, name: str) -> OllamaModel | None:
        names = (name, f"{name}:latest")
        return next((model for model in self.settings.models if model.name in names), None)

    async def _native(self, request: web.Request) -> web.StreamResponse:
        chat = request.path == "/api/chat"
        dialect = Native("", chat)
        try:
            asks = ollama_request.native(await json_object(request), chat)
        except BodyError as problem:
            return refuse(dialect, _in_go(problem), 400)
        except OptionError as problem:
            return refuse(dialect, str(problem), 500)
        dialect = Native(asks.model, chat)
        model = self._find(asks.model)
        if model is not None and not asks.prompt:
            return await self._idle(dialect, asks, model)
        return await self._answer(request, asks, model, dialect)

    async def _v1(self, request: web.Request) -> web.StreamResponse:
        chat = request.path == "/v1/chat/completions"
        number = self._random.randrange(1000)
        try:
            asks, usage = ollama_request.openai(await json_object(request), chat)
        except BodyError as problem:
            return refuse(OpenAI("", chat, number, usage=False), str(problem), 400)
        return await self._answer(request, asks, self._find(asks.model), OpenAI(asks.model, chat, number, usage))

    async def _idle(self, dialect: Native, asks: OllamaAsks, model: OllamaModel) -> web.Response:
        """Answer a request without a prompt, which loads or unloads."""
        reason = "load"
        if asks.keep_alive == 0:
            self.runners.unload(model.name)
            reason = "unload"
        else:
            try:
                self.runners.release(await self.runners.acquire(model, asks.num_ctx, asks.keep_alive))
            except ServerBusyError:
                return refuse(dialect, _BUSY, 503)
        return reply(dialect.idle(reason, self.clock.unix(self.clock.now())))

    async def _answer(
        self, request: web.Request, asks: OllamaAsks, model: OllamaModel | None, dialect: Dialect
    ) -> web.StreamResponse:
        if model is None:
            return refuse(dialect, f"model '{asks.model}' not found", 404)
        if asks.think and not model.thinking:
            return refuse(dialect, f'"{asks.model}" does not support thinking', 400)
        began = self.clock.now()
        try:
            runner = await self.runners.acquire(model, asks.num_ctx, asks.keep_alive)
        except ServerBusyError:
            return refuse(dialect, _BUSY, 503)
        try:
            prompt = _fit(asks.prompt, runner.num_ctx)
            if len(prompt) < len(asks.prompt) and not asks.truncate:
                return refuse(dialect, _too_long(len(asks.prompt), runner.num_ctx), 400)
            room = max(1, runner.num_ctx - len(prompt))
            wanted = min(asks.num_predict or room, room)
            stream = runner.driver.submit(prompt, wanted, self.settings.answers.draw(self._random))
            thinking = self.settings.thinking_tokens if model.thinking and asks.think is not False else 0
            opening = Opening(began, self.clock.now() - began, thinking, self.settings.cached_count)
            answer = OngoingAnswer(stream, dialect, self.clock, self.faults, opening)
            try:
                return await (answer.stream(request) if asks.stream else answer.whole())
            finally:
                runner.driver.abort(stream)
        finally:
            self.runners.release(runner)


def _fit(prompt: list[int], num_ctx: int) -> list[int]:
    """Cut a prompt that does not fit, silently, to its start and half of the rest (131 of 406 tokens in 256)."""
    if len(prompt) < num_ctx:
        return prompt
    return [*prompt[:_KEPT], *prompt[-((num_ctx - _KEPT + 1) // 2) :]]


def _in_go(problem: BodyError) -> str:
    """Say what is wrong with a body as Go's decoder does."""
    if not isinstance(problem, MalformedError):
        return str(problem)
    return "unexpected EOF" if problem.at_end else "invalid character looking for beginning of value"


def _too_long(tokens: int, num_ctx: int) -> str:
    """Return the runner's own error, which Ollama passes on as a string of JSON."""
    message = f"request ({tokens} tokens) exceeds the available context size ({num_ctx} tokens), try increasing it"
    inner = {"code": 400, "message": message, "type": "exceed_context_size_error"}
    return compact({"error": inner | {"n_prompt_tokens": tokens, "n_ctx": num_ctx}})
