"""Somebody who uses a simulated server: requests arrive at random, share a system prompt and continue conversations."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from exporter.simulator.clock import Clock
from exporter.simulator.lengths import SHAREGPT, Lengths

Send = Callable[[list[int], int, int | None], Awaitable[list[int] | None]]
"""Sends a prompt with max_tokens and the length at which the model stops; returns the answer or None."""


@dataclass(frozen=True, slots=True)
class Load:
    """What users do: `rate` requests/s, whose gaps have the coefficient of variation `burstiness`.

    1 is a Poisson process; above it, gamma-distributed gaps make bursts (the code trace of Azure 2023 has 13,
    the conversation trace 1.1).  `follow_up` is the share of requests that continue an earlier conversation;
    the others begin one, after a system prompt that all share.
    """

    rate: float
    lengths: Lengths = SHAREGPT
    burstiness: float = 1.0
    follow_up: float = 0.4
    system_prompt: int = 160


class Users:
    """Makes prompts; what a conversation has grown to is remembered for its next turn."""

    def __init__(self, seed: int, longest_prompt: int, conversations: int = 50) -> None:
        self._random = random.Random(seed)  # noqa: S311 - simulated traffic, reproducible
        self._longest = longest_prompt
        self._open: deque[list[int]] = deque(maxlen=conversations)
        self._system: list[int] = []

    def gap(self, load: Load) -> float:
        """Return seconds until the next request."""
        shape = 1.0 / load.burstiness**2
        return self._random.gammavariate(shape, 1.0 / (load.rate * shape))

    def prompt(self, load: Load) -> tuple[list[int], int]:
        """Return a prompt's tokens and the length of the answer to it."""
        turn = self.tokens(load.lengths.prompt.draw(self._random))
        answer = load.lengths.output.draw(self._random)
        if self._open and self._random.random() < load.follow_up:
            index = self._random.randrange(len(self._open))
            history = self._open[index]
            del self._open[index]
            if len(history) + len(turn) <= self._longest:
                return history + turn, answer
        while len(self._system) < load.system_prompt:
            self._system.append(self._random.randrange(1 << 31))
        return (self._system[: load.system_prompt] + turn)[: self._longest], answer

    def tokens(self, count: int) -> list[int]:
        """Return tokens that nobody has used before."""
        return [self._random.randrange(1 << 31) for _ in range(count)]

    def answered(self, prompt: list[int], answer: list[int]) -> None:
        """Remember a conversation."""
        self._open.append(prompt + answer)


class Traffic:
    """Sends what `users` make to one server; `load` can be changed at any time, None is silence."""

    def __init__(self, send: Send, users: Users, clock: Clock) -> None:
        self.load: Load | None = None
        self.users = users
        self._send = send
        self._clock = clock

    async def run(self) -> None:
        """Send for ever; the owner cancels it."""
        async with asyncio.TaskGroup() as requests:
            while True:
                load = self.load
                at = self._clock.now() + (self.users.gap(load) if load is not None else 1.0)
                while self.load is load and self._clock.now() < at:
                    await self._clock.sleep_until(min(at, self._clock.now() + 1.0))
                if load is not None and self.load is load:
                    prompt, answer = self.users.prompt(load)
                    requests.create_task(self.one(prompt, answer))

    async def one(self, prompt: list[int], answer: int) -> None:
        """Send one request and remember the conversation."""
        reply = await self._send(prompt, 2 * answer, answer)
        if reply is not None:
            self.users.answered(prompt, reply)
