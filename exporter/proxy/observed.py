"""The numbers of real traffic through one proxy: what requests add to them, and what /metrics says of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from exporter.catalogue import bound_text
from exporter.model import Sample
from exporter.probe.instruments import BUCKETS
from exporter.relay.render import render

REASONS = ("stop", "length", "error", "client_gone", "overload")
"""How a request may finish; all are there for a model in memory, so that the first of each is an increase."""

_BOUNDS = tuple(bound_text(bound) for bound in (*BUCKETS, float("inf")))

TOKENS_PER_BYTE = 0.25
"""What a byte of a request comes to before a server's count has told better: English text in JSON."""


class Running(Protocol):
    """A request under way: `begun_at` and `first_at` are in seconds, the latter None before the first token."""

    begun_at: float
    first_at: float | None

    @property
    def label(self) -> str:
        """The model's name as it is exported."""
        ...

    def context(self, tokens_per_byte: float) -> float:
        """Return the tokens that it holds in the context by now; the prompt's are estimated until they are told."""
        ...


class Histogram:
    """Counts by bucket, not cumulated, and the sum of all values in seconds."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(BUCKETS, seconds)] += times
        self.sum += seconds * times


class ModelNumbers:
    """What is known of one model's requests: histograms in seconds, tokens (None where no server told), finishes."""

    def __init__(self) -> None:
        self.ttft = Histogram()
        self.itl = Histogram()
        self.tpot = Histogram()
        self.duration = Histogram()
        self.queue = Histogram()
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.generation_tokens = 0
        self.finished: Counter[str] = Counter()
        self._told = (0, 0)

    @property
    def tokens_per_byte(self) -> float:
        """How many prompt tokens the requests so far had per byte."""
        tokens, size = self._told
        return tokens / size if tokens and size else TOKENS_PER_BYTE

    def count_prompt(self, tokens: int, size: int) -> None:
        """Add a prompt by the server's count, which a request of `size` bytes held."""
        self.prompt_tokens = (self.prompt_tokens or 0) + tokens
        self._told = (self._told[0] + tokens, self._told[1] + size)

    def samples(self, model: str) -> Iterator[Sample]:
        """Yield the counters and histograms; what not every server tells, queue and tokens, only once it was told."""
        labels = (("model", model),)
        for name, histogram in (
            ("time_to_first_token", self.ttft), ("inter_token_latency", self.itl), ("time_per_output_token", self.tpot),
            ("request_duration", self.duration), ("request_queue", self.queue),
        ):  # fmt: skip
            if any(histogram.counts) or histogram is not self.queue:
                yield from _histogram(f"vitals_{name}_seconds", labels, histogram)
        for name, value in (
            ("prompt", self.prompt_tokens), ("cached_prompt", self.cached_tokens),
            ("generation", self.generation_tokens),
        ):  # fmt: skip
            if value is not None:
                yield _one(f"{name}_tokens_total", value, labels)
        for reason in REASONS:
            yield _one("requests_finished_total", self.finished[reason], (*labels, ("reason", reason)))


class Observed:
    """All numbers of one target's proxy.

    `slots` requests of a model run at once, the rest of them wait.  `contexts` returns the context length of a
    slot in tokens, by model in memory; `context` holds for every other model, None where it is not known.
    """

    def __init__(
        self, target: str, slots: int, contexts: Callable[[], Mapping[str, float]], context: float | None = None
    ) -> None:
        self.under_way: set[Running] = set()
        self._target = target
        self._slots = slots
        self._contexts = contexts
        self._context = context
        self._models: dict[str, ModelNumbers] = {}

    def of(self, model: str) -> ModelNumbers:
        """Return the numbers of a model, by the name that it is exported under."""
        if model not in self._models:
            self._models[model] = ModelNumbers()
        return self._models[model]

    def samples(self) -> Sequence[Sample]:
        """Return all of them as samples."""
        contexts = self._contexts()
        by_model: dict[str, list[Running]] = {model: [] for model in (*self._models, *contexts)}
        for request in self.under_way:
            by_model.setdefault(request.label, []).append(request)
        out: list[Sample] = []
        for model, requests in by_model.items():
            numbers = self.of(model)
            out += numbers.samples(model)
            out += self._load(model, requests, contexts.get(model, self._context), numbers.tokens_per_byte)
        return out

    def blocks(self, backend: str) -> Mapping[str, str]:
        """Return them as finished text lines by family, as readings do (see exporter.model.Readings)."""
        return render(self._target, backend, self.samples())

    def _load(
        self, model: str, requests: Collection[Running], context: float | None, tokens_per_byte: float
    ) -> Iterator[Sample]:
        labels = (("model", model),)
        running = min(len(requests), self._slots)
        yield _one("requests_running", running, labels)
        yield _one("requests_waiting", len(requests) - running, labels)
        if context:
            # Who has a first token holds a slot; those after them get theirs in the order they came.
            order = sorted(requests, key=lambda request: (request.first_at is None, request.begun_at))
            used = sum(min(request.context(tokens_per_byte), context) for request in order[:running])
            yield _one("kv_cache_usage_ratio", used / (context * self._slots), labels)


def _one(name: str, value: float, labels: tuple[tuple[str, str], ...]) -> Sample:
    return Sample(f"vitals_{name}", f"vitals_{name}", labels, repr(float(value)))


def _histogram(family: str, labels: tuple[tuple[str, str], ...], histogram: Histogram) -> Iterator[Sample]:
    total = 0
    for bound, total in zip(_BOUNDS, accumulate(histogram.counts), strict=True):
        yield Sample(family, f"{family}_bucket", (*labels, ("le", bound)), repr(float(total)))
    yield Sample(family, f"{family}_sum", labels, repr(histogram.sum))
    yield Sample(family, f"{family}_count", labels, repr(float(total)))
