"""Panels as all dashboards draw them: one look, the data source of the variable, nothing without a unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import prometheus as prometheus_model

from dashboards.build import queries as q

Panel = heatmap.Panel | stat.Panel | statetimeline.Panel | table.Panel | timeseries.Panel
P = TypeVar("P", heatmap.Panel, stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel)
Override = list[model.DynamicConfigValue]

RED, ORANGE, YELLOW, GREEN, BLUE, PURPLE, GREY = "red", "orange", "yellow", "green", "blue", "purple", "#8e8e8e"

SHADES = model.FieldColorModeId.SHADES

PHASE_COLORS = {"connect": GREY, "queue": ORANGE, "load": PURPLE, "prefill": BLUE, "decode": GREEN}

QUANTILE_COLORS = {"p50": GREEN, "p95": YELLOW, "p99": RED, "mean": BLUE}


@dataclass(frozen=True, slots=True)
class Text:
    """What a panel is about: `means` what is seen, `good` what good looks like."""

    title: str
    means: str
    good: str

    def description(self, exprs: Iterable[str]) -> str:
        """Return the panel's description, with the series that its queries read."""
        names = {_family(name) for expr in exprs for name in q.metrics(expr)}
        return f"{self.means}\n\nGood: {self.good}\n\nSeries: {', '.join(f'`{name}`' for name in sorted(names))}"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and the legend of its series."""

    expr: str
    legend: str


def _family(name: str) -> str:
    return q.SAMPLES[name].name if name in q.SAMPLES else name


def datasource() -> model.DataSourceRef:
    """Return the reference to the data source chosen at the top of the dashboard."""
    return model.DataSourceRef(type_val="prometheus", uid="${datasource}")


def ref_ids() -> Iterable[str]:
    """Yield A, B, C and so on."""
    return iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def begin(panel: P, text: Text, unit: str, queries: Sequence[Query]) -> P:
    """Give a panel what each has: title, description, data source, queries over the time range, unit."""
    targets = [
        prometheus.Dataquery().ref_id(ref_id).expr(query.expr).legend_format(query.legend).range()
        for ref_id, query in zip(ref_ids(), queries, strict=False)
    ]
    return (
        panel.title(text.title)
        .description(text.description(query.expr for query in queries))
        .datasource(datasource())
        .targets(list(targets))
        .unit(unit)
    )


def thresholds(base: str, *steps: tuple[float, str]) -> dashboard.ThresholdsConfig:
    """Return a colour below the first of the steps and one from each step on."""
    levels = [model.Threshold(value=None, color=base)]
    levels += [model.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(levels)


def states(texts: Mapping[str, tuple[str, str]], nan: str | None = None) -> list[model.ValueMapping]:
    """Return mappings of values to text and colour, and of NaN to a text in grey."""
    results = {
        value: model.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(texts.items())
    }
    mappings: list[model.ValueMapping] = [model.ValueMap(options=results)]
    if nan is not None:
        result = model.ValueMappingResult(text=nan, color=GREY, index=len(results))
        options = model.DashboardSpecialValueMapOptions(match=model.SpecialValueMatch.NA_N, result=result)
        mappings.append(model.SpecialValueMap(options=options))
    return mappings


def set_to(name: str, value: object) -> model.DynamicConfigValue:
    """Return one property of an override."""
    return model.DynamicConfigValue(id_val=name, value=value)


def colored(color: str) -> Override:
    """Return the override that gives one colour whatever the thresholds."""
    return [set_to("color", {"mode": "fixed", "fixedColor": color})]


def shaded(color: str) -> Override:
    """Return the override that gives each of several series another shade of a colour."""
    return [set_to("color", {"mode": "shades", "fixedColor": color})]


def dashed(dash: str) -> Override:
    """Return the override that draws a line dashed ("dash") or dotted ("dot")."""
    style = {"dash": [10, 6], "dot": [2, 6]}[dash]
    return [set_to("custom.lineStyle", {"fill": dash, "dash": style})]


def on_the_right(unit: str, label: str, highest: float | None = None) -> Override:
    """Return the override that draws a line against an axis of its own."""
    limits = [set_to("max", highest)] if highest is not None else []
    return [
        set_to("custom.axisPlacement", "right"),
        set_to("custom.axisLabel", label),
        set_to("unit", unit),
        set_to("custom.stacking", {"mode": "none", "group": "A"}),
        set_to("custom.fillOpacity", 0),
        *limits,
    ]


def tile(text: Text, unit: str, queries: Sequence[tuple[Query, str]], mappings: list[model.ValueMapping]) -> stat.Panel:
    """Return a tile with the value at the end of the time range, the trend behind, and a colour for each query.

    Of the queries one at most answers.
    """
    panel = begin(stat.Panel(), text, unit, [query for query, _ in queries])
    latest = common.ReduceDataOptions().calcs(["last"]).values(False).fields("")
    for ref_id, (_, color) in zip(ref_ids(), queries, strict=False):
        panel = panel.override_by_query(ref_id, colored(color))
    return (
        panel.min(0)
        .mappings(mappings)
        .thresholds(thresholds(GREY))
        .reduce_options(latest)
        .text_mode(common_model.BigValueTextMode.VALUE_AND_NAME)
        .color_mode(common_model.BigValueColorMode.BACKGROUND)
        .graph_mode(common_model.BigValueGraphMode.AREA)
        .justify_mode(common_model.BigValueJustifyMode.CENTER)
        .orientation(common_model.VizOrientation.VERTICAL)
        .wide_layout(False)
    )


def graph(text: Text, unit: str, no_value: str, queries: Sequence[Query]) -> timeseries.Panel:
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
        begin(timeseries.Panel(), text, unit, queries)
        .min(0)
        .no_value(no_value)
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
        .line_width(2)
        .show_points(common_model.VisibilityMode.AUTO)
        .point_size(4)
        .span_nulls(False)
        .transformations([_short_models()])
        .legend(legend)
        .tooltip(tooltip)
    )


def _short_models() -> model.DataTransformerConfig:
    """Return what leaves the owner out of a model's name in a legend: "server owner/model" is "server model"."""
    return model.DataTransformerConfig(
        id_val="renameByRegex", options={"regex": r"^(\S+ )(?:\S+/)(\S+.*)$", "renamePattern": "$1$2"}
    )


def listed(panel: timeseries.Panel) -> timeseries.Panel:
    """Show the legend as a list, for many lines whose figures are elsewhere."""
    return panel.legend(
        common.VizLegendOptions()
        .display_mode(common_model.LegendDisplayMode.LIST)
        .placement(common_model.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs([])
    )


def stacked(text: Text, unit: str, no_value: str, queries: Sequence[Query]) -> timeseries.Panel:
    """Return areas that add up."""
    stacking = common.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A")
    return graph(text, unit, no_value, queries).stacking(stacking).fill_opacity(35).line_width(1)


def quantiles(panel: timeseries.Panel) -> timeseries.Panel:
    """Colour the lines of quantiles and mean; dash those of probes, and dot those that are only a bound."""
    for what, color in QUANTILE_COLORS.items():
        panel = panel.override_by_regexp(f"/ {what}/", shaded(color))
    return panel.override_by_regexp("/ probe /", dashed("dash")).override_by_regexp("/[≤≥]/", dashed("dot"))


def heat(text: Text, unit: str, expr: str) -> heatmap.Panel:
    """Return a heatmap of a histogram's buckets over time; `expr` is the growth of each bucket, by le."""
    query = prometheus.Dataquery().ref_id("A").expr(expr).legend_format("{{le}}").range()
    return (
        begin(heatmap.Panel(), text, unit, [Query(expr, "")])
        .targets([query.format(prometheus_model.PromQueryFormat.HEATMAP)])
        .calculate(False)
        .cell_gap(1)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_model.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .exponent(0.5)
            .steps(64)
        )
        .y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(common_model.AxisPlacement.LEFT))
        .show_value(common_model.VisibilityMode.NEVER)
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .no_value("no traffic")
    )


def timeline(text: Text, query: Query, texts: Mapping[str, tuple[str, str]], no_value: str) -> statetimeline.Panel:
    """Return one bar a series whose colour is its state over time."""
    return (
        begin(statetimeline.Panel(), text, "none", [query])
        .transformations([_short_models()])
        .mappings(states(texts))
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
        .thresholds(thresholds(GREY))
        .show_value(common_model.VisibilityMode.NEVER)
        .row_height(0.8)
        .merge_values(True)
        .fill_opacity(80)
        .no_value(no_value)
    )
