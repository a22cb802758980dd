"""What `llm-vitals probe` tells: quantiles, the two prompt sizes side by side, and which half is slow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from exporter.probe.result import PHASES, ProbeResult, compare

ANSWER = 200
"""Tokens of the answer for which the two halves of a request are compared, after a prompt of the larger size."""

Figures = dict[str, float | None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report:
    """The good warm probes of one model by kind of prompt (small, large), all in seconds and tokens per second."""

    url: str
    engine: str
    model: str
    results: Mapping[str, Sequence[ProbeResult]]

    def figures(self, kind: str) -> Figures:
        """Return one column: quantiles over the probes of a kind, medians of the rest; None is what was not told."""
        results = self.results[kind]
        ttft, gaps = _all(results, lambda r: r.ttft), [gap for result in results for gap in result.gaps]
        phases = {
            f"{phase}_seconds": _quantile(0.5, [r.phases[phase] for r in results if phase in r.phases])
            for phase in PHASES
        }
        return {
            "prompt_tokens": _quantile(0.5, _all(results, lambda r: r.prompt_tokens)),
            "output_tokens": _quantile(0.5, _all(results, lambda r: r.output_tokens)),
            "ttft_p50_seconds": _quantile(0.5, ttft),
            "ttft_p99_seconds": _quantile(0.99, ttft),
            "itl_p50_seconds": _quantile(0.5, gaps),
            "itl_p99_seconds": _quantile(0.99, gaps),
            "tpot_seconds": _quantile(0.5, _all(results, lambda r: r.tpot)),
            "prefill_tokens_per_second": _quantile(0.5, _all(results, lambda r: r.prefill_rate)),
            "decode_tokens_per_second": _quantile(0.5, _all(results, lambda r: r.decode_rate)),
            **phases,
        }

    def as_dict(self) -> dict[str, object]:
        """Return everything for JSON."""
        slope, fixed = self._line()
        slow, sentence = self.verdict()
        return {
            "url": self.url,
            "engine": self.engine,
            "model": self.model,
            "probes": {kind: len(results) for kind, results in self.results.items()},
            "prompts": {kind: self.figures(kind) for kind in self.results},
            "coalesced": self._coalesced(),
            "prefill_seconds_per_token": slope,
            "prefill_fixed_seconds": fixed,
            "slow_half": slow,
            "verdict": sentence,
        }

    def as_text(self) -> str:
        """Return the table and the sentence."""
        columns = {kind: self.figures(kind) for kind in self.results}
        count = len(next(iter(self.results.values())))
        probes = "1 probe" if count == 1 else f"{count} probes"
        lines = [f"{self.model} on {self.engine} at {self.url}; {probes} a size", ""]
        lines.append(f"{'prompt':<24}" + "".join(f"{kind:>14}" for kind in columns))
        for key in next(iter(columns.values())):
            values = [figures[key] for figures in columns.values()]
            if any(value is not None for value in values):
                lines.append(f"{_title(key):<24}" + "".join(f"{_written(key, value):>14}" for value in values))
        slope, fixed = self._line()
        if slope is not None and fixed is not None:
            lines += ["", f"each prompt token adds {slope * 1000:.3g} ms to the TTFT, on top of {fixed * 1000:.3g} ms"]
        if self._coalesced():
            lines += ["", "the answers came in few large pieces, as behind a buffering proxy: there is no ITL"]
        return "\n".join([*lines, "", self.verdict()[1]]) + "\n"

    def verdict(self) -> tuple[str | None, str]:
        """Return which half of a usual request is the slow one, prefill or decode, and a sentence that says so."""
        kind = "large" if "large" in self.results else "small"
        figures = self.figures(kind)
        ttft, tokens, tpot = figures["ttft_p50_seconds"], figures["prompt_tokens"], figures["tpot_seconds"]
        if ttft is None or tpot is None:
            why = "the answers came in large pieces" if self._coalesced() else "the server counts no tokens"
            return None, f"Whether prefill or decode is the slow half cannot be told: {why}."
        # What was not the model's work is no part of either half.
        prefill = ttft - (figures["queue_seconds"] or 0.0) - (figures["load_seconds"] or 0.0)
        decode = tpot * (ANSWER - 1)
        slow, fast = ("prefill", "decode") if prefill > decode else ("decode", "prefill")
        times = {"prefill": prefill, "decode": decode}
        asked = "The longest prompt" if tokens is None else f"A prompt of {tokens:,.0f} tokens"
        return slow, (
            f"{slow.capitalize()} is the slow half: {asked[0].lower()}{asked[1:]} takes {_time(prefill)} to prefill, "
            f"{ANSWER} tokens of answer {_time(decode)} to decode ({times[slow] / max(times[fast], 1e-9):.1f} times)."
        )

    def _line(self) -> tuple[float | None, float | None]:
        """Return the median slope and intercept of the pairs of a small and a large prompt."""
        pairs = zip(self.results.get("small", ()), self.results.get("large", ()), strict=False)
        lines = [compare({"small": small, "large": large}) for small, large in pairs]
        return (
            _quantile(0.5, _all(lines, lambda line: line.seconds_per_token)),
            _quantile(0.5, _all(lines, lambda line: line.fixed)),
        )

    def _coalesced(self) -> bool:
        return any(result.coalesced for results in self.results.values() for result in results)


def _all(items: Sequence[T], value: Callable[[T], float | None]) -> list[float]:
    return [found for item in items if (found := value(item)) is not None]


def _quantile(q: float, values: Sequence[float]) -> float | None:
    """Return the median, or the value by nearest rank; None of nothing."""
    if not values:
        return None
    return statistics.median(values) if q == 0.5 else sorted(values)[math.ceil(q * len(values)) - 1]


def _title(key: str) -> str:
    words = key.removesuffix("_seconds").replace("_tokens_per_second", " tokens/s").replace("_", " ")
    return words.replace("ttft", "TTFT").replace("itl", "ITL").replace("tpot", "TPOT")


def _written(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return _time(value) if key.endswith("_seconds") else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
