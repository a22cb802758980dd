"""Simulated servers that are driven into a state, or their figures made up, and the verdict that comes of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random

import httpx
from prometheus_client import CollectorRegistry

from exporter.backends.ollama import OllamaReader
from exporter.backends.vllm import VLLM
from exporter.model import Outcome, Sample, Snapshot
from exporter.physics.view import Diagnosis
from exporter.physics.watch import Watch
from exporter.probe.hosts.ollama import OllamaHost
from exporter.probe.hosts.openai import OpenAIHost
from exporter.probe.instruments import Instruments
from exporter.probe.result import ProbeResult
from exporter.probe.schedule import Prober
from exporter.probe.stream import sender
from exporter.relay.memory import Memory
from exporter.relay.normalize import PageReader
from exporter.settings import ProbeSettings, Target
from exporter.simulator.clock import ManualClock
from exporter.simulator.ollama import OllamaServer
from exporter.simulator.server import Server
from exporter.simulator.vllm import VllmServer
from exporter.vitals import ITL
from tests.simulated import serving

SCRAPE = 5.0
"""Simulated seconds between two readings."""

PROBES = ProbeSettings(interval=20.0, kinds=("small",), max_tokens=16, max_share=1.0)


@dataclass(slots=True)
class Driven:
    """A server with users, probes and a watch on one simulated clock; `seen` has the verdict after each reading."""

    server: Server
    clock: ManualClock
    watch: Watch
    read: Callable[[], Awaitable[Snapshot]]
    prober: Prober
    observed: Callable[[Driven, Snapshot], None] | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    async def run(self, seconds: float) -> list[str]:
        """Let time pass, reading as Prometheus does; return the verdicts seen meanwhile."""
        before = len(self.seen)
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            await self.clock.advance(SCRAPE)
            snapshot = await self.clock.run(self.read())
            samples = snapshot.readings.samples() if snapshot.readings else ()
            snapshot = replace(snapshot, at=self.clock.unix(self.clock.now()))
            self.watch.observe(snapshot, samples, self.prober.last)
            if self.observed is not None:
                self.observed(self, snapshot)
            self.seen.append(self.diagnosis.cause)
            for task in self.tasks:
                if task.done():
                    task.result()
        return self.seen[before:]

    @property
    def diagnosis(self) -> Diagnosis:
        (diagnosis,) = self.watch.diagnoses()
        return diagnosis

    def start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task

    def users(self, count: int, prompt: int, output: int, pause: float = 0.0) -> list[asyncio.Task[None]]:
        """Start users who ask again and again with fresh prompts, `pause` seconds after each answer."""
        return [self.start(self._user(number, prompt, output, pause)) for number in range(count)]

    async def _user(self, seed: int, prompt: int, output: int, pause: float) -> None:
        random = Random(seed)
        await self.clock.sleep_until(self.clock.now() + random.uniform(0, 1 + pause))
        while True:
            await self.server.send([random.randrange(1 << 31) for _ in range(prompt)], output, output)
            await self.clock.sleep_until(self.clock.now() + pause)

    def leave(self) -> None:
        """Let all users go."""
        for task in self.tasks:
            task.cancel()
        self.tasks.clear()


@asynccontextmanager
async def driven(
    server: VllmServer | OllamaServer, observed: Callable[[Driven, Snapshot], None] | None = None, **settings: object
) -> AsyncIterator[Driven]:
    """Serve, probe and watch until the block ends; `settings` are keys of the target.

    `observed` is called after each reading.
    """
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(server))
        clock = server.clock
        assert isinstance(clock, ManualClock)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=None))
        backend = "ollama" if isinstance(server, OllamaServer) else "vllm"
        target = replace(Target("box", server.url, backend, probe=PROBES), **settings)  # type: ignore[arg-type]  # any key

        def wall() -> float:
            return clock.unix(clock.now())

        async def sleep(seconds: float) -> None:
            await clock.sleep_until(clock.now() + seconds)

        ollama = OllamaReader(target, client, clock.now)
        pages = PageReader(VLLM, target.name, Memory(VLLM))

        async def read() -> Snapshot:
            if not server.up:
                return Snapshot(target.name, backend, Outcome.CONNECT, 0.0, 0.0, "no connection")
            if isinstance(server, OllamaServer):
                return await ollama.read(60.0)
            page = pages.read(server.metrics.render().decode())
            return Snapshot(target.name, backend, page.outcome, 0.0, 0.0, readings=page.readings, report=page.report)

        host = OllamaHost(target, client, wall) if backend == "ollama" else OpenAIHost(target, client, "vllm")
        prober = Prober(
            target, host, Instruments(CollectorRegistry()), sender(client, clock.now),
            clock=clock.now, wall=wall, sleep=sleep, random=Random(1),
        )  # fmt: skip
        made = Driven(server, clock, Watch(target), read, prober, observed)
        probing = asyncio.ensure_future(prober.run())
        try:
            yield made
        finally:
            made.leave()
            probing.cancel()
            await asyncio.wait([probing])


TARGET = Target("box", "http://box:8000", "vllm")
ENGINE = (("model", "m"), ("engine", "0"))
BUSY = {
    "vitals_requests_running": 4.0,
    "vitals_requests_waiting": 0.0,
    "vitals_kv_cache_usage_ratio": 0.3,
    "vitals_generation_tokens_total": 100.0,
    "vitals_prompt_tokens_total": 100.0,
    "vitals_preemptions_total": 0.0,
    "vitals_spec_decode_accepted_tokens_total": 0.0,
}
COUNTERS = [name for name in BUSY if name.endswith("_total")]


class Story:
    """A target's readings, one every three seconds, and the verdicts that come of them."""

    def __init__(self, target: Target = TARGET) -> None:
        self.watch = Watch(target)
        self.at = 1_000_000.0
        self.totals = dict.fromkeys(COUNTERS, 0.0)
        self.steps: list[float] = []
        self.seen: list[str] = []

    def read(
        self, probes: dict[tuple[str, str], ProbeResult] | None = None, /, step: float | None = None, **figures: float
    ) -> str:
        """Take a reading; counters are given as increases, `step` is the seconds of each of ten more engine steps."""
        self.at += 3.0
        given = {**BUSY, **{f"vitals_{name}": value for name, value in figures.items()}}
        for name in COUNTERS:
            self.totals[name] += given[name]
        samples = [Sample(name, name, ENGINE, repr(value)) for name, value in {**given, **self.totals}.items()]
        if step is not None:
            self.steps += [step] * 10
            samples += self._itl()
        return self._observe(Snapshot("box", "vllm", Outcome.OK, self.at, 0.1), samples, probes or {})

    def _itl(self) -> list[Sample]:
        parts: list[tuple[str, tuple[tuple[str, str], ...], float]]
        parts = [("_sum", ENGINE, sum(self.steps)), ("_count", ENGINE, float(len(self.steps)))]
        for bound in (0.05, 0.2, math.inf):
            labels = (*ENGINE, ("le", repr(bound)))
            parts.append(("_bucket", labels, float(sum(step <= bound for step in self.steps))))
        return [Sample(ITL, f"{ITL}{part}", labels, repr(value)) for part, labels, value in parts]

    def fail(self) -> str:
        self.at += 3.0
        return self._observe(Snapshot("box", "vllm", Outcome.CONNECT, self.at, 0.1, "no connection"), [], {})

    def _observe(self, snapshot: Snapshot, samples: list[Sample], probes: dict[tuple[str, str], ProbeResult]) -> str:
        if self.watch.due(snapshot.at):
            self.watch.observe(snapshot, samples, probes)
        (diagnosis,) = self.watch.diagnoses()
        self.seen.append(diagnosis.cause)
        return diagnosis.cause

    def changes(self) -> list[str]:
        """Return the verdicts without repetitions."""
        return [cause for before, cause in zip(["", *self.seen], self.seen, strict=False) if cause != before]
