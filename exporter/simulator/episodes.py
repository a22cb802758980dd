"""What happens to a simulated vLLM and Ollama, as a script of episodes that repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from exporter.simulator.lengths import AZURE_CONVERSATION
from exporter.simulator.stage import Stage
from exporter.simulator.traffic import Load
from exporter.simulator.vllm import VllmServer

_HUGE_PROMPT = 12_000
_DOWN = 20.0
_DRAFT = 3


async def _nothing(_: Stage) -> None:
    return


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch of time: what it shows, each kind of server's load, and what else happens."""

    name: str
    seconds: float
    shows: str
    loads: dict[str, Load]
    action: Callable[[Stage], Awaitable[None]] = field(default=_nothing)


async def _huge_prompt(stage: Stage) -> None:
    """Send one prompt that takes several steps' whole budget, amid streams that feel it as a long ITL."""
    await stage.clock.sleep_until(stage.clock.now() + 20.0)
    for actor in stage.actors:
        if actor.kind == "vllm":
            await actor.server.send(actor.traffic.users.tokens(_HUGE_PROMPT), 200, 100)


async def _speculate(stage: Stage) -> None:
    for actor in stage.actors:
        if isinstance(actor.server, VllmServer):
            actor.server.speculate(_DRAFT)
            await actor.server.cool()


async def _kill(stage: Stage) -> None:
    for actor in stage.actors:
        await actor.server.kill()
        if isinstance(actor.server, VllmServer):
            actor.server.speculate(0)
    await stage.clock.sleep_until(stage.clock.now() + _DOWN)
    await asyncio.gather(*(actor.server.start_cold() for actor in stage.actors))


async def _cool(stage: Stage) -> None:
    await asyncio.gather(*(actor.server.cool() for actor in stage.actors))


_CALM = {"vllm": Load(0.5), "ollama": Load(0.08)}

EPISODES: tuple[Episode, ...] = (
    Episode("calm", 60, "a few users; latencies are those of the hardware", _CALM),
    Episode("busy", 120, "bursts of users; batches grow and ITL with them",
            {"vllm": Load(1.6, burstiness=2.0), "ollama": Load(0.12, burstiness=2.0)}),
    Episode("huge-prompt", 60, "one 12,000-token prompt amid streams; its prefill shows in everybody's ITL",
            {"vllm": Load(0.8), "ollama": Load(0.05)}, _huge_prompt),
    Episode("kv-exhausted", 90, "more conversations than KV blocks; requests wait and are preempted",
            {"vllm": Load(2.5, AZURE_CONVERSATION), "ollama": Load(0.22)}),
    Episode("recovered", 240, "the rush is over and the queue drains", _CALM),
    Episode("speculative", 120, "vLLM starts again with speculative decoding; a step brings several tokens",
            _CALM, _speculate),
    Episode("killed", 120, "both servers die, are away, and come back empty", _CALM, _kill),
    Episode("cold-start", 90, "Ollama has unloaded its model, vLLM starts again", _CALM, _cool),
)  # fmt: skip


def choose(name: str | None) -> Sequence[Episode]:
    """Return the episode of that name, or all of them; ValueError with the names there are."""
    chosen = [episode for episode in EPISODES if name in (None, episode.name)]
    if not chosen:
        names = ", ".join(episode.name for episode in EPISODES)
        raise ValueError(f"no episode is called {name!r}; there are {names}")
    return chosen


async def play(stage: Stage, episodes: Sequence[Episode], announce: Callable[[Episode], None]) -> None:
    """Run traffic and the episodes over and over on servers that have been started, until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for actor in stage.actors:
            tasks.create_task(actor.traffic.run())
        while True:
            for episode in episodes:
                announce(episode)
                until = stage.clock.now() + episode.seconds
                for actor in stage.actors:
                    actor.traffic.load = episode.loads[actor.kind]
                await episode.action(stage)
                await stage.clock.sleep_until(until)
