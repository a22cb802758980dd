"""Tables of what is now: one row for each set of labels that their queries share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, prometheus, table
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus as prometheus_model

from dashboards.build import panels as p


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the field it is made of, its heading, and how it is shown."""

    field: str
    heading: str
    width: int | None = None
    unit: str | None = None
    more: tuple[model.DynamicConfigValue, ...] = ()

    def override(self) -> p.Override:
        """Return how the column differs from the table's defaults."""
        found = [p.set_to("custom.width", self.width)] if self.width else []
        return [*found, *([p.set_to("unit", self.unit)] if self.unit else []), *self.more]


def background(mappings: list[model.ValueMapping]) -> tuple[model.DynamicConfigValue, ...]:
    """Return a cell's colour by its value."""
    return (
        p.set_to("mappings", mappings),
        p.set_to("custom.cellOptions", {"type": "color-background", "mode": "basic"}),
        p.set_to("custom.align", "center"),
    )


def rows(text: p.Text, queries: Sequence[str], columns: Sequence[Column], sort: str) -> table.Panel:
    """Return a table of the values at the end of the time range, merged by the labels that the queries share."""
    targets = [
        prometheus.Dataquery().ref_id(ref_id).expr(expr).format(prometheus_model.PromQueryFormat.TABLE).instant()
        for ref_id, expr in zip(p.ref_ids(), queries, strict=False)
    ]
    shown = [column.field for column in columns]
    values = (
        [f"Value #{ref_id}" for ref_id, _ in zip(p.ref_ids(), queries, strict=False)] if len(queries) > 1 else ["Value"]
    )
    organize = {
        "excludeByName": {name: True for name in ("Time", *values) if name not in shown},
        "indexByName": {name: index for index, name in enumerate(shown)},
        "renameByName": {column.field: column.heading for column in columns},
    }
    panel = (
        p.begin(table.Panel(), text, "none", [p.Query(expr, "") for expr in queries])
        .targets(list(targets))
        .transformations(
            [
                model.DataTransformerConfig(id_val="merge", options={}),
                model.DataTransformerConfig(id_val="organize", options=organize),
            ]
        )
        .no_value("-")
        .thresholds(p.thresholds(p.GREY))
        .sort_by([common.TableSortByFieldState().display_name(sort).desc(False)])
    )
    for column in columns:
        if override := column.override():
            panel = panel.override_by_name(column.heading, override)
    return panel
