"""The home dashboard: TTFT, ITL, requests running, requests waiting and KV-cache usage of all servers."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, heatmap, timeseries

from dashboards.build import fleet, tiles
from dashboards.build import panels as p
from dashboards.build import queries as q
from dashboards.build.board import board
from dashboards.build.panels import Query, Text
from dashboards.build.tiles import RUNNING, WAITING
from prometheus.build.latency import HEADLINES, QUANTILES

(TTFT, PROBE_TTFT), (ITL, PROBE_ITL) = HEADLINES["ttft"], HEADLINES["itl"]

KINDS = (
    "\n\n**traffic** is what a server says of its users' requests, **probe** what our own small requests met; they are"
    " never added up."
)
BOUNDS = (
    "\n\nQuantiles are interpolated between bucket bounds. **≤** or **≥**: the quantile lies in the first bucket or"
    " above the last bound, so that only the bound is known. The mean is exact."
)
FEW = "\n\nThe lines are those of the servers that were worst in the time range, as many as chosen at the top."


TILES = (tiles.servers, tiles.ttft, tiles.itl, tiles.running, tiles.waiting, tiles.kv)


def five_key_metrics() -> dashboard.Dashboard:
    """Return the dashboard."""
    return board(
        "llm-vitals-five",
        "Five key metrics",
        "Time to first token, inter-token latency, requests running and waiting, and KV-cache usage of every server.",
        [
            ("", 5, [(make(), 4) for make in TILES]),
            ("", 6, [(fleet.table(), 24)]),
            ("", 10, [(_ttft_lines(), 12), (_itl_lines(), 12)]),
            ("", 8, [(_ttft_heat(), 12), (_itl_heat(), 12)]),
            ("", 9, [(_load(), 8), (_tokens(), 8), (_attained(), 8)]),
        ],
    )


def _latency_queries(short: str, family: str, probe: str) -> list[Query]:
    found = []
    slowest = q.headline(short, "p99")
    legend = "{{target}} {{model}}"
    for name, number in QUANTILES.items():
        expr = q.those_with_most(q.quantile(f"{number:g}", family), slowest)
        found.append(Query(expr, f"{legend} {name} {{{{bound}}}}"))
    found.append(Query(q.those_with_most(q.mean(family), slowest), f"{legend} mean"))
    for name in QUANTILES:
        expr = q.unless_traffic(q.probed(name, probe), family)
        found.append(Query(q.those_with_most(expr, slowest), f"{legend} probe {name} {{{{bound}}}}"))
    expr = q.unless_traffic(q.probed_mean(probe), family)
    found.append(Query(q.those_with_most(expr, slowest), f"{legend} probe mean"))
    return found


def _latencies(panel: timeseries.Panel) -> timeseries.Panel:
    return p.listed(p.quantiles(panel))


OWN_PROBES = " Probes are drawn, dashed, for servers that tell nothing of their users' requests."


def _ttft_lines() -> timeseries.Panel:
    return _latencies(
        p.graph(
            Text(
                "Time to first token (TTFT)",
                "From a request's arrival to its first token: waiting, then prefill. p99 alone rising: some prompts are"
                f" long, or requests wait; compare with the requests waiting.{OWN_PROBES}{KINDS}{BOUNDS}{FEW}",
                "flat, with p99 near p50.",
            ),
            "s",
            "no traffic and no probe in this time",
            _latency_queries("ttft", TTFT, PROBE_TTFT),
        )
    )


def _itl_lines() -> timeseries.Panel:
    return _latencies(
        p.graph(
            Text(
                "Inter-token latency (ITL)",
                "From one output to the next while a request decodes. It rises with the batch, and with prefills that"
                " share its steps; a preemption's wait is inside. With speculative decoding one output can be several"
                f" tokens.{OWN_PROBES}{KINDS}{BOUNDS}{FEW}",
                "flat, and at or below 50 ms, where text comes faster than it is read.",
            ),
            "s",
            "no traffic and no probe in this time",
            _latency_queries("itl", ITL, PROBE_ITL),
        )
    )


def _heat(short: str, name: str, family: str) -> heatmap.Panel:
    p99 = q.series(q.headline(short, "p99"), 'source="traffic"')
    slowest = f"topk(1, max by (target, model) (max_over_time({p99}[{q.WHOLE}] @ end())))"
    grown = q.increase(f"{family}_bucket", "le, target, model")
    return p.heat(
        Text(
            f"{name} of the slowest server",
            f"How many observations fell into each bucket of the {name} histogram, by the users' requests of the server"
            " and model that were slowest in the time range; choose a server at the top to see another. Two bands:"
            " two kinds of request, or requests that waited and such that did not.",
            "one narrow band that stays where it is.",
        ),
        "s",
        f"sum by (le) (({grown})\nand on (target, model) {slowest})",
    )


def _ttft_heat() -> heatmap.Panel:
    return _heat("ttft", "TTFT", TTFT)


def _itl_heat() -> heatmap.Panel:
    return _heat("itl", "ITL", ITL)


def _load() -> timeseries.Panel:
    return (
        p.stacked(
            Text(
                "Requests running and waiting, KV cache",
                "Requests in the batch and requests that wait, added over the servers chosen, and the KV-cache usage of"
                " the fullest engine (right). Waiting with a full cache: memory is short. Waiting with a cache half"
                " empty: the batch is at its limit. Gauges, read at each scrape: peaks between are not seen.",
                "no waiting, and usage below 90 %.",
            ),
            "none",
            "not told by these servers",
            [
                Query(q.summed(RUNNING, ""), "running"),
                Query(q.summed(WAITING, ""), "waiting"),
                Query(q.fullest(""), "KV usage"),
            ],
        )
        .override_by_name("running", p.colored(p.GREEN))
        .override_by_name("waiting", p.colored(p.ORANGE))
        .override_by_name("KV usage", [*p.colored(p.PURPLE), *p.on_the_right("percentunit", "", highest=1)])
        .axis_soft_max(5)
    )


def _tokens() -> timeseries.Panel:
    return (
        p.graph(
            Text(
                "Tokens per second",
                "Prompt tokens taken in, those found in the prefix cache included, and tokens generated, added over the"
                " servers chosen: users' requests and our probes alike, as the servers count them.",
                "generation follows the load; flat while requests wait means that the server gives all it has.",
            ),
            "short",
            "not told by these servers",
            [
                Query(q.rate("vitals_prompt_tokens_total", ""), "prompt"),
                Query(q.rate("vitals_generation_tokens_total", ""), "generation"),
            ],
        )
        .override_by_name("prompt", p.colored(p.BLUE))
        .override_by_name("generation", p.colored(p.GREEN))
        .fill_opacity(10)
    )


def _attained() -> timeseries.Panel:
    return (
        p.graph(
            Text(
                "Within the thresholds",
                "The share of first tokens and of inter-token pauses that were within the thresholds chosen at the top,"
                " of all users' requests to the servers chosen. Exact, because the thresholds are bucket bounds; a"
                " server whose histogram has no such bound has no part in it. No line where nothing was asked.",
                "at your objective, for instance 95 % and 99 %.",
            ),
            "percentunit",
            "no traffic in this time, or no such bucket bound",
            [
                Query(q.within(TTFT, "$ttft_slo", ""), "TTFT ≤ ${ttft_slo:text}"),
                Query(q.within(ITL, "$itl_slo", ""), "ITL ≤ ${itl_slo:text}"),
            ],
        )
        .max(1)
        .fill_opacity(10)
    )
