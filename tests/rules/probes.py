"""Cases of the probes' alerts."""

from __future__ import annotations

from tests.rules.case import RESET, Case, Firing, Series, counter, fires, histogram, silent
from tests.rules.latency import ollama

FAILING, CEILING = "LLMProbeFailing", "LLMDecodeBelowCeiling"

O = {"severity": "warning", "target": "o", "backend": "ollama", "model": "q"}  # noqa: E741


def probes(target: str, *phases: tuple[int, float, float] | str) -> Series:
    """Phases are (minutes, probes a minute, those of them that fail, by timeouts and errors in equal parts)."""

    def of(count: int) -> str:
        return counter(*(p if isinstance(p, str) else (p[0], p[count] if count == 1 else p[2] / 2) for p in phases))

    labels = ollama(target)
    return {f"vitals_probes_total{{{labels}}}": of(1)} | {
        f'vitals_probe_failures_total{{{labels},reason="{reason}"}}': of(2)
        for reason in ("timeout_total", "error_in_stream")
    }


SOME_FAIL = probes("b", (30, 1, 0.2), RESET, (40, 1, 0.2))

FAILING_CASES = [
    fires(
        FAILING,
        "more than half of a quarter of an hour's probes",
        probes("o", (20, 1, 0), (40, 1, 1)) | SOME_FAIL,
        33,
        Firing(
            O | {"severity": "critical"},
            "o: probes fail",
            "86.67% of the probes of model q on o failed in the last 15m; the exporter's page /debug/o says why.",
        ),
    ),
    silent(FAILING, "one in five fails, also after a reset", SOME_FAIL, 20, 31, 32, 50, 70),
    silent(FAILING, "one failure where probes are rare", probes("o", *((14, 0, 0), (1, 1, 1)) * 3), 20, 40),
]

Latency = tuple[int, float, float]


def latency(family: str, labels: str, *phases: Latency | str) -> Series:
    """Phases are (steps, probes a step, seconds of each)."""
    return histogram(
        family, labels, *(p if isinstance(p, str) else (p[0], {"+Inf": p[1]}, p[1] * p[2]) for p in phases)
    )


def slow(what: str, family: str, unit: str, extra: str, label: dict[str, str]) -> list[Case]:
    alert = f"LLMProbeSlow{what}"
    everybody = (
        # 10 of the 29 probes between the window's samples are slow at minute 160.
        latency(family, ollama("o") + extra, (150, 1, 0.1), (40, 1, 0.4))
        # Half as slow again, before and after a restart of the exporter.
        | latency(family, ollama("b") + extra, (150, 1, 0.1), RESET, (60, 1, 0.15))
        # Too short a history to compare with.
        | latency(family, ollama("c") + extra, (120, 0, 0), (30, 1, 0.1), (60, 1, 0.4))
    )
    firing = Firing(
        O | label,
        f"o: the probes' {unit} is far above its last day's",
        f"The probes' {unit} of model q on o was, over 30m, 3.6 times the mean of the 1d before.",
    )
    rare = latency(family, ollama("d") + extra, (150, 1, 0.1), *((14, 0, 0.0), (1, 1, 0.4)) * 4)
    return [
        fires(alert, "four times as slow as before", everybody, 175, firing),
        silent(alert, "two slow probes in the window are too few to judge by", rare, 165, 175, 195, 209),
    ]


def decode(target: str, rate: str) -> Series:
    return {
        f"vitals_probe_alone_decode_tokens_per_second{{{ollama(target)}}}": rate,
        f"vitals_decode_ceiling_tokens_per_second{{{ollama(target)}}}": "100x100",
    }


CEILING_CASES = [
    fires(
        CEILING,
        "from four fifths of the ceiling to a tenth",
        decode("o", "80x10 10x80") | decode("b", "80x90"),
        47,
        Firing(
            O | {"severity": "info"},
            "o: decode is far below what the memory bandwidth allows",
            "Alone on the server, model q on o decodes at 10% of its ceiling.",
        ),
    ),
    silent(CEILING, "near the ceiling", decode("b", "80x90"), 30, 60),
]

CASES: list[Case] = [
    *FAILING_CASES,
    *CEILING_CASES,
    *slow(
        "FirstToken",
        "vitals_probe_time_to_first_token_seconds",
        "time to first token",
        ',prompt="small"',
        {"prompt": "small"},
    ),
    *slow("Decode", "vitals_probe_time_per_output_token_seconds", "time per output token", "", {}),
]
