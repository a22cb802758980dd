"""Probes one server again and again without disturbing it: one request at a time, and a bounded share of its time."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from random import Random, SystemRandom

from exporter.access import blank
from exporter.backends.ollama_api import ApiError
from exporter.probe import prompt
from exporter.probe.dialects import DIALECTS
from exporter.probe.events import Ask
from exporter.probe.hosts import Host, Model, wanted
from exporter.probe.instruments import Instruments
from exporter.probe.result import Exchange, ProbeResult, Reason, compare, measure
from exporter.probe.stream import Deadlines, Sender
from exporter.settings import PROBE_KINDS, Target

TOKENS = {"small": 200, "large": 2000}
"""The sizes of prompts, by the server's own count."""

FITTING = 0.8
"""Share of the context, less the answer, that a prompt may fill while its size is only known about."""

LONGEST_JITTER = 10.0
"""Seconds over which the first turns are spread, or one interval if that is less."""

JITTER = 0.1
"""Share of the interval by which a pause is shorter or longer, so that exporters do not stay in step."""

log = logging.getLogger(__name__)


class Prober:
    """Probes a server's models, one after the other, every `target.probe.interval` or less often.

    `last`: by model and kind, the last result for each model that is still there.  `skipped`: by model, why it
    is not probed.
    """

    def __init__(
        self,
        target: Target,
        host: Host,
        instruments: Instruments,
        send: Sender,
        *,
        clock: Callable[[], float] = time.perf_counter,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Random | None = None,
    ) -> None:
        self.last: dict[tuple[str, str], ProbeResult] = {}
        self.skipped: dict[str, str] = {}
        self._target = target
        self._host = host
        self._instruments = instruments
        self._send = send
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._random = random or SystemRandom()
        self._readable = True
        self._known: dict[str, str] = {}
        self._warm: set[str] = set()
        self._ratios: dict[tuple[str, str], float] = {}
        self._costs: dict[tuple[str, str], float] = {}
        self._refused: set[str] = set()
        self._spent = 0.0

    async def run(self) -> None:
        """Probe until cancelled."""
        settings = self._target.probe
        await self._pause(self._random.uniform(0, min(settings.interval, LONGEST_JITTER)))
        while True:
            began = self._clock()
            spent = await self.turn()
            interval = settings.interval * self._random.uniform(1 - JITTER, 1 + JITTER)
            await self._pause(max(interval, spent / settings.max_share) - (self._clock() - began))
            self._instruments.spend(self._target.name, self._host.backend, spent / (self._clock() - began))

    async def turn(self) -> float:
        """Probe each wanted model once with each kind of prompt; return the seconds of the server that took."""
        self._spent = 0.0
        for name in [name for name, model in (await self._look()).items() if not model.why_not]:
            await self._probe_model(name)
        return self._spent

    async def _pause(self, seconds: float) -> None:
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0:
            await self._sleep(min(left, self._host.look_every or left))
            if self._host.look_every is not None:
                await self._look()

    async def _look(self) -> Mapping[str, Model]:
        """Return the wanted models, none if the server does not tell; forget those that are gone."""
        try:
            models = await self._host.look()
        except ApiError as fault:
            if self._readable:
                log.warning("target %s: not probed: %s", self._target.name, blank(str(fault), self._target))
            models = {}
            self._readable = False
        else:
            if not self._readable:
                log.info("target %s: probed again", self._target.name)
            self._readable = True
        self._forget_gone({name: model.identity for name, model in models.items()})
        found = {name: model for name, model in models.items() if wanted(name, self._target.probe.models)}
        self.skipped = {name: model.why_not for name, model in found.items() if model.why_not}
        return found

    def _forget_gone(self, present: dict[str, str]) -> None:
        """Forget what was measured of models that are not there any more, or in another version."""
        for name, identity in self._known.items():
            if present.get(name) != identity and (identity or name not in present):
                self._instruments.drop_gauges(self._target.name, name)
                self.last = {key: result for key, result in self.last.items() if key[0] != name}
                self._warm.discard(name)
        self._known = present

    async def _probe_model(self, name: str) -> None:
        """Probe a model with each kind of prompt, after a warm-up if it needs one; stop at the first failure."""
        measured: dict[str, ProbeResult] = {}
        text = ""
        kinds = [kind for kind in PROBE_KINDS if kind in self._target.probe.kinds]
        for kind in kinds if name in self._warm else ["small", *kinds]:
            # Read again: during the probe before, which may have taken a minute, it may have been unloaded.
            model = (await self._look()).get(name)
            if model is None or model.why_not:
                break
            prompt_text = text if kind == "cached" else self._write(model, kind)
            if not prompt_text:
                continue
            text = prompt_text
            result = await self._probe(name, kind, text)
            if not result.ok:
                break
            if not result.cold:
                measured[kind] = result
            elif kind == "large":
                measured.clear()  # else what repeats it would be compared with the small one
        self._instruments.compare(self._target.name, self._host.backend, name, compare(measured))

    def _write(self, model: Model, kind: str) -> str:
        """Return a new prompt, "" if a large one does not fit in the context."""
        tokens = TOKENS[kind]
        if model.context is not None:
            tokens = min(tokens, int((model.context - self._target.probe.max_tokens) * FITTING))
            if kind == "large" and tokens < 2 * TOKENS["small"]:
                return ""
        return prompt.write(secrets.token_hex(8), round(tokens * self._ratio(model.name, kind)))

    def _ratio(self, name: str, kind: str) -> float:
        """Return the characters per token, learned from the same kind of prompt or else from the other."""
        other = self._ratios.get((name, "small"), prompt.CHARACTERS_PER_TOKEN)
        return self._ratios.get((name, kind), other)

    async def _probe(self, name: str, kind: str, text: str) -> ProbeResult:
        labels = (self._target.name, self._host.backend, name)
        self._instruments.prepare(*labels)
        exchange = await self._exchange(name, kind, text)
        repeated = kind == "cached"
        result = measure(
            exchange,
            at=self._wall(),
            warmup=name not in self._warm,
            min_prompt_tokens=0 if repeated else prompt.least_tokens(text),
            repeated=repeated,
        )
        result = replace(result, error=blank(result.error, self._target))
        if result.ok:
            self._warm.add(name)
        if result.ok and not repeated:
            self._ratios[name, kind] = prompt.characters_per_token(text, result.prompt_tokens, self._ratio(name, kind))
        self._spent += self._cost(name, kind, result)
        self._log_change(name, kind, result)
        self.last[name, kind] = result
        self._instruments.observe(*labels, kind, result)
        await self._settle(name, result)
        return result

    def _cost(self, name: str, kind: str, result: ProbeResult) -> float:
        """Return the seconds that a server worked for a probe: all of it but the way there and the wait for its turn.

        One that failed is taken to have cost no more than the last good one of its kind: a server that hangs works
        for nobody, and should be asked again before an hour has passed.
        """
        if not result.ok:
            return min(result.duration, self._costs.get((name, kind), result.duration))
        waits = result.phases.get("connect", 0.0) + result.phases.get("queue", 0.0)
        self._costs[name, kind] = result.duration - waits
        return self._costs[name, kind]

    async def _exchange(self, name: str, kind: str, text: str) -> Exchange:
        """Ask once; again only without a key of the request that the server refuses by its name."""
        settings = self._target.probe
        which = self._host.dialect if settings.dialect == "auto" else settings.dialect
        before = self.last.get((name, kind))
        while True:
            extras = {k: v for k, v in self._host.extras(settings.max_tokens).items() if k not in self._refused}
            keep_alive = self._host.keep_alive(name, which, before.duration if before else 1.0)
            dialect = DIALECTS[which]()
            body = dialect.body(Ask(name, text, settings.max_tokens, keep_alive, extras))
            deadlines = Deadlines(settings.first_token_timeout, settings.timeout)
            exchange = await self._send(self._target, dialect, body, deadlines)
            if exchange.failure is None or exchange.failure.reason is not Reason.HTTP_4XX:
                return exchange
            refused = {key for key in extras if key in exchange.failure.text.lower()}
            if not refused:
                return exchange
            self._refused |= refused

    async def _settle(self, name: str, result: ProbeResult) -> None:
        try:
            await self._host.settle(name, result.phases.get("queue", 0.0), refused=result.refused)
        except ApiError:
            return  # The next look tells, and says so.

    def _log_change(self, model: str, kind: str, result: ProbeResult) -> None:
        before = self.last.get((model, kind))
        if result.reason is not None and (before is None or before.reason != result.reason):
            log.warning("target %s, model %s: probe failed: %s", self._target.name, model, result.error)
        elif result.ok and before is not None and not before.ok:
            log.info("target %s, model %s: probes are good again", self._target.name, model)
