"""Wiring and lifetime: the targets with their readers and probes, and what happens to them when the config changes."""

from __future__ import annotations

import asyncio
import gc
import logging
import platform
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING

import aiohttp
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from exporter import __version__
from exporter.access import AccessError, blank
from exporter.config import Config, ConfigError, Target
from exporter.detect import UNKNOWN, make_reader
from exporter.model import Sample, Snapshot
from exporter.probe.instruments import Instruments
from exporter.relay.render import render
from exporter.relay.scrape import new_session
from exporter.state import TargetState

if TYPE_CHECKING:
    import httpx

    from exporter.probe.hosts import Host
    from exporter.probe.thread import StreamThread
    from exporter.proxy.observing import ObservingProxy

log = logging.getLogger(__name__)

AFTER_BUG = 60.0
"""Seconds before probing goes on after an error of our own."""

STREAMS_END = 1.0
"""Seconds that users' streams through a proxy get to end when the exporter ends."""

LOOK_AGAIN = 15.0
"""Seconds between two looks at a place where a server might be, while none was configured."""


class App:
    """All targets of one configuration.

    `load` reads the configuration anew and raises ConfigError; the first one is read by the caller, who
    wants to fail early.  `registry` holds what we measure ourselves and the process's own metrics.
    """

    def __init__(self, config: Config, load: Callable[[], Config]) -> None:
        self.config = config
        self._listen = config.listen
        self._load = load
        self.states: dict[str, TargetState] = {}
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._instruments = Instruments(self.registry)
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._probing: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._streams: StreamThread | None = None
        self._looking: asyncio.Task[None] | None = None
        self._retired: list[ObservingProxy] = []
        self._reloading = asyncio.Lock()
        self._reload_ok = True
        self._reloaded_at = time.time()

    @property
    def ready(self) -> bool:
        """Whether every target was tried once."""
        return all(state.tried for state in self.states.values())

    async def start(self) -> None:
        """Begin: the targets are tried once in the background, so that readiness does not wait for a scraper."""
        self._session = new_session()
        await self._apply(self.config)

    async def close(self) -> None:
        """End all work."""
        proxies = [*self._retired, *(state.proxy for state in self.states.values() if state.proxy is not None)]
        await asyncio.gather(_end(self._tasks), *(proxy.close(STREAMS_END) for proxy in proxies))
        await asyncio.gather(*(self._drop(state) for state in self.states.values()))
        if self._streams is not None:
            await self._streams.close()
        if self._session is not None:
            await self._session.close()

    async def reload(self) -> tuple[str, ...]:
        """Read the configuration again; return what is wrong with it, in which case the old one stays."""
        async with self._reloading:  # Of two at once, the one that began to read later is the one that counts.
            try:
                config = await asyncio.to_thread(self._load)
            except ConfigError as error:
                self._reload_ok = False
                for problem in error.problems:
                    log.error("configuration refused, the old one stays: %s", problem)
                return error.problems
            if config.listen != self._listen:
                log.warning("listen has changed: that takes effect when llm-vitals is started again")
            await self._apply(config)
            self._reload_ok, self._reloaded_at = True, time.time()
            log.info("configuration read again; targets now: %s", ", ".join(self.states))
            return ()

    async def poll(self, budget_s: float, at_most_old: float = 0.0) -> list[tuple[TargetState, Snapshot]]:
        """Read all targets at once, and wait for each as long as its own timeout, but at most `budget_s` seconds.

        A reading that is not older than `at_most_old` seconds is taken as it is.  A target that went meanwhile, because
        the configuration was read again, is left out.
        """
        oldest = time.time() - at_most_old
        states = list(self.states.values())

        async def one(state: TargetState) -> Snapshot:
            if at_most_old and state.last is not None and state.last.at >= oldest:
                return state.last
            return await state.poll(min(state.target.timeout, budget_s))

        snapshots = await asyncio.gather(*(one(state) for state in states))
        self._probe_what_answers()
        pairs = zip(states, snapshots, strict=True)
        return [(state, snapshot) for state, snapshot in pairs if self.states.get(state.target.name) is state]

    def blocks(self, readings: Sequence[tuple[TargetState, Snapshot]]) -> list[Mapping[str, str]]:
        """Return the lines by family of each target, and of the exporter itself."""
        own = [
            Sample("vitals_build_info", "vitals_build_info",
                   (("version", __version__), ("python", platform.python_version())), "1"),
            Sample("vitals_config_last_reload_successful", "vitals_config_last_reload_successful", (),
                   "1" if self._reload_ok else "0"),
            Sample("vitals_config_last_reload_success_timestamp_seconds",
                   "vitals_config_last_reload_success_timestamp_seconds", (), repr(self._reloaded_at)),
        ]  # fmt: skip
        return [*(state.blocks(snapshot) for state, snapshot in readings), render("", "", own)]

    async def _apply(self, config: Config) -> None:
        """Take a configuration over; a target that did not change keeps its state and its instruments."""
        assert self._session is not None
        session, before = self._session, self.states
        kept = {state.target: state for state in before.values() if state.target in config.targets}
        self.config = config
        self.states = {target.name: kept.get(target) or self._new(target, session, config) for target in config.targets}
        gone = [state for state in before.values() if state.target not in kept]
        await asyncio.gather(*(self._drop(state) for state in gone))
        self._retired = [proxy for proxy in self._retired if proxy.busy]
        await asyncio.gather(*(state.proxy.start() for state in self.states.values() if state.proxy is not None))
        for state in gone:
            self._instruments.forget(state.target.name)
        if self._looking is not None:
            self._looking.cancel()
        self._looking = self._spawn(self._first_look(), "first look at the targets")

    def _new(self, target: Target, session: aiohttp.ClientSession, config: Config) -> TargetState:
        state = TargetState(target, make_reader(target, session), wanted=not config.discovered)
        if target.proxy.listen is not None:
            from exporter.proxy.observing import ObservingProxy

            state.proxy = ObservingProxy(target, state.contexts)
        return state

    async def _drop(self, state: TargetState) -> None:
        if probing := self._probing.pop(state.target.name, None):
            await _end({probing[1]})
        if state.proxy is not None:
            await state.proxy.retire()
            self._retired.append(state.proxy)  # Its users' streams go on to their end.
        await state.close()

    async def _first_look(self) -> None:
        await self.poll(budget_s=60.0)
        # What the first readings made lives as long as the targets, and a full collection of it stops even the
        # probes' thread for tens of milliseconds.
        gc.freeze()
        while self.config.discovered and not any(state.wanted for state in self.states.values()):
            await asyncio.sleep(LOOK_AGAIN)
            await self.poll(budget_s=60.0)

    def _probe_what_answers(self) -> None:
        """Start probing the targets that turned out to be an engine, or now turn out to be another one."""
        for name, state in self.states.items():
            if state.backend == UNKNOWN or not state.wanted or not _probed(state.target):
                continue
            backend, task = self._probing.get(name, (UNKNOWN, None))
            if backend != state.backend:
                if task is not None:
                    task.cancel()
                self._probing[name] = state.backend, self._spawn(self._probe(state), f"probe {name}")

    async def _probe(self, state: TargetState) -> None:
        """Probe a target until cancelled; a bug in the probes is logged and costs a minute, not the probes."""
        # Imported late, as httpx is in detect.py.
        from exporter.backends.ollama_api import ApiError, open_client
        from exporter.probe.schedule import Prober

        if self._streams is None:
            from exporter.probe.thread import StreamThread

            self._streams = StreamThread()
            self._streams.start()
        while True:
            try:
                async with open_client(state.target) as client:
                    state.prober = Prober(state.target, _host(state, client), self._instruments, self._streams.send)
                    await state.prober.run()
            except (AccessError, ApiError) as error:
                log.error("probing %s failed: %s", state.target.name, blank(str(error), state.target))
            except Exception:
                log.exception("probing %s failed; again in %.0f s", state.target.name, AFTER_BUG)
            await asyncio.sleep(AFTER_BUG)

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended: %r", task.get_name(), error, exc_info=error)


def _host(state: TargetState, client: httpx.AsyncClient) -> Host:
    """Return what is to be probed at a target, by the engine that was found there."""
    from exporter.probe.hosts.ollama import OllamaHost
    from exporter.probe.hosts.openai import OpenAIHost, Standing

    if state.backend == OllamaHost.backend:
        return OllamaHost(state.target, client)

    async def standing() -> Standing:
        # Read now: a request to an engine that fell asleep since the last scrape can crash it.
        snapshot = await state.poll(state.target.timeout)
        samples = snapshot.readings.samples() if snapshot.readings else ()
        asleep = any(sample.family == "vitals_engine_asleep" and sample.value for sample in samples)
        return Standing(asleep, f"{snapshot.version}, {state.failures} failures")

    return OpenAIHost(state.target, client, state.backend, standing)


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(list(tasks))


def _probed(target: Target) -> bool:
    return target.probe.enabled and not target.proxy.only
