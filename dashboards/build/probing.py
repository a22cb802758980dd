"""The dashboard of the probes: whether they succeed, what they met, and what they cost."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, heatmap, stat, timeseries

from dashboards.build import panels as p
from dashboards.build import queries as q
from dashboards.build import tiles
from dashboards.build.board import board
from dashboards.build.decode import LEGEND, NO_PROBE
from dashboards.build.five import BOUNDS, FEW, PROBE_ITL, PROBE_TTFT, TTFT
from dashboards.build.panels import Query, Text
from dashboards.build.phases import PROMPTS
from prometheus.build.latency import QUANTILES
from prometheus.build.promql import LABELS

PHASE = "vitals_probe_phase_seconds"
ENDED, FAILED, COLD = "vitals_probes_total", "vitals_probe_failures_total", "vitals_probe_cold_total"


def probes() -> dashboard.Dashboard:
    """Return the dashboard."""
    return board(
        "llm-vitals-probes",
        "Probes",
        "Small synthetic requests: whether they succeed, what they met, and what they cost.",
        [
            ("", 5, [(tiles.servers(), 4), (_success(), 5), (_oldest(), 5), (_dearest(), 5), (_coldest(), 5)]),
            ("", 9, [(_failures(), 8), (_share(), 8), (_loads(), 8)]),
            ("What they met", 9, [(_phases(), 12), (_against_server(), 12)]),
            ("", 9, [(_ttft(), 12), (_itl(), 12)]),
            ("", 8, [(_heat("TTFT", PROBE_TTFT), 12), (_heat("ITL", PROBE_ITL), 12)]),
        ],
    )


def _slowest() -> str:
    return q.headline("ttft", "p99")


def _success() -> stat.Panel:
    failed, ended = q.increase(FAILED, "", q.PROBES), q.increase(ENDED, "", q.PROBES)
    good = f"1 - {q.ratio(failed, ended)}"
    at_end = good.replace(f"[{q.PROBES}]", f"[{q.PROBES}]{q.AT_END}")
    return p.tile(
        Text(
            "Probes that succeed",
            "The share of good ones among all probes to the servers chosen, within the probe window chosen at the top.",
            "all of them.",
        ),
        "percentunit",
        [
            (Query(f"({good})\nand on () (({at_end}) == 1)", "all is well"), p.GREEN),
            (Query(f"({good})\nand on () (({at_end}) < 1)", "see the reasons"), p.RED),
            (Query(f"absent({at_end}) + {q.NONE - 1}", " "), p.GREY),
        ],
        p.states({f"{q.NONE}": ("no probe", p.GREY)}),
    ).max(1)


def _now_or_none(text: Text, unit: str, series: str, expr: str, legend: str) -> stat.Panel:
    """Return a tile of `expr`, which is there if `series` is at the end of the time range."""
    absent = f"absent({q.series(series, at=q.AT_END)})"
    gone = f"absent({q.series('vitals_target_up', at=q.AT_END)}) + {q.GONE - 1}"
    return p.tile(
        text,
        unit,
        [
            (Query(f"({expr})\nunless on () {absent}", legend), p.BLUE),
            (Query(f"{gone}\nor {absent} + {q.NONE - 1}", " "), p.GREY),
        ],
        p.states({**tiles.STATES, f"{q.NONE}": ("none", p.GREY)}),
    )


def _oldest() -> stat.Panel:
    last = q.largest("vitals_probe_last_success_timestamp_seconds", "target")
    return _now_or_none(
        Text(
            "Oldest last good probe",
            "How long ago the last good probe was, of the server where that is longest ago.",
            "a few times the interval configured; probes become rarer where they take long, so as not to disturb.",
        ),
        "s",
        "vitals_probe_last_success_timestamp_seconds",
        f"time() - min({last})",
        "ago",
    )


def _dearest() -> stat.Panel:
    return _now_or_none(
        Text(
            "Share of a server's time",
            "The share of its time that probes lately took of the server where that is highest; never above"
            " probe.max_share of the configuration.",
            "about 1 % or less.",
        ),
        "percentunit",
        "vitals_probe_share_ratio",
        f"max({q.largest('vitals_probe_share_ratio', 'target')})",
        "highest",
    )


def _coldest() -> stat.Panel:
    return _now_or_none(
        Text(
            "Cold starts in the time range",
            "How often a probe served as warm-up: the first after the exporter started or the model was loaded. Such"
            " probes are in no latency.",
            "none, once everything runs.",
        ),
        "none",
        COLD,
        q.increase(COLD, "", q.WHOLE),
        "warm-ups",
    ).decimals(0)


def _failures() -> timeseries.Panel:
    good = f"{q.increase(ENDED, '', q.PROBES)} - {q.increase(FAILED, '', q.PROBES)}"
    return (
        p.stacked(
            Text(
                "Probes by result",
                "Probes to the servers chosen within the probe window chosen at the top: good ones, and failed ones by"
                " reason. The last failure's own words are on the exporter's page of the server.",
                "good ones only.",
            ),
            "none",
            NO_PROBE,
            [
                Query(good, "good"),
                Query(f"sum by (reason) (increase({q.series(FAILED)}[{q.PROBES}])) > 0", "{{reason}}"),
            ],
        )
        .color_scheme(dashboard.FieldColor().mode(p.SHADES).fixed_color(p.RED))
        .override_by_name("good", p.colored(p.GREEN))
        .decimals(1)
    )


def _share() -> timeseries.Panel:
    return p.graph(
        Text(
            "Share of the server's time that probes take",
            f"Time spent in probes over time passed, lately; probe.max_share of the configuration bounds it.{FEW}",
            "about 1 % or less.",
        ),
        "percentunit",
        NO_PROBE,
        [
            Query(
                q.those_with_most(q.largest("vitals_probe_share_ratio", "target"), "vitals_probe_share_ratio"),
                "{{target}}",
            )
        ],
    ).fill_opacity(10)


def _loads() -> timeseries.Panel:
    most = f"topk($lines, sum by (target) (increase({q.series(COLD)}[{q.WHOLE}] @ end())))"
    load = q.mean("vitals_probe_load_seconds", window=q.PROBES)
    return p.graph(
        Text(
            "Cold loads",
            "Mean time to load a model into memory, of probes that met a cold one, and how many there were within the"
            " probe window (right).\n\nThe lines are those of the servers with most of them, as many as chosen at the"
            " top.",
            "none; each is a wait for somebody. OLLAMA_KEEP_ALIVE keeps a model in memory.",
        ),
        "s",
        "no model was cold",
        [
            Query(f"{load}\nand on (target) {most}", f"{LEGEND} load"),
            Query(f"{q.increase(COLD, window=q.PROBES)} > 0\nand on (target) {most}", f"{LEGEND} cold"),
        ],
    ).override_by_regexp("/ cold/", [*p.on_the_right("none", "cold probes"), *p.dashed("dash")])


def _phases() -> timeseries.Panel:
    phases = q.those_with_most(f"max by (target, model, prompt, phase) ({q.series(PHASE)})", PHASE, "1")
    panel = p.stacked(
        Text(
            "Phases of the last probe",
            "Connection, queue, load, prefill and decode of the last good probe of the server where one of them was"
            " longest; choose a server at the top to see another. By prompt, one on top of the other. Only servers that"
            f" tell their times are here.{PROMPTS}",
            "decode is most of it; prefill grows with the prompt; queue only under load; load only after a pause.",
        ),
        "s",
        "no probe whose server tells its times",
        [Query(phases, "{{target}} {{model}} {{prompt}} {{phase}}")],
    )
    for phase, color in p.PHASE_COLORS.items():
        panel = panel.override_by_regexp(f"/ {phase}$/", p.shaded(color))
    return panel


def _against_server() -> timeseries.Panel:
    client = q.mean(PROBE_TTFT, f"{LABELS}, prompt", q.PROBES)
    own = q.series(PHASE, 'phase=~"load|prefill"')
    told = f"sum by ({LABELS}, prompt) ({own})"
    return (
        p.graph(
            Text(
                "Client's TTFT against the server's own",
                "What a probe met as a client (by prompt); the server's own word for the last probe, loading and"
                " prefill;"
                " and the server's own mean for all its requests (dotted). The difference of the first two is network,"
                f" proxy and queue, connection set-up left out.{FEW}",
                "client and server close together; a gap of more than some milliseconds without load is the way"
                " between.",
            ),
            "s",
            NO_PROBE,
            [
                Query(q.those_with_most(client, _slowest()), f"{LEGEND} {{{{prompt}}}} client"),
                Query(q.those_with_most(told, _slowest()), f"{LEGEND} {{{{prompt}}}} server"),
                Query(q.those_with_most(q.mean(TTFT, window=q.PROBES), _slowest()), f"{LEGEND} server, all requests"),
            ],
        )
        .override_by_regexp("/ server$/", p.dashed("dash"))
        .override_by_regexp("/all requests/", p.dashed("dot"))
    )


def _latency(text: Text, family: str, short: str) -> timeseries.Panel:
    slowest = q.headline(short, "p99")
    queries = [
        Query(q.those_with_most(q.probed(name, family), slowest), f"{LEGEND} {name} {{{{bound}}}}")
        for name in QUANTILES
    ]
    queries.append(Query(q.those_with_most(q.probed_mean(family), slowest), f"{LEGEND} mean"))
    return p.quantiles(p.graph(text, "s", NO_PROBE, queries))


def _ttft() -> timeseries.Panel:
    return _latency(
        Text(
            "Probe's TTFT",
            "As a client sees it, over 5 minutes, small and large prompts together; cold starts, and prompts asked once"
            f" more, are left out.{BOUNDS}{FEW}",
            "flat; a step means that something changed on the server or on the way.",
        ),
        PROBE_TTFT,
        "ttft",
    )


def _itl() -> timeseries.Panel:
    return _latency(
        Text(
            "Probe's ITL",
            "The time between network reads that carry text, as a client sees it, over 5 minutes; none of answers that"
            f" came coalesced, as through a buffering proxy.{BOUNDS}{FEW}",
            "flat, and as the server's own ITL.",
        ),
        PROBE_ITL,
        "itl",
    )


def _heat(name: str, family: str) -> heatmap.Panel:
    p99 = q.series(f"target_model:{family}:p99_rate5m")
    slowest = f"topk(1, max by (target, model) (max_over_time({p99}[{q.WHOLE}] @ end())))"
    grown = q.increase(f"{family}_bucket", "le, target, model", q.PROBES)
    return p.heat(
        Text(
            f"Probe's {name}, slowest server",
            "How many observations of the probes fell into each bucket within the probe window chosen at the top,"
            " at the"
            " server and model whose probes were slowest; choose a server at the top to see another.",
            "narrow bands: one for TTFT by each prompt, one for ITL.",
        ),
        "s",
        f"sum by (le) (({grown})\nand on (target, model) {slowest})",
    )
