"""The engine: continuous batching as a state machine that knows no clock; `step(now)` tells how long it takes."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from exporter.simulator import words
from exporter.simulator.cache import Cache, Held
from exporter.simulator.hardware import Cost, Device, Model, step_cost
from exporter.simulator.truth import FinishReason, Record


@dataclass(frozen=True, slots=True)
class Limits:
    """How an engine schedules; the names are vLLM's.

    A request that decodes proposes up to `num_speculative_tokens` a step, each accepted with probability
    `acceptance` if those before it were; proposing costs nothing (n-gram drafts), verifying does.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    num_speculative_tokens: int = 0
    acceptance: float = 0.7


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside the engine; `end` is where its output stops and `reason` why."""

    record: Record
    held: Held
    end: int
    reason: FinishReason
    seed: int
    computed: int = 0

    @property
    def generated(self) -> list[int]:
        """The tokens of the answer so far."""
        return self.held.tokens[self.record.prompt_tokens :]


@dataclass(frozen=True, slots=True)
class Output:
    """What one step brought to one request: its first token, or a later one after a gap of seconds."""

    sequence: Sequence
    tokens: int
    gap: float | None
    finished: bool


@dataclass(slots=True, eq=False)
class Step:
    """One forward pass: what it took (seconds), what it brought, and the engine's state at its end."""

    start: float
    duration: float = 0.0
    cost: Cost | None = None
    outputs: list[Output] = field(default_factory=list)
    preempted: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)
    drafts: int = 0
    draft_tokens: int = 0
    running: int = 0
    waiting: int = 0
    usage: float = 0.0

    @property
    def end(self) -> float:
        """When its outputs exist."""
        return self.start + self.duration


class Engine:
    """A model on a device with a cache; times go in and out as seconds of whatever clock the caller has.

    Scheduling is vLLM V1's first come, first served: running requests first, one token each or the next
    chunk of their prompt; if blocks run out the youngest is preempted and computed again later; new ones
    are admitted while the token budget, `max_num_seqs` and the cache allow.
    """

    def __init__(self, device: Device, model: Model, cache: Cache, limits: Limits, seed: int = 0) -> None:
        self.device = device
        self.model = model
        self.cache = cache
        self.limits = limits
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._random = random.Random(seed)  # noqa: S311 - simulated noise, reproducible
        self._count = 0

    def add(self, prompt: list[int], max_tokens: int, now: float, stop_after: int | None = None) -> Sequence:
        """Queue a request; the model ends its answer by itself after `stop_after` tokens (None: never)."""
        if not prompt or max_tokens < 1:
            raise ValueError(f"a request needs a prompt and max_tokens >= 1, got {len(prompt)} and {max_tokens}")
        self._count += 1
        stops = stop_after is not None and stop_after <= max_tokens
        sequence = Sequence(
            record=Record(self._count, now, len(prompt), max_tokens),
            held=Held(list(prompt)),
            end=max(1, stop_after) if stops and stop_after is not None else max_tokens,
            reason="stop" if stops else "length",
            seed=self._random.randrange(1 << 30),
        )
        self.waiting.append(sequence)
        return sequence

    def abort(self, sequence: Sequence, now: float, reason: FinishReason = "abort") -> bool:
        """End a request that its client has left; False if it had ended already."""
        if sequence.record.reason is not None:
            return False
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        for times in (sequence.record.token_times, sequence.record.updates):
            while times and times[-1] > now:  # the step under way will not reach the client
                times.pop()
        self._finish(sequence, now, reason)
        return True

    def state(self, now: float) -> Step:
        """Return a step in which nothing was done: the queue and the cache as they are."""
        return Step(now, running=len(self.running), waiting=len(self.waiting), usage=self.cache.usage)

    def step(self, now: float) -> Step | None:
        """Run one forward pass from `now` on; None if there is nothing to compute."""
        step = Step(now)
        batch = self._schedule(step)
        if not batch:
            return self.step(now) if step.preempted else None
        tokens = sum(size for _, size, _ in batch)
        context = sum(sequence.computed + size for sequence, size, _ in batch)
        pairs = sum(size * sequence.computed + size * (size + 1) / 2 for sequence, size, _ in batch)
        step.cost = step_cost(self.device, self.model, tokens, context, pairs)
        noise = self._random.lognormvariate(0.0, self.device.jitter) if self.device.jitter else 1.0
        step.duration = step.cost.seconds + self.device.overhead * noise
        for sequence, size, drafts in batch:
            self._apply(step, sequence, size, drafts)
        if any(output.finished for output in step.outputs):
            self.running = [sequence for sequence in self.running if sequence.record.reason is None]
        step.running, step.waiting, step.usage = len(self.running), len(self.waiting), self.cache.usage
        return step

    def _schedule(self, step: Step) -> list[tuple[Sequence, int, int]]:
        """Choose (request, tokens to compute, how many of them are drafts) for this step."""
        batch: list[tuple[Sequence, int, int]] = []
        budget = self.limits.max_num_batched_tokens
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            rest = len(sequence.held.tokens) - sequence.computed
            drafts = min(self._drafts(sequence), max(0, budget - rest))
            size = min(rest + drafts, budget)
            if not self._make_room(step, sequence, sequence.computed + size):
                break
            batch.append((sequence, size, drafts))
            budget -= size
            index += 1
        while self.waiting and budget > 0 and not step.preempted:
            late = self.waiting[0].record.arrival > step.start  # a caller's clock may be ahead of the engine's
            if late or len(self.running) >= self.limits.max_num_seqs:
                break
            admitted = self._admit(step, self.waiting[0], budget)
            if not admitted:
                break
            batch.append((self.waiting.popleft(), admitted, 0))
            budget -= admitted
        return batch

    def _drafts(self, sequence: Sequence) -> int:
        if not self.limits.num_speculative_tokens or not sequence.record.token_times:
            return 0
        return min(self.limits.num_speculative_tokens, sequence.end - sequence.record.output_tokens - 1)

    def _make_room(self, step: Step, sequence: Sequence, upto: int) -> bool:
        """Preempt from the youngest on until `sequence` has room; False if it had to go itself."""
        while not self.cache.extend(sequence.held, upto):
            victim = self.running.pop()
            self.cache.release(victim.held)
            victim.computed = 0
            victim.record.preemptions += 1
            self.waiting.appendleft(victim)
            step.preempted += 1
            if victim is sequence:
                return False
        return True

    def _admit(self, step: Step, sequence: Sequence, budget: int) -> int:
        """Admit a waiting request and return how many tokens it computes now, 0 if it cannot be admitted."""
        cached = self.cache.lookup(sequence.held)
        size = min(len(sequence.held.tokens) - cached, budget)
        if not self.cache.admit(sequence.held, cached, cached + size):
            return 0
        sequence.computed = cached
        self.running.append(sequence)
        record = sequence.record
        if record.scheduled is None:  # vLLM 0.32 counts an admission after a preemption in neither counter
            record.scheduled = step.start
            record.cached_tokens = cached
            step.queried_tokens += len(sequence.held.tokens)
            step.hit_tokens += cached
        return size

    def _apply(self, step: Step, sequence: Sequence, size: int, drafts: int) -> None:
        held, record = sequence.held, sequence.record
        if sequence.computed + size - drafts < len(held.tokens):
            sequence.computed += size
            return
        accepted = self._accepted(drafts)
        if drafts:
            step.drafts += 1
            step.draft_tokens += drafts
            step.accepted_at.extend(range(accepted))
        sequence.computed = len(held.tokens) + accepted
        for _ in range(1 + accepted):
            held.tokens.append(words.generated(sequence.seed, record.output_tokens))
            record.token_times.append(step.end)
        gap = step.end - record.updates[-1] if record.updates else None
        record.updates.append(step.end)
        finished = record.output_tokens >= sequence.end
        if finished:
            self._finish(sequence, step.end, sequence.reason)
        step.outputs.append(Output(sequence, 1 + accepted, gap, finished))

    def _accepted(self, drafts: int) -> int:
        for index in range(drafts):
            if self._random.random() >= self.limits.acceptance:
                return index
        return drafts

    def _finish(self, sequence: Sequence, now: float, reason: FinishReason) -> None:
        sequence.record.finished, sequence.record.reason = now, reason
        self.cache.release(sequence.held)
