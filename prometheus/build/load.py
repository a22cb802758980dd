"""Load and capacity: tokens per second, requests, KV cache, preemptions, engines that stand still."""

from __future__ import annotations

from prometheus.build.promql import ENGINE, LABELS, LEVEL, increase, rate
from prometheus.build.rule import Alert, Group, Record
from prometheus.build.settings import Settings

RUNNING = f"{LEVEL}:vitals_requests_running:sum"


def waiting(s: Settings) -> str:
    """Return the name of the requests waiting on average over the window, added over engines."""
    return f"{LEVEL}:vitals_requests_waiting:avg{s.window}"


def group(s: Settings) -> Group:
    """Return the rules of load and capacity."""
    return Group("load", _records(s), (*_capacity(s), *_standing_still(s)))


def _usage(s: Settings) -> str:
    return f"{LEVEL}:vitals_kv_cache_usage_ratio:max{s.window}"


def _preemptions(s: Settings) -> str:
    return f"{LEVEL}:vitals_preemptions:rate{s.window}"


def _records(s: Settings) -> tuple[Record, ...]:
    awake = "unless on (target, model, engine) (vitals_engine_asleep == 1)"
    hits, queries = (rate(f"vitals_prefix_cache_{what}_tokens_total", s.window) for what in ("hits", "queries"))
    return (
        Record(RUNNING, f"sum by ({LABELS}) (vitals_requests_running)"),
        Record(f"{LEVEL}:vitals_requests_waiting:sum", f"sum by ({LABELS}) (vitals_requests_waiting)"),
        # By engine first: what the exporter said at an address that it had before is of the same requests.
        Record(
            waiting(s), f"sum by ({LABELS}) (avg by ({ENGINE}) (avg_over_time(vitals_requests_waiting[{s.window}])))"
        ),
        Record(f"{LEVEL}:vitals_kv_cache_usage_ratio:max", f"max by ({LABELS}) (vitals_kv_cache_usage_ratio {awake})"),
        Record(_usage(s), f"max by ({LABELS}) (max_over_time(vitals_kv_cache_usage_ratio[{s.window}]) {awake})"),
        Record(_preemptions(s), rate("vitals_preemptions_total", s.window)),
        Record(f"{LEVEL}:vitals_generation_tokens:rate{s.window}", rate("vitals_generation_tokens_total", s.window)),
        Record(f"{LEVEL}:vitals_prompt_tokens:rate{s.window}", rate("vitals_prompt_tokens_total", s.window)),
        Record(f"{LEVEL}:vitals_prefix_cache_hit_ratio:rate{s.window}", f"{hits} / ({queries} > 0)"),
    )


def _capacity(s: Settings) -> tuple[Alert, ...]:
    return (
        Alert(
            "LLMRequestsWaiting",
            "warning",
            s.waiting_for,
            f"{waiting(s)} > {s.waiting:g}",
            "{{ .Labels.target }}: requests keep waiting for a place",
            f'On average over {s.window} {{{{ printf "%.1f" .Value }}}} requests of model {{{{ .Labels.model }}}} on'
            f" {{{{ .Labels.target }}}} waited to be scheduled, and have for {s.waiting_for}.",
            main=True,
        ),
        Alert(
            "LLMKVCacheExhausted",
            "warning",
            s.kv_for,
            # Usage swings as blocks are freed, so its maximum counts, and only together with a queue.
            f"({_usage(s)} > {s.kv_usage:g}\n  or {_preemptions(s)} > 0)\nand {waiting(s)} > {s.waiting:g}",
            "{{ .Labels.target }}: the KV cache is full and requests wait for it",
            "The KV cache of model {{ .Labels.model }} on {{ .Labels.target }} was full, or requests were preempted,"
            f' within the last {s.window} while requests waited (value {{{{ printf "%.2g" .Value }}}}: the highest'
            " usage, 0 to 1, or preemptions per second).",
            main=True,
        ),
        Alert(
            "LLMPreemptionsHigh",
            "info",
            s.preemptions_for,
            f"{_preemptions(s)} > {s.preemptions_per_second:g}",
            "{{ .Labels.target }}: requests are preempted",
            'Model {{ .Labels.model }} on {{ .Labels.target }} preempts {{ printf "%.2f" .Value }} requests per second;'
            " each computes its tokens again and its stream pauses meanwhile.",
        ),
    )


def _standing_still(s: Settings) -> tuple[Alert, ...]:
    running, queued = (f"sum by ({ENGINE}) (vitals_requests_{what})" for what in ("running", "waiting"))
    gauges = ("vitals_requests_running", "vitals_requests_waiting", "vitals_kv_cache_usage_ratio")
    moved = " + ".join(f"changes({gauge}[{s.frozen_window}])" for gauge in gauges)
    return (
        Alert(
            "LLMEngineStuck",
            "critical",
            s.stuck_for,
            f"{queued} > 0\nand {running} == 0\nunless on (target, model, engine) (vitals_engine_asleep == 1)",
            "{{ .Labels.target }}: requests wait and none runs",
            "Engine {{ .Labels.engine }} of model {{ .Labels.model }} on {{ .Labels.target }} has"
            f" {{{{ .Value }}}} requests waiting and none running, for {s.stuck_for}.",
            main=True,
        ),
        Alert(
            "LLMMetricsFrozen",
            "warning",
            s.frozen_for,
            f"{running} > 0\nand sum by ({ENGINE}) ({moved}) == 0"
            f"\nand {increase('vitals_generation_tokens_total', s.frozen_window, ENGINE)} == 0",
            "{{ .Labels.target }}: requests run but no token comes",
            "Engine {{ .Labels.engine }} of model {{ .Labels.model }} on {{ .Labels.target }} reports {{ .Value }}"
            f" requests running, unchanged like its other gauges for {s.frozen_window}, and generates nothing.",
        ),
    )
