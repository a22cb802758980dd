"""A diagnosis for people and programs: as JSON, and in plain words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from exporter.physics.causes import causes
from exporter.physics.evidence import CAPACITY, RUNNING, USAGE, WAITING
from exporter.physics.verdict import SPECULATIVE, excess
from exporter.physics.view import Diagnosis
from exporter.vitals import Latency, Quantile

Explanation = Mapping[str, Any]
"""What `explanation` returns: JSON types only; seconds, bytes and tokens; null is what is not known."""


def explanation(diagnosis: Diagnosis, context: int) -> Explanation:
    """Return a diagnosis as JSON types; `context` is the length, in tokens, of which it says how many fit."""
    cause = causes()[diagnosis.cause]
    return {
        "target": diagnosis.target,
        "backend": diagnosis.backend,
        "model": diagnosis.model,
        "at": diagnosis.at,
        "down": diagnosis.down or None,
        "verdict": {
            "cause": cause.name,
            "title": cause.title,
            "held_seconds": max(diagnosis.at - diagnosis.since, 0.0),
            "means": cause.means,
            "evidence": list(diagnosis.evidence),
            "change": list(cause.advice(diagnosis.backend)),
            "leave": cause.leave,
        },
        "five": _five(diagnosis),
        "time": _time(diagnosis),
        "ceilings": _ceilings(diagnosis, context),
    }


def _five(diagnosis: Diagnosis) -> dict[str, Any]:
    now, probe, reading = diagnosis.now, diagnosis.probe, diagnosis.reading
    ttft = _latency(now.ttft) if now else None
    itl = _latency(now.itl) if now else None
    traffic = ttft is not None
    if not traffic and probe is not None:
        ttft, itl = _single(probe.ttft), _single(probe.itl)
    return {
        "source": "traffic" if traffic else "probe" if probe is not None else None,
        "time_to_first_token": ttft,
        "inter_token_latency": itl,
        "requests_running": reading.get(RUNNING),
        "requests_waiting": reading.get(WAITING),
        "kv_cache_usage_ratio": reading.get(USAGE),
    }


def _latency(latency: Latency | None) -> dict[str, Any] | None:
    if latency is None:
        return None
    return {
        "p50_seconds": latency.p50.value,
        "p50_side": latency.p50.side,
        "p99_seconds": latency.p99.value,
        "p99_side": latency.p99.side,
        "mean_seconds": latency.mean,
        "count": latency.count,
        "window_seconds": latency.window,
    }


def _single(seconds: float | None) -> dict[str, Any] | None:
    return None if seconds is None else {"p50_seconds": seconds, "p50_side": ""}


def _time(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return where a request's time goes, in the mean of the last minute's, or of the last probe."""
    now, probe = diagnosis.now, diagnosis.probe
    if now is not None and now.prefill is not None:
        return {"source": "traffic", "queue": now.queue, "load": None, "prefill": now.prefill, "decode": now.decode}
    if probe is not None and probe.phases:
        return {
            "source": "probe",
            **{phase: probe.phases.get(phase) for phase in ("queue", "load", "prefill", "decode")},
        }
    return {"source": None, "queue": None, "load": None, "prefill": None, "decode": None}


def _ceilings(diagnosis: Diagnosis, context: int) -> dict[str, Any]:
    known, alone = diagnosis.facts, diagnosis.alone
    kv, tokens = known.kv, diagnosis.reading.get(CAPACITY)
    capacity = tokens * kv.per_token if kv and tokens and not kv.windows else None
    fitting = None
    if tokens:
        fitting = kv.contexts(capacity, context) if kv and capacity else int(tokens // context)
    return {
        "memory_bandwidth_bytes_per_second": diagnosis.bandwidth.device,
        "ram_bandwidth_bytes_per_second": diagnosis.bandwidth.ram,
        "weight_bytes": known.weight_bytes,
        "read_bytes_per_token": known.read_bytes,
        "decode_ceiling_tokens_per_second": known.ceiling,
        "alone_decode_tokens_per_second": alone.rate if alone else None,
        "alone_tokens_per_weight_reading": alone.per_reading if alone else None,
        "achieved_ratio": alone.rate / alone.per_reading / known.ceiling if alone and known.ceiling else None,
        "bandwidth_usage_ratio": diagnosis.bandwidth_usage,
        "kv_bytes_per_token": kv.per_token if kv else None,
        "kv_capacity_tokens": tokens,
        "kv_capacity_bytes": capacity,
        "context_tokens": context,
        "context_bytes": kv.context_bytes(context) if kv else None,
        "contexts_that_fit": fitting,
        "kv_share_of_decode_step_ratio": diagnosis.kv_share,
        "unknown": list(known.why),
    }


def text(found: Explanation) -> str:
    """Return an explanation in plain words, some twenty lines for a terminal."""
    verdict = found["verdict"]
    head = " ".join(part for part in (found["target"], f"({found['backend']})", found["model"]) if part)
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found["at"]))
    lines = [
        f"{head}, {at}",
        f"  {verdict['cause']}: {verdict['title']}, for {verdict['held_seconds']:.0f} s",
        f"  {verdict['means']}",
        "",
        "  seen",
        *(f"    {sentence}" for sentence in verdict["evidence"]),
        "",
        *_numbers(found["five"]),
        *_phases(found["time"]),
        *_limits(found["ceilings"]),
        "  change first",
        f"    {verdict['change'][0]}",
        "  then",
        *(f"    {step}" for step in verdict["change"][1:]),
        "  leave",
        f"    {verdict['leave']}",
    ]
    return "\n".join(lines) + "\n"


def _numbers(five: Mapping[str, Any]) -> Iterator[str]:
    yield f"  the five numbers{_of(five['source'])}"
    yield f"    time to first token  {_spread(five['time_to_first_token'])}"
    yield f"    inter-token latency  {_spread(five['inter_token_latency'])}"
    for title, key in (("requests running", "requests_running"), ("requests waiting", "requests_waiting")):
        yield f"    {title:<20} {_or_unknown(five[key], '{:.0f}')}"
    yield f"    KV cache in use      {_or_unknown(five['kv_cache_usage_ratio'], '{:.1%}')}"
    yield ""


def _phases(phases: Mapping[str, Any]) -> Iterator[str]:
    known = {name: phases[name] for name in ("queue", "load", "prefill", "decode") if phases[name] is not None}
    if not known:
        return
    whole = sum(known.values()) or 1.0
    yield f"  where the time goes{_of(phases['source'])}"
    for name, seconds in known.items():
        yield f"    {name:<20} {Quantile(seconds)!s:<10} {seconds / whole:4.0%}"
    yield ""


def _limits(found: Mapping[str, Any]) -> Iterator[str]:
    yield "  ceilings (arithmetic)"
    if (most := found["decode_ceiling_tokens_per_second"]) is not None:
        bandwidth = found["memory_bandwidth_bytes_per_second"] or found["ram_bandwidth_bytes_per_second"]
        yield (
            f"    without speculative decoding one stream decodes at most {most:.3g} tokens/s: "
            f"{_giga(found['read_bytes_per_token'])} of weights a token at {_giga(bandwidth)}/s"
        )
    if (share := found["achieved_ratio"]) is not None:
        rate, each = found["alone_decode_tokens_per_second"], found["alone_tokens_per_weight_reading"]
        drafted = f", {each:.2g} of each reading," if each >= SPECULATIVE else ","
        yield f"    alone, a probe reached {rate:.3g} tokens/s{drafted} {share:.0%} of that{excess(share, each)}"
    if (usage := found["bandwidth_usage_ratio"]) is not None:
        yield f"    by the engine's own estimate {usage:.0%} of the memory bandwidth is in use"
    if (each := found["kv_bytes_per_token"]) is not None:
        takes = f"a context of {found['context_tokens']:,} tokens takes {_giga(found['context_bytes'])}"
        yield f"    KV cache: {each:,.0f} bytes a token; {takes}"
    if (tokens := found["kv_capacity_tokens"]) is not None:
        size = found["kv_capacity_bytes"]
        holds = f"{tokens:,.0f} tokens" + (f" ({_giga(size)})" if size is not None else "")
        yield f"    it holds {holds}: {found['contexts_that_fit']} contexts of {found['context_tokens']:,} tokens"
    if (kv := found["kv_share_of_decode_step_ratio"]) is not None:
        yield f"    at the present contexts {kv:.0%} of what a decode step reads is KV"
    for reason in found["unknown"]:
        yield f"    not known - {reason}"
    yield ""


def _of(source: str | None) -> str:
    return {"traffic": ", of the last minute's traffic", "probe": ", of the last probe", None: ""}[source]


def _spread(latency: Mapping[str, Any] | None) -> str:
    if latency is None:
        return "not known"
    median = str(Quantile(latency["p50_seconds"], latency["p50_side"]))
    if "p99_seconds" not in latency:
        return median
    return (
        f"p50 {median}, p99 {Quantile(latency['p99_seconds'], latency['p99_side'])}, "
        f"mean {Quantile(latency['mean_seconds'])}"
    )


def _or_unknown(value: float | None, form: str) -> str:
    return "not reported" if value is None else form.format(value)


def _giga(size: float) -> str:
    return f"{size / 1e9:.3g} GB"
