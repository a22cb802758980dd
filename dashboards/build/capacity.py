"""The dashboard of capacity: the KV cache, what waits for it, and how many more requests fit."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, heatmap, stat, statetimeline, timeseries

from dashboards.build import panels as p
from dashboards.build import queries as q
from dashboards.build import tiles
from dashboards.build.board import board
from dashboards.build.five import FEW
from dashboards.build.panels import Query, Text
from dashboards.build.tiles import RUNNING, WAITING
from prometheus.build import latency
from prometheus.build.promql import ENGINE, LABELS
from prometheus.build.settings import Settings

KV, CAPACITY, BYTES = (f"vitals_kv_cache_{what}" for what in ("usage_ratio", "capacity_tokens", "capacity_bytes"))
PREEMPTIONS = "vitals_preemptions_total"

LEGEND = "{{target}} {{model}}"
NOT_TOLD = "not told by these servers"
FULL = Settings().kv_usage


def capacity() -> dashboard.Dashboard:
    """Return the dashboard."""
    return board(
        "llm-vitals-capacity",
        "Capacity",
        "The KV cache, what waits for it, and how many more requests fit.",
        [
            ("KV cache", 9, [(tiles.servers(), 4), (_usage(), 10), (_signature(), 10)]),
            ("", 9, [(_tokens(), 8), (_bytes(), 8), (_more_contexts(), 4), (_more_contexts_by_server(), 4)]),
            ("Requests", 9, [(_waiting(), 8), (_preemptions(), 8), (_finished(), 8)]),
            ("", 9, [(_broke(), 24)]),
            ("", 9, [(_lengths("prompt", "Prompt lengths"), 12), (_lengths("generation", "Output lengths"), 12)]),
        ],
    )


def _usage() -> timeseries.Panel:
    return (
        p.graph(
            Text(
                "KV-cache usage by engine",
                "Share of each engine's KV-cache blocks in use. When it is full, requests wait or are preempted, and"
                " usage"
                f" swings as blocks are freed. None while an engine sleeps.{FEW}",
                "below 90 %, and engines of one server alike: else requests are not spread evenly.",
            ),
            "percentunit",
            NOT_TOLD,
            [
                Query(
                    q.those_with_most(f"max by ({ENGINE}) ({q.awake()})", KV),
                    f"{LEGEND} {{{{engine}}}}",
                )
            ],
        )
        .max(1)
        .fill_opacity(10)
    )


def exhausted() -> str:
    """Return 2 where the KV cache is exhausted, 1 where requests wait for another reason, and else 0.

    Usage swings, so that its highest of the window counts, or preemptions, and only together with waiting.
    """
    waiting = f"sum by ({LABELS}) (min_over_time({q.series(WAITING)}[{q.RATE}])) > 0"
    full = f"max by ({LABELS}) (max_over_time({q.series(KV)}[{q.RATE}])) >= {FULL:g}"
    preempted = f"{q.increase(PREEMPTIONS)} > 0"
    # ^ 0 makes 1 of whatever the comparison left.
    return f"(({waiting}) and ({full} or {preempted})) ^ 0 * 2\nor ({waiting}) ^ 0\nor {q.summed(WAITING)} * 0"


def _signature() -> statetimeline.Panel:
    return p.timeline(
        Text(
            "KV cache exhausted",
            f"Red: requests wait while the cache was at {FULL:.0%} or more, or while requests were preempted, within"
            f" the"
            " last scrapes. Orange: requests wait although there is room: the batch limit (--max-num-seqs) or the token"
            " budget holds them back.",
            "green.",
        ),
        Query(exhausted(), LEGEND),
        {
            "0": ("nothing waits", p.GREEN),
            "1": ("waiting, cache not full", p.ORANGE),
            "2": ("exhausted", p.RED),
        },
        NOT_TOLD,
    )


def _used_and_free(size: str, by: str = "") -> tuple[str, str]:
    """Return what is used and what is free of a capacity, added over engines."""
    on = "on (target, backend, model, engine)"
    used = f"sum{by}({q.series(size)} * {on} ({q.awake()}))"
    free = f"sum{by}({q.series(size)} * {on} (1 - ({q.awake()})))"
    return used, free


def _used_free_panel(text: Text, unit: str, size: str, no_value: str) -> timeseries.Panel:
    used, free = _used_and_free(size)
    return (
        p.stacked(text, unit, no_value, [Query(used, "in use"), Query(free, "free")])
        .override_by_name("in use", p.colored(p.PURPLE))
        .override_by_name("free", p.colored(p.GREEN))
    )


def _tokens() -> timeseries.Panel:
    return _used_free_panel(
        Text(
            "KV cache in tokens",
            "Tokens of context that the KV caches of the servers chosen hold and could hold, added over engines that"
            " are"
            " awake.",
            "free stays well above the longest context that you expect.",
        ),
        "short",
        CAPACITY,
        NOT_TOLD,
    )


def _bytes() -> timeseries.Panel:
    return _used_free_panel(
        Text(
            "KV cache in bytes",
            "The same in bytes: tokens times the bytes that a token's keys and values take, 2 x layers x KV heads x"
            " head"
            " dimension x bytes per element. Arithmetic, not measurement; there only if the configuration gives the"
            " model's config.json.",
            "free stays above what you expect; an 8-bit KV cache halves the bytes of a token.",
        ),
        "bytes",
        BYTES,
        "no server whose model's shape is known",
    )


def _contexts(by: str = "", at: str = "") -> str:
    free = f"{q.series(CAPACITY, at=at)} * on (target, backend, model, engine) (1 - ({q.awake(at)}))"
    return f"sum{by}(floor({free} / $context))"


def _more_contexts() -> stat.Panel:
    some, none = (f"{_contexts()}\nand on () ({_contexts(at=q.AT_END)} {compared} 0)" for compared in (">", "=="))
    else_ = tiles.sleeping_or(tiles.state(lambda at: q.series(CAPACITY, at=at)))
    return p.tile(
        Text(
            "More contexts fit",
            "How many more requests whose context has the length chosen at the top (prompt and answer together) fit"
            " into"
            " the KV caches now, without those that wait. Counted by engine, because a context cannot be split."
            f"{tiles.SAYS}",
            "more than the requests that wait.",
        ),
        "none",
        [
            (Query(some, "of $context tokens"), p.GREEN),
            (Query(none, "of $context tokens"), p.RED),
            (Query(else_, " "), p.GREY),
        ],
        p.states({**tiles.STATES, f"{q.NONE}": ("not told", p.GREY)}),
    )


def _more_contexts_by_server() -> timeseries.Panel:
    return p.graph(
        Text(
            "More contexts fit, by server",
            f"The same over time, of the servers with the fullest caches.{FEW}",
            "above 0.",
        ),
        "none",
        NOT_TOLD,
        [Query(q.those_with_most(_contexts(f" by ({LABELS}) "), KV), LEGEND)],
    )


def _waiting() -> timeseries.Panel:
    return (
        p.stacked(
            Text(
                "Requests waiting, by reason",
                "capacity: no room in the batch or in the KV cache. deferred: held back for another reason, such as"
                " a KV"
                " transfer or an adapter to be loaded. Added over the servers chosen; vLLM tells reasons from 0.20 on.",
                "nothing, or short peaks.",
            ),
            "none",
            "reasons are not told by these servers",
            [Query(f"sum by (reason) ({q.series('vitals_requests_waiting_by_reason')})", "{{reason}}")],
        )
        .axis_soft_max(5)
        .override_by_name("capacity", p.colored(p.ORANGE))
        .override_by_name("deferred", p.colored(p.BLUE))
    )


def _preemptions() -> timeseries.Panel:
    most = "target_model:vitals_preemptions:rate5m"
    return p.graph(
        Text(
            "Preemptions per second",
            "Requests that were thrown out of the batch because the KV cache was full. They are computed again, and"
            " their"
            f" streams pause meanwhile.{FEW}",
            "none.",
        ),
        "short",
        NOT_TOLD,
        [Query(q.those_with_most(q.rate(PREEMPTIONS), most), LEGEND)],
    ).fill_opacity(20)


REASON_COLORS = {"stop": p.GREEN, "length": p.BLUE, "abort": p.ORANGE, "error": p.RED, "repetition": p.PURPLE}


def _finished() -> timeseries.Panel:
    panel = p.stacked(
        Text(
            "Requests finished per second, by reason",
            "stop: the model ended its answer. length: it was cut off. abort: the client went away. error: the server"
            " failed. Added over the servers chosen.",
            "stop and length; many aborts mean that users do not wait so long.",
        ),
        "short",
        "nothing finished in this time, or not told by these servers",
        [Query(f"sum by (reason) (rate({q.series('vitals_requests_finished_total')}[{q.RATE}])) > 0", "{{reason}}")],
    )
    for reason, color in REASON_COLORS.items():
        panel = panel.override_by_name(reason, p.colored(color))
    return panel


def _broke() -> timeseries.Panel:
    s = Settings()
    running = q.series("target_model:vitals_requests_running:sum")
    queries = [Query(q.those_with_most(q.summed(RUNNING), "target_model:vitals_requests_running:sum"), f"{LEGEND} now")]
    for short, where, least in (("itl", "ITL", s.itl_traffic_least), ("ttft", "TTFT", s.ttft_traffic_least)):
        p99 = q.series(q.headline(short, "p99"), 'source="traffic"')
        count = q.series(latency.name(short, f"count_increase{s.window}"), 'source="traffic"')
        broken = f"{p99} >= ${short}_slo and {count} >= {least:g}"
        slow = f"(avg_over_time({running}[{s.window}]) and on ({LABELS}) ({broken}))"
        broke = f"min by ({LABELS}) (min_over_time({slow}[{q.WHOLE}:] @ end()))"
        queries.append(Query(q.those_with_most(broke, "target_model:vitals_requests_running:sum"),
                             f"{LEGEND} {where} p99 broke from"))  # fmt: skip
    return p.graph(
        Text(
            "Concurrency now, and where p99 broke",
            "Requests running now, and the smallest batch (averaged over 5 minutes, as the p99 is) at which p99 of"
            " ITL or"
            " TTFT was above its threshold chosen at the top, within the time range, and rested on at least"
            f" {s.itl_traffic_least:g} tokens or {s.ttft_traffic_least:g} requests. No such line: it never broke."
            f"{FEW}",
            "now stays below; that line is the concurrency to limit the server to.",
        ),
        "none",
        NOT_TOLD,
        queries,
    ).override_by_regexp("/broke/", p.dashed("dash"))


def _lengths(what: str, title: str) -> heatmap.Panel:
    family = f"vitals_request_{what}_tokens"
    busiest = q.series(f"target_model:vitals_{what}_tokens:rate5m")
    busiest = f"topk(1, max by (target, model) (max_over_time({busiest}[{q.WHOLE}] @ end())))"
    grown = q.increase(f"{family}_bucket", "le, target, model")
    return p.heat(
        Text(
            title,
            f"How many finished requests had so many {'prompt' if what == 'prompt' else 'output'} tokens, of the"
            f" server and"
            " model with most of them; choose a server at the top to see another.",
            "what you sized the server for; long prompts cost prefill, long answers hold KV cache for long.",
        ),
        "short",
        f"sum by (le) (({grown})\nand on (target, model) {busiest})",
    )
