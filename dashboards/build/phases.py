"""The dashboard of prefill and decode: where the time to the first token goes, and what decode is held back by."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, timeseries

from dashboards.build import decode, tiles
from dashboards.build import panels as p
from dashboards.build import queries as q
from dashboards.build.board import board
from dashboards.build.decode import ALL, LEGEND, NO_PROBE, NO_TRAFFIC
from dashboards.build.five import BOUNDS, FEW, TTFT
from dashboards.build.panels import Query, Text
from prometheus.build.promql import LABELS

QUEUE, PREFILL = "vitals_request_queue_seconds", "vitals_request_prefill_seconds"
PROBE_TTFT, PROBE_PHASE = "vitals_probe_time_to_first_token_seconds", "vitals_probe_phase_seconds"
PROMPT, CACHED = "vitals_prompt_tokens_total", "vitals_cached_prompt_tokens_total"

PROMPTS = " Prompts: small, about 200 tokens; large, about 2,000; cached, the one before once more."


def prefill_and_decode() -> dashboard.Dashboard:
    """Return the dashboard."""
    return board(
        "llm-vitals-phases",
        "Prefill and decode",
        "Where the time to the first token goes, and how close decode comes to what the memory allows.",
        [
            ("Prefill: reads the prompt, is bound by compute, and is what the first token waits for", 9,
             [(tiles.servers(), 4), (_ttft_parts(), 10), (_probe_parts(), 10)]),
            ("", 9, [(_ttft_quantile(), 8), (_prefill_rate(), 8), (_probe_prefill_rate(), 8)]),
            ("", 9, [(_prompt_sizes(), 8), (_slope(), 8), (_cache(), 8)]),
            ("Decode: makes one token a step, reads all weights for each, and is bound by memory bandwidth", 9,
             [(decode.ceiling(), 12), (decode.share_of_ceiling(), 12)]),
            ("", 9, [(decode.itl_and_running(), 8), (decode.tpot_and_itl(), 8), (decode.tokens_per_step(), 8)]),
        ],
    )  # fmt: skip


def _ttft_parts() -> timeseries.Panel:
    return (
        p.stacked(
            Text(
                "Where users' time to the first token goes",
                "Mean seconds a request queued and then was in prefill, as the server tells them of finished"
                " requests, and"
                f" its mean TTFT of requests that got their first token.{ALL} Queue grows: capacity. Prefill grows:"
                " longer prompts, or fewer found in the cache. TTFT above both: the request's way into the engine.",
                "nearly all of it prefill.",
            ),
            "s",
            "no traffic in this time, or a server that does not tell",
            [
                Query(q.mean(QUEUE, ""), "queue"),
                Query(q.mean(PREFILL, ""), "prefill"),
                Query(q.mean(TTFT, ""), "TTFT"),
            ],
        )
        .override_by_name("queue", p.colored(p.ORANGE))
        .override_by_name("prefill", p.colored(p.BLUE))
        .override_by_name("TTFT", [*p.colored(p.RED), *_line()])
    )


def _line() -> p.Override:
    return [
        p.set_to("custom.stacking", {"mode": "none", "group": "A"}),
        p.set_to("custom.fillOpacity", 0),
        p.set_to("custom.lineWidth", 2),
        *p.dashed("dash"),
    ]


def _probe_parts() -> timeseries.Panel:
    shown = q.series(PROBE_PHASE, 'phase!="decode"')
    return (
        p.stacked(
            Text(
                "Where a probe's time to the first token goes",
                "Connection, queue, loading of the model and prefill of the last good probe, as the server told them;"
                f" averaged over prompts and servers.{PROMPTS} Only servers that tell their times are here: Ollama,"
                " llama.cpp, and vLLM with --enable-per-request-metrics.",
                "prefill alone; load only after a pause, queue only under load.",
            ),
            "s",
            "no probe whose server tells its times",
            [Query(f"avg by (phase) ({shown})", "{{phase}}")],
        )
        .override_by_name("connect", p.colored(p.GREY))
        .override_by_name("queue", p.colored(p.ORANGE))
        .override_by_name("load", p.colored(p.PURPLE))
        .override_by_name("prefill", p.colored(p.BLUE))
    )


def _ttft_quantile() -> timeseries.Panel:
    slowest = q.headline("ttft", "p99")
    found = []
    for family, name in ((TTFT, "TTFT"), (QUEUE, "queue"), (PREFILL, "prefill")):
        for expr, what in ((q.quantile("$quantile", family), "${quantile:text} {{bound}}"), (q.mean(family), "mean")):
            shown = q.those_with_most(expr, slowest, "1", 'source="traffic"')
            found.append(Query(shown, f"{LEGEND} {name} {what}"))
    panel = p.graph(
        Text(
            "TTFT, queue and prefill at the chosen quantile",
            "Of the server whose users' requests were slowest in the time range; choose a server at the top to see"
            " another. Each at its own quantile, chosen at the top: they are not of one request, and do not add up."
            f" Dashed, their means, which do.{BOUNDS}",
            "queue near nothing, and TTFT near prefill.",
        ),
        "s",
        NO_TRAFFIC,
        found,
    )
    for name, color in (("TTFT", p.RED), ("queue", p.ORANGE), ("prefill", p.BLUE)):
        panel = panel.override_by_regexp(f"/ {name} /", p.shaded(color))
    return panel.override_by_regexp("/ mean$/", p.dashed("dash")).override_by_regexp("/[≤≥]/", p.dashed("dot"))


def _prefill_rate() -> timeseries.Panel:
    uncached = f"({q.rate(PROMPT)}\n- ({q.rate(CACHED)} or {q.rate(PROMPT)} * 0))"
    # Of finished requests, like the prefill time, so that both are of the same requests.
    finished = f"{q.rate('vitals_request_prompt_tokens_sum')} * {q.ratio(uncached, q.rate(PROMPT))}"
    prefilling = q.rate(f"{PREFILL}_sum")
    most = "target_model:vitals_prompt_tokens:rate5m"
    return p.graph(
        Text(
            "Prefill tokens per second",
            "Prompt tokens computed, without those found in the prefix cache: by the server in all, and by request"
            " while"
            " it is in prefill (of finished requests, by their prefill time). A request's rate"
            f" falls when prefills share the step with each other and with decode.{FEW}",
            "a request's rate that stays where it is as the load grows.",
        ),
        "short",
        NO_TRAFFIC,
        [
            Query(q.those_with_most(f"{uncached} > 0", most), f"{LEGEND} server"),
            Query(q.those_with_most(q.ratio(finished, prefilling), most), f"{LEGEND} request"),
        ],
    )


def _probe_prefill_rate() -> timeseries.Panel:
    rate = f"max by ({LABELS}, prompt) ({q.series('vitals_probe_prefill_tokens_per_second')})"
    return p.graph(
        Text(
            "Probe's prefill tokens per second",
            "Uncached prompt tokens of the last good probe over the server's own prefill time, where it tells one."
            f"{PROMPTS}{FEW}",
            "large prompts near what the device computes; small ones are slower, as each prefill has a fixed cost.",
        ),
        "short",
        "no probe whose server tells its times",
        [Query(q.those_with_most(rate, q.headline("ttft", "p99")), f"{LEGEND} {{{{prompt}}}}")],
    )


def _prompt_sizes() -> timeseries.Panel:
    mean = q.mean(PROBE_TTFT, f"{LABELS}, prompt", q.PROBES)
    return p.graph(
        Text(
            "Probe's TTFT by prompt",
            f"Mean over the probe window chosen at the top.{PROMPTS} Large far above small: prefill dominates; both"
            f" alike: queue or fixed cost does. Cached as slow as large: no prefix cache.{FEW}",
            "cached near small, and large not more than ten times small.",
        ),
        "s",
        NO_PROBE,
        [Query(q.those_with_most(mean, q.headline("ttft", "p99")), f"{LEGEND} {{{{prompt}}}}")],
    )


def _slope() -> timeseries.Panel:
    slope = f"{q.largest('vitals_probe_prefill_seconds_per_token')} * 1000"
    fixed = q.largest("vitals_probe_prefill_fixed_seconds")
    slowest = q.headline("ttft", "p99")
    return p.graph(
        Text(
            "What 1,000 prompt tokens cost",
            "The slope between the TTFT of the last small and the last large probe, times 1,000: what so many more"
            " prompt tokens add to the TTFT; and what a prompt of no tokens would take, the fixed cost (queue,"
            f" network, launch).{FEW}",
            "flat. The slope rising: prefill gets slower. The fixed cost rising: probes queue.",
        ),
        "s",
        "no small and large probe yet",
        [
            Query(q.those_with_most(slope, slowest), f"{LEGEND} per 1,000 tokens"),
            Query(q.those_with_most(fixed, slowest), f"{LEGEND} fixed"),
        ],
    ).override_by_regexp("/ fixed/", p.dashed("dash"))


def _cache() -> timeseries.Panel:
    saved = q.those_with_most(q.largest("vitals_probe_cached_saving_seconds"), q.headline("ttft", "p99"))
    hits, asked = (f"vitals_prefix_cache_{what}_tokens_total" for what in ("hits", "queries"))
    return (
        p.graph(
            Text(
                "What the prefix cache saves",
                "The share of prompt tokens found in the cache and not computed, of all users' requests; the hit"
                " ratio of"
                " its look-ups, where each attempt to schedule counts; and (right, dashed) how much sooner a probe's"
                " first token came when its prompt was asked once more.",
                "high where prompts share a beginning (system prompt, conversation); about 0 without prefix caching.",
            ),
            "percentunit",
            NO_TRAFFIC,
            [
                Query(q.ratio(q.rate(CACHED, ""), q.rate(PROMPT, "")), "cached prompt tokens"),
                Query(q.ratio(q.rate(hits, ""), q.rate(asked, "")), "hit ratio"),
                Query(saved, f"{LEGEND} saved"),
            ],
        )
        .override_by_regexp("/ saved/", [*p.on_the_right("s", "saved by probes"), *p.dashed("dash")])
    )  # fmt: skip
