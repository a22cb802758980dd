"""The table of all servers: one row for each, and for each model where a server has several."""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.builders import table as builder
from grafana_foundation_sdk.models import dashboard as model

from dashboards.build import panels as p
from dashboards.build import queries as q
from dashboards.build.board import choices
from dashboards.build.tables import Column, background, rows
from dashboards.build.tiles import bound_texts
from exporter.physics.causes import causes
from prometheus.build.promql import LABELS

STATES = {
    "0": ("DOWN", p.RED),
    f"{q.GONE}": ("no data", p.ORANGE),
    "1": ("up", p.GREEN),
    "2": ("asleep", p.BLUE),
}

COLORS = {"healthy": p.GREEN, "idle": p.GREY, "unknown": p.GREY, "stuck": p.RED, "kv_exhausted": p.RED}
"""Colours of the verdict's causes; all others are orange."""


def verdicts() -> list[model.ValueMapping]:
    """Return the causes in words, as everywhere in llm-vitals, with their colours."""
    return p.states({name: (cause.title, COLORS.get(name, p.ORANGE)) for name, cause in causes().items()})


def links() -> model.DynamicConfigValue:
    """Return the links from a server's name to its dashboard and to its page in the exporter."""
    kept = "&".join(f"${{{name}:queryparam}}" for name in choices())
    phases = f"/d/llm-vitals-phases?${{__url_time_range}}&{kept}&var-target=${{__value.raw}}"
    return p.set_to(
        "links",
        [
            {"title": "Prefill and decode of this server", "url": phases},
            {"title": "What the exporter knows of it", "url": "${exporter}/debug/${__value.raw}", "targetBlank": True},
        ],
    )


def _no_traffic(texts: Mapping[str, tuple[str, str]]) -> tuple[model.DynamicConfigValue, ...]:
    """Return the words for NaN, and for some values."""
    return (p.set_to("mappings", p.states(texts, nan="no traffic")),)


def _headline(short: str) -> tuple[Column, ...]:
    value, by = {"ttft": ("B", "TTFT p99"), "itl": ("C", "ITL p99")}[short]
    return (
        Column(f"Value #{value}", by, 90, "s", _no_traffic(bound_texts(short))),
        Column(f"{short}_by", f"{by.split()[0]} by", 80),
    )


def _latency(short: str) -> str:
    """Return the p99 with a label that names its source; NaN for a model without, on a server that is up."""
    name = f"{short}_by"
    value = f'label_join({q.series(q.headline(short, "p99_bounded"))}, "{name}", " ", "source", "bound")'
    shown = q.of_those_up(f"max by ({LABELS}, {name}) ({value})")
    return f"{shown}\nor on ({LABELS}) ({q.of_those_up(q.models())}) * NaN"


def _tokens() -> str:
    """Return tokens per second; NaN for a model without, on a server that is up."""
    rate = q.largest("target_model:vitals_generation_tokens:rate5m")
    return f"{q.of_those_up(f'{rate} > 0')}\nor ({q.of_those_up(rate)}) * NaN"


def table() -> builder.Panel:
    """Return the table."""
    known = q.models()
    state = q.target_state()
    exprs = [
        f"{known}\n* on (target, backend) group_left () ({state})\nor on (target, backend) ({state})",
        _latency("ttft"),
        _latency("itl"),
        q.of_those_up(q.summed("vitals_requests_running")),
        q.of_those_up(q.summed("vitals_requests_waiting")),
        q.of_those_up(q.fullest()),
        _tokens(),
        q.of_those_up(f"max by ({LABELS}, cause) ({q.series('vitals_verdict')}) == 1"),
    ]
    gauge = p.set_to("custom.cellOptions", {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"})
    scheme = p.set_to("color", {"mode": "continuous-GrYlRd"})
    columns = [
        Column("Value #A", "State", 80, more=background(p.states(STATES))),
        Column("target", "Server", 130, more=(links(),)),
        Column("backend", "Engine", 70),
        Column("model", "Model"),
        *_headline("ttft"),
        *_headline("itl"),
        Column("Value #D", "Running", 75),
        Column("Value #E", "Waiting", 75),
        Column("Value #F", "KV cache", 110, "percentunit", (gauge, scheme, p.set_to("min", 0), p.set_to("max", 1))),
        Column("Value #G", "Tokens/s", 90, "short", _no_traffic({})),
        Column("cause", "Verdict", 210, more=background(verdicts())),
    ]
    return rows(
        p.Text(
            "Servers",
            "One row a server and model, what is wrong on top. p99 over 5 minutes, from the users' traffic where there"
            " is any, else from our probes: the column beside it says which, and ≤ or ≥ where only a bucket's bound is"
            " known. no traffic: nothing was asked in that time. -: the server does not tell. The verdict names the one"
            " thing that holds the server back; what to change is in docs/runbooks.md. A click on a server leads to its"
            f" own board. no data: it was reported in the last {q.RECENT}, and now is not.",
            "every state green, and the verdict `all is well` or `nobody is asking`.",
        ),
        exprs,
        columns,
        sort="State",
    )
