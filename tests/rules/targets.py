"""Cases of the alerts on targets and on the exporter."""

from __future__ import annotations

from tests.rules.case import RESET, Case, Firing, Series, counter, fires, silent

DOWN, NO_METRICS, FLAPPING = "LLMTargetDown", "LLMTargetWithoutMetrics", "LLMTargetFlapping"
UNMAPPED, EXPORTER = "LLMUnmappedSeries", "LLMExporterDown"

A = {"severity": "critical", "target": "a", "backend": "vllm"}
B = {"severity": "warning", "target": "b", "backend": "vllm"}


def labels(target: str) -> str:
    return f'target="{target}",backend="vllm"'


def up(target: str, text: str) -> Series:
    return {f"vitals_target_up{{{labels(target)}}}": text}


def failures(target: str, reason: str, *phases: tuple[int, float] | str) -> Series:
    return {f'vitals_scrape_failures_total{{{labels(target)},reason="{reason}"}}': counter(*phases)}


# a cannot be reached from minute 11 on; b answers with something else; c is well, and the exporter started anew.
FAULTS = (
    up("a", "1x10 0x30")
    | failures("a", "connect", (10, 0), (30, 1))
    | failures("a", "not_metrics", (40, 0))
    | up("b", "1x10 0x30")
    | failures("b", "connect", (40, 0))
    | failures("b", "not_metrics", (10, 0), (30, 1))
    | up("c", "1x40")
    | failures("c", "not_metrics", (5, 1), RESET, (34, 0))
)
WELL = {name: text for name, text in FAULTS.items() if '"c"' in name}

EXPORTERS = {
    'up{job="llm-vitals",instance="x:10434"}': "1x10 0x30",
    'vitals_build_info{job="llm-vitals",instance="x:10434",version="1"}': "1x10 stale",
    'up{job="llm-vitals",instance="y:10434"}': "1x40",
    # Upgraded at minute 5: the old version's series ends.
    'vitals_build_info{job="llm-vitals",instance="y:10434",version="1"}': "1x5 stale",
    'vitals_build_info{job="llm-vitals",instance="y:10434",version="2"}': "_x5 1x34",
}
RENAMED = {
    'vitals_build_info{job="vitals",instance="x:10434",version="1"}': "1x10 stale",
    'vitals_build_info{job="vitals",instance="y:10434",version="1"}': "1x40",
}
ALONE = {
    'vitals_build_info{job="vitals",instance="x:10434",version="1"}': "1x10 stale",
    'vitals_build_info{job="others",instance="y:10434",version="1"}': "1x40",
}
# Moved to another address, as a pod is at each rollout.
MOVED = {
    'up{job="llm-vitals",instance="x:10434"}': "1x10 stale",
    'vitals_build_info{job="llm-vitals",instance="x:10434",version="1"}': "1x10 stale",
    'up{job="llm-vitals",instance="y:10434"}': "_x12 1x50",
    'vitals_build_info{job="llm-vitals",instance="y:10434",version="1"}': "_x12 1x50",
}


def exporter_down(job: str) -> Firing:
    return Firing(
        {"severity": "critical", "job": job, "instance": "x:10434"},
        "llm-vitals at x:10434 is down",
        f"Prometheus has had no scrape of llm-vitals at x:10434 (job {job}, up = 0) for 2m: nothing is known of any LLM"
        " server.",
    )


CASES: list[Case] = [
    fires(
        DOWN,
        "two minutes, and not the one that answers with something else",
        FAULTS,
        13,
        Firing(
            A,
            "a is down",
            "a (vllm) could not be read for 2m (up = 0); the exporter's page /debug/a says why.",
        ),
    ),
    silent(DOWN, "well, and after a reset", WELL, 6, 7, 20, 40),
    fires(
        NO_METRICS,
        "five minutes, and not the one that cannot be reached",
        FAULTS,
        16,
        Firing(
            B,
            "b answers, but has no LLM metrics",
            "b (vllm) answered 5 times in 5m without the metrics of an LLM server.",
        ),
    ),
    silent(NO_METRICS, "well, and after a reset", WELL, 6, 7, 20, 40),
    fires(
        FLAPPING,
        "the second time it is back",
        up("a", "1x10 0 1x5 0 1x30") | up("b", "1x10 0 1x40"),
        19,
        Firing(
            A | {"severity": "warning"},
            "a keeps going down and coming back",
            "a (vllm) changed between up and down 4 times within 30m.",
        ),
    ),
    silent(FLAPPING, "one restart", up("b", "1x10 0 1x40"), 12, 20, 40),
    fires(
        UNMAPPED,
        "an hour after an upgrade",
        {
            f"vitals_unmapped_families{{{labels('a')}}}": "0x10 3x90",
            f"vitals_unmapped_families{{{labels('b')}}}": "0x100",
        },
        71,
        Firing(
            A | {"severity": "info"},
            "a reports metrics that llm-vitals does not know",
            "3 metric families of a (vllm) are unknown to this version of llm-vitals, as after an upgrade of the"
            " engine; /debug/a lists them.",
        ),
    ),
    silent(UNMAPPED, "all are known", {f"vitals_unmapped_families{{{labels('b')}}}": "0x100"}, 70, 100),
    fires(EXPORTER, "one of two, and not the one that was upgraded", EXPORTERS, 13, exporter_down("llm-vitals")),
    fires(EXPORTER, "gone, whatever its job is called", RENAMED, 13, exporter_down("vitals")),
    fires(EXPORTER, "the only one of its job is gone", ALONE, 13, exporter_down("vitals")),
    silent(EXPORTER, "at another address than before", MOVED, 11, 12, 13, 14, 20, 40),
    silent(EXPORTER, "up", {name: text for name, text in EXPORTERS.items() if '"y:10434"' in name}, 6, 10, 40),
]
