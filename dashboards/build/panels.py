"""Panels as all dashboards draw them: one look, the data source of the variable, nothing without a unit."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus as prometheus_model

from dashboards.build.queries import ASLEEP, DOWN, GONE, RECENT

Panel = stat.Panel | table.Panel | timeseries.Panel
Query = tuple[str, str]
"""PromQL and the legend of its series."""

RED, ORANGE, YELLOW, GREEN, BLUE, GREY = "red", "orange", "yellow", "green", "blue", "#8e8e8e"


def datasource() -> model.DataSourceRef:
    """Return the reference to the data source chosen at the top of the dashboard."""
    return model.DataSourceRef(type_val="prometheus", uid="${datasource}")


def query(ref_id: str, expr: str, legend: str) -> prometheus.Dataquery:
    """Return a query over the panel's time range."""
    return prometheus.Dataquery().ref_id(ref_id).expr(expr).legend_format(legend).range()


def table_query(ref_id: str, expr: str) -> prometheus.Dataquery:
    """Return a query at the end of the time range whose labels become columns."""
    return prometheus.Dataquery().ref_id(ref_id).expr(expr).format(prometheus_model.PromQueryFormat.TABLE).instant()


def ref_ids(queries: list[Query]) -> list[prometheus.Dataquery]:
    """Return the queries named A, B, C and so on."""
    return [query(chr(ord("A") + i), expr, legend) for i, (expr, legend) in enumerate(queries)]


def thresholds(base: str, *steps: tuple[float, str]) -> dashboard.ThresholdsConfig:
    """Return a colour below the first of the steps and one from each step on."""
    levels = [model.Threshold(value=None, color=base)]
    levels += [model.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(levels)


def states(texts: dict[float, tuple[str, str]], nan: str | None = None) -> list[model.ValueMapping]:
    """Return mappings of values to text and colour, and of NaN to a text in grey."""
    results = {
        f"{value:g}": model.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(texts.items())
    }
    mappings: list[model.ValueMapping] = [model.ValueMap(options=results)]
    if nan is not None:
        result = model.ValueMappingResult(text=nan, color=GREY, index=len(results))
        options = model.DashboardSpecialValueMapOptions(match=model.SpecialValueMatch.NULL_AND_NAN, result=result)
        mappings.append(model.SpecialValueMap(options=options))
    return mappings


TILE_STATES = {float(DOWN): ("DOWN", RED), float(GONE): ("no data", ORANGE), float(ASLEEP): ("asleep", BLUE)}


def tile(title: str, description: str, unit: str, queries: list[Query]) -> stat.Panel:
    """Return a tile with the value of this moment for each series and its trend over the last RECENT.

    The time range is the tile's own, so that a long range of the dashboard cannot bring back old values.
    """
    latest = common.ReduceDataOptions().calcs(["last"]).values(False).fields("")
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(datasource())
        .targets(list(ref_ids(queries)))
        .unit(unit)
        .min(0)
        .no_value("not reported")
        .mappings(states(TILE_STATES, nan="no traffic"))
        .thresholds(thresholds(BLUE))
        .reduce_options(latest)
        .text_mode(common_model.BigValueTextMode.VALUE_AND_NAME)
        .color_mode(common_model.BigValueColorMode.VALUE)
        .graph_mode(common_model.BigValueGraphMode.AREA)
        .orientation(common_model.VizOrientation.HORIZONTAL)
        .time_from(RECENT)
        .hide_time_override(True)
    )


def graph(title: str, description: str, unit: str, no_value: str, queries: list[Query]) -> timeseries.Panel:
    """Return lines over time from zero up, with gaps where there is no value."""
    legend = (
        common.VizLegendOptions()
        .display_mode(common_model.LegendDisplayMode.TABLE)
        .placement(common_model.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
        .sort_by("Name")
        .sort_desc(False)
    )
    tooltip = (
        common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI).sort(common_model.SortOrder.DESCENDING)
    )
    return (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(datasource())
        .targets(list(ref_ids(queries)))
        .unit(unit)
        .min(0)
        .no_value(no_value)
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        .line_width(2)
        .show_points(common_model.VisibilityMode.AUTO)
        .point_size(4)
        .span_nulls(False)
        .legend(legend)
        .tooltip(tooltip)
    )


def dashed(dash: str) -> list[model.DynamicConfigValue]:
    """Return the override that draws a line dashed ("dash") or dotted ("dot")."""
    style = {"dash": [10, 6], "dot": [2, 6]}[dash]
    return [model.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": dash, "dash": style})]


def place(board: dashboard.Dashboard, panels: list[tuple[Panel, tuple[int, int, int, int]]]) -> dashboard.Dashboard:
    """Add the panels at (x, y, width, height) in a grid of 24 columns and number them from 1."""
    for number, (panel, (x, y, width, height)) in enumerate(panels, start=1):
        board.with_panel(panel.id(number).grid_pos(model.GridPos(x=x, y=y, w=width, h=height)))
    return board


def choice(name: str, label: str, values: str) -> dashboard.QueryVariable:
    """Return a variable with several values chosen at once, all at first, filled by a query."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(values)
        .datasource(datasource())
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )
