"""What all dashboards share: variables, links between them, and panels laid out in rows."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as model

from dashboards.build import panels as p
from prometheus.build.settings import Settings

TAG = "llm-vitals"

Row = tuple[str, int, list[tuple[p.Panel, int]]]
"""A heading ("" for none), a height, and the panels with their widths, 24 together."""

EXPORTER = "http://127.0.0.1:10434"
"""Where the data links look for the exporter's pages, until told otherwise at the top of the dashboard."""

_TTFT_BOUNDS = ("0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "20.0")
_ITL_BOUNDS = ("0.01", "0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.5", "1.0")


def board(uid: str, title: str, description: str, rows: Sequence[Row]) -> dashboard.Dashboard:
    """Return a dashboard with the rows below each other."""
    made = (
        dashboard.Dashboard(f"LLM vitals / {title}")
        .uid(uid)
        .description(description)
        .tags([TAG])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(
            dashboard.DashboardLink("LLM vitals")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(False)
            .include_vars(True)
            .keep_time(True)
        )
    )
    for variable in _variables():
        made = made.with_variable(variable)
    number, y = 0, 0
    for heading, height, panels in rows:
        if heading:
            number += 1
            made = made.with_row(
                dashboard.Row(heading).id(number).collapsed(False).grid_pos(model.GridPos(x=0, y=y, w=24, h=1))
            )
            y += 1
        x = 0
        for panel, width in panels:
            number += 1
            made = made.with_panel(panel.id(number).grid_pos(model.GridPos(x=x, y=y, w=width, h=height)))
            x += width
        y += height
    return made


def _variables() -> list[
    dashboard.DatasourceVariable
    | dashboard.QueryVariable
    | dashboard.CustomVariable
    | dashboard.IntervalVariable
    | dashboard.TextBoxVariable
]:
    s = Settings()
    known = "vitals_requests_running|vitals_model_loaded|vitals_probes_total"
    return [
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        _found("backend", "Backend", "label_values(vitals_target_up, backend)"),
        _found("target", "Server", 'label_values(vitals_target_up{backend=~"$backend"}, target)'),
        _found("model", "Model", f'label_values({{__name__=~"{known}",target=~"$target"}}, model)'),
        _found("engine", "Engine", 'label_values(vitals_requests_running{target=~"$target"}, engine)').description(
            "The rank of a data-parallel server. What recording rules give (p99 in tiles and table, tokens/s in the"
            " table) is of all ranks of a server."
        ),
        _listed("quantile", "Quantile", ("p50 : 0.5", "p90 : 0.9", "p95 : 0.95", "p99 : 0.99"), "p99 : 0.99"),
        _listed("ttft_slo", "TTFT within", [_duration(b) for b in _TTFT_BOUNDS], _duration(f"{s.ttft_slo:.1f}")),
        _listed("itl_slo", "ITL within", [_duration(b) for b in _ITL_BOUNDS], _duration(f"{s.itl_slo}")),
        _listed(
            "running_limit", "Running up to", ("1", "4", "8", "16", "32", "64", "128", "256", "512", "1024"), "256"
        ),
        _listed("waiting_limit", "Waiting up to", ("0", "1", "2", "5", "10", "50"), f"{s.waiting:g}"),
        _listed(
            "kv_limit",
            "KV usage up to",
            ("80 % : 0.8", "90 % : 0.9", "95 % : 0.95"),
            f"{100 * s.kv_usage:g} % : {s.kv_usage:g}",
        ),
        _listed("context", "Context", ("1024", "2048", "4096", "8192", "16384", "32768", "131072"), "4096"),
        _listed("lines", "Servers in graphs", ("1", "3", "5", "10", "50"), "3"),
        dashboard.IntervalVariable("probe_window").label("Probe window").values("1m,5m,15m,1h").current(_option("5m")),
        dashboard.TextBoxVariable("exporter").label("Exporter").default_value(EXPORTER).current(_option(EXPORTER)),
    ]


def choices() -> list[str]:
    """Return the names of the variables that do not choose servers, which a link to a server's board hands on."""
    return [variable.build().name for variable in _variables() if not isinstance(variable, dashboard.QueryVariable)]


def _duration(bound: str) -> str:
    """Return an option whose value is a bucket's bound as it stands in the label le."""
    seconds = float(bound)
    return f"{seconds:g} s : {bound}" if seconds >= 1 else f"{seconds * 1000:g} ms : {bound}"


def _option(option: str) -> model.VariableOption:
    text, _, value = option.partition(" : ")
    return model.VariableOption(selected=True, text=text, value=value or text)


def _listed(name: str, label: str, options: Sequence[str], chosen: str) -> dashboard.CustomVariable:
    assert chosen in options, f"{chosen} is not among the options of {name}"
    return dashboard.CustomVariable(name).label(label).values(",".join(options)).current(_option(chosen))


def _found(name: str, label: str, values: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(values)
        .datasource(p.datasource())
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )
