"""Panels about decode: how close it comes to what the memory allows, and what the batch does to it."""

from __future__ import annotations

from grafana_foundation_sdk.builders import timeseries

from dashboards.build import panels as p
from dashboards.build import queries as q
from dashboards.build.five import FEW, ITL, TTFT
from dashboards.build.panels import Query, Text
from dashboards.build.tiles import RUNNING
from prometheus.build.latency import HEADLINES
from prometheus.build.promql import LABELS

TPOT, _ = HEADLINES["tpot"]
GENERATED = "vitals_generation_tokens_total"
READ = "vitals_estimated_read_bytes_per_gpu_total"

LEGEND = "{{target}} {{model}}"
NO_TRAFFIC, NO_PROBE = "no traffic in this time", "no probe in this time"
ALL = " The mean is over all requests to the servers chosen; choose one at the top to see it alone."


def _decoded(by: str = LABELS) -> str:
    """Return tokens per second that decode made: a request's first is made by prefill, and is no observation of ITL."""
    return f"({q.rate(GENERATED, by)} - {q.rate(f'{TTFT}_count', by)} > 0)"


def _stream() -> str:
    """Return tokens per second of one stream: all tokens of decode over the time that streams spent between outputs."""
    return q.ratio(_decoded(), q.rate(f"{ITL}_sum"))


ALONE = "vitals_probe_alone_decode_tokens_per_second"
CEILING = "vitals_decode_ceiling_tokens_per_second"


def ceiling() -> timeseries.Panel:
    """Return the panel of tokens a second of one stream, of users and of lone probes, and the ceiling."""
    slowest = q.headline("itl", "p99")
    return p.graph(
        Text(
            "Decode: tokens per second of one stream",
            "What a user's stream gets on average, what the last probe got that was alone on the server, and the"
            " ceiling (dashed): memory bandwidth over the bytes of weights read for each token, arithmetic and no"
            " measurement; there only if the configuration names the device. More bandwidth or fewer bytes lift the"
            f" ceiling, more compute does not. Speculative decoding may exceed it.{FEW}",
            "the probe above 60 % of the ceiling; users' streams share steps and get less as the batch grows.",
        ),
        "short",
        "no traffic and no probe in this time",
        [
            Query(q.those_with_most(_stream(), slowest), f"{LEGEND} users"),
            Query(q.those_with_most(q.largest(ALONE), slowest), f"{LEGEND} probe alone"),
            Query(q.those_with_most(q.largest(CEILING), slowest), f"{LEGEND} ceiling"),
        ],
    ).override_by_regexp("/ ceiling/", p.dashed("dash"))


def share_of_ceiling() -> timeseries.Panel:
    """Return the panel of how much of the memory bandwidth decode uses."""
    # Each engine has GPUs of its own, so that what a GPU reads is not to be added over engines.
    used = f"max by ({LABELS}) (rate({q.series(READ)}[{q.RATE}]))"
    device = q.largest("vitals_memory_bandwidth_bytes_per_second", "target, backend", 'memory!="ram"')
    devices = q.largest("vitals_devices", "target, backend")
    slowest = q.headline("itl", "p99")
    return p.graph(
        Text(
            "Share of the memory bandwidth used",
            "The decode rate of the last probe that was alone on the server, over the ceiling; the engine's own"
            " estimate of bytes read by a GPU, over one device's bandwidth (vLLM with --enable-mfu-metrics); and the"
            f" share of a decode step's bytes that are KV of the present contexts and not weights.{FEW}",
            "the probe above 60 %: then only fewer bytes, more bandwidth or speculative decoding, which may exceed"
            " 100 %, make a stream faster.",
        ),
        "percentunit",
        "no server whose device is known",
        [
            Query(
                q.those_with_most(f"{q.largest(ALONE)}\n/ {q.largest(CEILING)}", slowest),
                f"{LEGEND} probe of ceiling",
            ),
            Query(
                q.those_with_most(
                    f"{used}\n/ on (target, backend) group_left () ({device} / {devices})",
                    slowest,
                ),
                f"{LEGEND} read by the engine's estimate",
            ),
            Query(
                q.those_with_most(q.largest("vitals_decode_kv_share_ratio"), slowest),
                f"{LEGEND} KV of a step",
            ),
        ],
    ).axis_soft_max(1)


def itl_and_running() -> timeseries.Panel:
    """Return the panel of ITL and the batch."""
    return (
        p.graph(
            Text(
                "ITL against running requests",
                f"Mean and chosen quantile of ITL, and the requests in the batch (right), over the servers chosen."
                f"{ALL} ITL that follows the batch: its price. ITL that rises without it: longer contexts, prefills"
                " that share the steps, or preemptions.",
                "ITL that hardly moves as the batch grows: then there is room.",
            ),
            "s",
            NO_TRAFFIC,
            [
                Query(q.mean(ITL, ""), "ITL mean"),
                Query(
                    f"topk(1, max by (bound) ({q.quantile('$quantile', ITL)}))",
                    "ITL ${quantile:text} of the slowest {{bound}}",
                ),
                Query(q.summed(RUNNING, ""), "running"),
            ],
        )
        .override_by_name("ITL mean", p.colored(p.BLUE))
        .override_by_regexp("/of the slowest/", p.colored(p.RED))
        .override_by_name("running", [*p.colored(p.GREEN), *p.on_the_right("none", "running"),
                                      p.set_to("custom.fillOpacity", 10)])
    )  # fmt: skip


def tpot_and_itl() -> timeseries.Panel:
    """Return the panel of TPOT, ITL and seconds per token."""
    token = q.ratio(q.rate(f"{ITL}_sum", ""), _decoded(""))
    return p.graph(
        Text(
            "TPOT against ITL",
            "TPOT is a finished request's mean time per output token, ITL the time between two outputs of running ones."
            f" Seconds per token: ITL's sum over the tokens that decode made.{ALL} ITL above TPOT: speculative decoding"
            " brings several tokens an output. TPOT above ITL: short answers among long ones; each request counts alike"
            " in it.",
            "all three alike; with speculative decoding the last two.",
        ),
        "s",
        NO_TRAFFIC,
        [
            Query(q.mean(ITL, ""), "ITL mean"),
            Query(q.mean(TPOT, ""), "TPOT mean"),
            Query(token, "seconds per token"),
        ],
    )


def tokens_per_step() -> timeseries.Panel:
    """Return the panel of what speculative decoding brings."""
    accepted, drafted = (f"vitals_spec_decode_{what}_tokens_total" for what in ("accepted", "draft"))
    most = "target_model:vitals_generation_tokens:rate5m"
    return (
        p.graph(
            Text(
                "Tokens per step (speculative decoding)",
                "Tokens that one output of a running request brings: 1 without speculative decoding, up to 1 more than"
                " the draft's length with it; and (right, dashed) the share of drafted tokens that was accepted.",
                "1 without it. With it: well above 1, else the drafts cost more than they bring.",
            ),
            "none",
            NO_TRAFFIC,
            [
                Query(q.those_with_most(q.ratio(_decoded(), q.rate(f"{ITL}_count")), most), LEGEND),
                Query(q.those_with_most(q.ratio(q.rate(accepted), q.rate(drafted)), most), f"{LEGEND} accepted"),
            ],
        )
        .decimals(2)
        .axis_soft_max(2)
        .override_by_regexp("/ accepted/", [*p.on_the_right("percentunit", "accepted", 1), *p.dashed("dash")])
    )
