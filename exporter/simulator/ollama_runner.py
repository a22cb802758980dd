"""Ollama's scheduler: loads a model for a request, keeps it, reloads it for other options and unloads it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from exporter.simulator.cache import SlotCache
from exporter.simulator.clock import Clock
from exporter.simulator.driver import Driver
from exporter.simulator.engine import Engine, Limits
from exporter.simulator.ollama_models import OllamaModel, OllamaSettings
from exporter.simulator.truth import Ledger

WARM_LOAD = 0.001
"""Seconds that a warm request spends before its runner has it: load_duration was never seen below that."""

FOREVER = 9_223_372_036.0
"""Seconds that a negative keep_alive comes to: Go's longest duration, which lists the model until 2319."""


class ServerBusyError(Exception):
    """More requests wait for a model to be loaded than the queue takes."""


class ServerGoneError(Exception):
    """The server stopped while a request waited for a model."""


@dataclass(slots=True, eq=False)
class Runner:
    """A model in memory: `users` counts its requests; times are simulated seconds.

    A runner that is not `usable` was killed, or waits for its last user to be reloaded with other options.
    """

    model: OllamaModel
    num_ctx: int
    slots: int
    driver: Driver
    task: asyncio.Task[None]
    keep_alive: float
    expires_at: float
    users: int = 0
    usable: bool = True

    @property
    def size(self) -> int:
        """Bytes of weights and KV cache."""
        tokens = self.num_ctx * self.slots
        return int(self.model.model.weight_bytes + self.model.model.kv_bytes_per_token * tokens)


class Runners:
    """All runners of one server; one model at a time is loaded, and requests for it queue meanwhile."""

    def __init__(self, settings: OllamaSettings, clock: Clock, ledger: Ledger) -> None:
        self._settings = settings
        self._clock = clock
        self._ledger = ledger
        self._runners: dict[str, Runner] = {}
        self._loading = asyncio.Lock()
        self._queued = 0
        self._released = asyncio.Event()
        self._loads = 0
        self._closed = False

    def loaded(self) -> list[Runner]:
        """Return the runners in memory; those whose time is over are unloaded first."""
        now = self._clock.now()
        for name, runner in list(self._runners.items()):
            if not runner.users and now >= runner.expires_at:
                self._unload(name)
        return list(self._runners.values())

    async def acquire(self, model: OllamaModel, num_ctx: int | None, keep_alive: float | None) -> Runner:
        """Return the model's runner, loaded with `num_ctx` (None: the server's); give it back with `release`.

        Raises ServerBusyError if too many wait for a load already, ServerGoneError if the server stops.
        """
        context = min(num_ctx or self._settings.context_length, model.max_context)
        self._check_open()
        runner = self._fitting(model, context)
        if runner is None:
            runner = await self._queue(model, context, keep_alive)
        else:
            runner.users += 1
            try:
                await self._clock.sleep_until(self._clock.now() + WARM_LOAD)
            except asyncio.CancelledError:
                self.release(runner)
                raise
        if keep_alive is not None:
            runner.keep_alive = keep_alive
        return runner

    def release(self, runner: Runner) -> None:
        """End one use; the last one sets when the model will be unloaded."""
        runner.users -= 1
        runner.expires_at = self._clock.now() + runner.keep_alive
        self._released.set()

    def kill(self, name: str) -> None:
        """Kill a model's process: its requests fail, and it stays listed until someone asks for it."""
        runner = self._runners[name]
        runner.usable = False
        runner.driver.fail()

    async def close(self) -> None:
        """Unload everything and wait until the engines' tasks have ended."""
        self._closed = True
        self._released.set()
        tasks = [runner.task for runner in self._runners.values()]
        for name in list(self._runners):
            self._unload(name)
        await asyncio.gather(*tasks, return_exceptions=True)

    def unload(self, name: str) -> None:
        """Unload a model as soon as no request uses it."""
        runner = self._runners.get(name)
        if runner is not None:
            runner.expires_at = self._clock.now()
            runner.usable = False
            self.loaded()

    def _fitting(self, model: OllamaModel, context: int) -> Runner | None:
        self.loaded()
        runner = self._runners.get(model.name)
        return runner if runner is not None and runner.num_ctx == context and runner.usable else None

    async def _queue(self, model: OllamaModel, context: int, keep_alive: float | None) -> Runner:
        if self._loading.locked() and self._queued >= self._settings.max_queue:
            raise ServerBusyError
        self._queued += 1
        waiting = True
        try:
            async with self._loading:
                self._queued -= 1
                waiting = False
                runner = self._fitting(model, context) or await self._load(model, context, keep_alive)
                runner.users += 1
                return runner
        finally:
            if waiting:
                self._queued -= 1

    async def _load(self, model: OllamaModel, context: int, keep_alive: float | None) -> Runner:
        old = self._runners.get(model.name)
        while old is not None and old.users:
            old.usable = False
            self._released.clear()
            await self._released.wait()
            self._check_open()
        if old is not None:
            keep_alive = old.keep_alive if keep_alive is None else keep_alive
        if model.name in self._runners:  # a listing may have unloaded it meanwhile
            self._unload(model.name)
        s = self._settings
        await self._clock.sleep_until(self._clock.now() + model.model.weight_bytes / s.device.disk_bandwidth)
        self._check_open()
        self._loads += 1
        cache = SlotCache(s.num_parallel, context)
        limits = Limits(max_num_seqs=s.num_parallel, max_num_batched_tokens=s.num_batch)
        engine = Engine(s.device, model.model, cache, limits, s.seed + self._loads)
        driver = Driver(engine, self._clock, self._ledger)
        task = asyncio.create_task(driver.run(), name=f"runner of {model.name}")
        kept = s.keep_alive if keep_alive is None else keep_alive
        kept = FOREVER if kept < 0 else kept
        runner = Runner(model, context, s.num_parallel, driver, task, kept, self._clock.now() + kept)
        self._runners[model.name] = runner
        return runner

    def _check_open(self) -> None:
        if self._closed:
            raise ServerGoneError

    def _unload(self, name: str) -> None:
        runner = self._runners.pop(name)
        runner.driver.fail()
        if runner.task.done():
            runner.task.result()  # an engine that broke shows itself here
        runner.task.cancel()
