"""The dashboard of the five key metrics: TTFT, ITL, requests running, requests waiting, KV-cache usage."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard, stat, table, timeseries
from grafana_foundation_sdk.models import dashboard as model

from dashboards.build import panels as p
from dashboards.build import queries as q

TTFT, ITL = "vitals_time_to_first_token_seconds", "vitals_inter_token_latency_seconds"
PROBE_TTFT, PROBE_ITL = "vitals_probe_time_to_first_token_seconds", "vitals_probe_inter_token_latency_seconds"
RUNNING, WAITING, KV = "vitals_requests_running", "vitals_requests_waiting", "vitals_kv_cache_usage_ratio"

STATES = (
    " DOWN: the server does not answer as it should, see the table of targets. no data: it reported a"
    " while ago, and now nothing reaches Prometheus."
)
KINDS = (
    "\n\n**traffic** is what the server says of its users' requests; **probe** is what our own small requests"
    " met, over the probe window chosen at the top. They are never added up."
)
BOUNDS = (
    "\n\nQuantiles are interpolated between the histogram's bucket bounds. **p99 ≤** or **≥**: the quantile"
    " lies below the lowest or above the highest bound, so only the bound is known and drawn (dotted). The"
    " mean is exact. No line: no request in that time."
)


def five_key_metrics() -> dashboard.Dashboard:
    """Return the dashboard: a row of tiles, five graphs, the state of the targets."""
    board = (
        dashboard.Dashboard("LLM vitals / Five key metrics")
        .uid("llm-vitals-five")
        .description(
            "Time to first token, inter-token latency, requests running and waiting, and KV-cache usage of"
            " every server."
        )
        .tags(["llm-vitals"])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(p.choice("backend", "Backend", "label_values(vitals_target_up, backend)"))
        .with_variable(p.choice("target", "Target", 'label_values(vitals_target_up{backend=~"$backend"}, target)'))
        .with_variable(p.choice("model", "Model", _model_values()))
        .with_variable(dashboard.IntervalVariable("probe_window").label("Probe window").values("5m,1m,15m,1h"))
    )
    return p.place(
        board,
        [
            (_ttft_tile(), (0, 0, 5, 5)),
            (_itl_tile(), (5, 0, 5, 5)),
            (_running_tile(), (10, 0, 5, 5)),
            (_waiting_tile(), (15, 0, 5, 5)),
            (_kv_tile(), (20, 0, 4, 5)),
            (_ttft(), (0, 5, 12, 12)),
            (_itl(), (12, 5, 12, 12)),
            (_running(), (0, 17, 8, 8)),
            (_waiting(), (8, 17, 8, 8)),
            (_kv(), (16, 17, 8, 8)),
            (_targets(), (0, 25, 24, 7)),
        ],
    )


def _model_values() -> str:
    having_models = "vitals_requests_running|vitals_model_loaded|vitals_probes_total"
    return f'label_values({{__name__=~"{having_models}",target=~"$target"}}, model)'


def _ttft_tile() -> stat.Panel:
    return _latency_tile("TTFT, mean", TTFT, PROBE_TTFT, "target, prompt", "{{target}} probe {{prompt}}")


def _itl_tile() -> stat.Panel:
    return _latency_tile("ITL, mean", ITL, PROBE_ITL, "target", "{{target}} probe")


def _latency_tile(title: str, family: str, probe: str, probe_by: str, probe_legend: str) -> stat.Panel:
    no_probe = model.DynamicConfigValue(id_val="mappings", value=p.states({}, nan="no probe"))
    return p.tile(
        title,
        f"The mean now, and over the last {q.RECENT}: exact, where a quantile would depend on the histogram's"
        " buckets. Good is what your users accept; watch for a step. no traffic: no request was served just now."
        f"{STATES}{KINDS}\n\nSeries: `{family}`, `{probe}` (`_sum`, `_count`), `vitals_target_up`.",
        "s",
        [
            (q.with_state(q.mean(family, "target", q.RATE), q.histogram_seen(family)), "{{target}} traffic"),
            (q.mean(probe, probe_by, q.PROBES), probe_legend),
        ],
    ).override_by_query("B", [no_probe])


def _running_tile() -> stat.Panel:
    return p.tile(
        "Requests running",
        f"Requests in the running batch now, added over engines. Good: below the server's batch limit."
        f"{STATES}\n\nSeries: `{RUNNING}`, `vitals_target_up`.",
        "none",
        [(q.with_state(q.summed(RUNNING, "target"), q.gauge_seen(RUNNING)), "{{target}}")],
    )


def _waiting_tile() -> stat.Panel:
    return p.tile(
        "Requests waiting",
        f"Requests waiting to be scheduled now, added over engines. Good: 0, or short peaks."
        f"{STATES}\n\nSeries: `{WAITING}`, `vitals_target_up`.",
        "none",
        [(q.with_state(q.summed(WAITING, "target"), q.gauge_seen(WAITING)), "{{target}}")],
    ).thresholds(p.thresholds(p.GREEN, (1, p.YELLOW)))


def _kv_tile() -> stat.Panel:
    return (
        p.tile(
            "KV-cache usage",
            f"Share of the KV-cache blocks in use now, of the fullest engine. Good: below 80 %. asleep: the engine has"
            f" given its memory back.{STATES}\n\nSeries: `{KV}`, `vitals_engine_asleep`, `vitals_target_up`.",
            "percentunit",
            [(q.with_state(q.kv_usage_or_asleep(), q.gauge_seen(KV)), "{{target}}")],
        )
        .max(1)
        .thresholds(p.thresholds(p.GREEN, (0.8, p.YELLOW), (0.95, p.RED)))
    )


def _latency_queries(family: str, probe: str, probe_by: str, probe_size: str) -> list[p.Query]:
    found = []
    for kind, name, by, window, size in (
        ("traffic", family, "target, model", q.RATE, ""),
        ("probe", probe, probe_by, q.PROBES, probe_size),
    ):
        legend = f"{{{{target}}}} {{{{model}}}} {kind}{size}"
        found += [
            (q.quantile(0.5, name, by, window), f"{legend} p50 {{{{bound}}}}"),
            (q.quantile(0.99, name, by, window), f"{legend} p99 {{{{bound}}}}"),
            (q.observed(q.mean(name, by, window)), f"{legend} mean"),
        ]
    return found


def _latency(panel: timeseries.Panel) -> timeseries.Panel:
    return panel.override_by_regexp("/ probe /", p.dashed("dash")).override_by_regexp("/[≤≥]/", p.dashed("dot"))


def _ttft() -> timeseries.Panel:
    return _latency(
        p.graph(
            "Time to first token (TTFT)",
            "From a request's arrival to its first token: waiting, then prefill. Good: flat, with p99 near p50."
            " p99 alone rising: some prompts are long, or requests wait; compare with the panel of waiting requests."
            f"{KINDS}{BOUNDS}\n\nSeries: `{TTFT}`, `{PROBE_TTFT}`.",
            "s",
            "no traffic and no probe in this time",
            _latency_queries(TTFT, PROBE_TTFT, "target, model, prompt", " {{prompt}}"),
        )
    )


def _itl() -> timeseries.Panel:
    return _latency(
        p.graph(
            "Inter-token latency (ITL)",
            "From one output to the next while a request decodes. Good: flat, and at or below 50 ms, where text"
            " comes faster than it is read. It rises with the batch, and with prefills that share it; a"
            " preemption's wait is inside. With speculative decoding one output can be several tokens."
            f"{KINDS}{BOUNDS}\n\nSeries: `{ITL}`, `{PROBE_ITL}`.",
            "s",
            "no traffic and no probe in this time",
            _latency_queries(ITL, PROBE_ITL, "target, model", ""),
        )
    )


def _running() -> timeseries.Panel:
    return (
        p.graph(
            "Requests running",
            "Requests in the running batch, added over engines. Good: follows the load and stays below the server's"
            " batch limit; a flat top at the limit means that requests wait. A gauge, read at each scrape: peaks"
            f" between are not seen.\n\nSeries: `{RUNNING}`.",
            "none",
            "not reported by these targets",
            [(q.summed(RUNNING, "target, model"), "{{target}} {{model}}")],
        )
        .fill_opacity(10)
        .axis_soft_max(5)
    )


def _waiting() -> timeseries.Panel:
    return (
        p.graph(
            "Requests waiting",
            "Requests waiting to be scheduled, added over engines. Good: 0, or short peaks. Staying above 0 with a"
            " full KV cache: memory is short; with a KV cache half empty: the batch is at its limit.\n\n"
            f"Series: `{WAITING}`.",
            "none",
            "not reported by these targets",
            [(q.summed(WAITING, "target, model"), "{{target}} {{model}}")],
        )
        .fill_opacity(10)
        .axis_soft_max(5)
    )


def _kv() -> timeseries.Panel:
    return (
        p.graph(
            "KV-cache usage",
            "Share of the KV-cache blocks in use, of the fullest engine; never added over engines. Good: below"
            " 80 %. Near 100 % requests wait or are preempted, and then usage swings as blocks are freed. Empty"
            f" while an engine sleeps.\n\nSeries: `{KV}`, `vitals_engine_asleep`.",
            "percentunit",
            "not reported by these targets",
            [(q.kv_usage("target, model"), "{{target}} {{model}}")],
        )
        .max(1)
        .fill_opacity(10)
    )


def _targets() -> table.Panel:
    columns = {
        "target": "target",
        "Value #A": "state",
        "reason": "failing with",
        "backend": "backend",
        "version": "version",
        "url": "read at",
        "Value #D": "reading took",
        "Value #E": "last good probe",
    }
    hidden = ["Time", "Value #B", "Value #C"]
    organize = {
        "excludeByName": dict.fromkeys(hidden, True),
        "indexByName": {name: index for index, name in enumerate(columns)},
        "renameByName": columns,
    }
    texts = {
        1.0: ("up", p.GREEN),
        2.0: ("up, asleep", p.BLUE),
        0.0: ("DOWN", p.RED),
        float(q.GONE): ("no data", p.ORANGE),
    }
    return (
        table.Panel()
        .title("Targets")
        .description(
            "What the exporter last found at each server, and the exporter itself. Good: all green. DOWN: the last"
            " reading failed, with the reason beside it; the exporter's page /debug/TARGET says more. no data: the"
            f" target was reported in the last {q.RECENT}, and now is not.\n\nSeries: `vitals_target_up`,"
            " `vitals_target_info`, `vitals_engine_asleep`, `vitals_scrape_failures_total`,"
            " `vitals_scrape_duration_seconds`, `vitals_probe_last_success_timestamp_seconds`,"
            " `vitals_build_info`, and Prometheus's own `up`."
        )
        .datasource(p.datasource())
        .targets(
            [
                p.table_query("A", q.target_state()),
                p.table_query("B", q.target_version()),
                p.table_query("C", q.failure_reason()),
                p.table_query("D", q.reading_duration()),
                p.table_query("E", q.probe_age()),
            ]
        )
        .transformations(
            [
                model.DataTransformerConfig(id_val="merge", options={}),
                model.DataTransformerConfig(id_val="organize", options=organize),
            ]
        )
        .unit("none")
        .no_value("")
        .thresholds(p.thresholds(p.GREY))
        # by its number, so that what is wrong stands on top
        .sort_by([common.TableSortByFieldState().display_name("state").desc(False)])
        .override_by_name(
            "state",
            [
                model.DynamicConfigValue(id_val="mappings", value=p.states(texts)),
                model.DynamicConfigValue(
                    id_val="custom.cellOptions", value={"type": "color-background", "mode": "basic"}
                ),
                model.DynamicConfigValue(id_val="custom.align", value="center"),
                model.DynamicConfigValue(id_val="custom.width", value=120),
            ],
        )
        .override_by_name("reading took", [model.DynamicConfigValue(id_val="unit", value="s")])
        .override_by_name("last good probe", [model.DynamicConfigValue(id_val="unit", value="s")])
    )
