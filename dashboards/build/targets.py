"""The dashboard of the exporter and its targets: whether all is read, and how well."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, statetimeline, table, timeseries

from dashboards.build import fleet
from dashboards.build import panels as p
from dashboards.build import queries as q
from dashboards.build.board import board
from dashboards.build.panels import Query, Text
from dashboards.build.tables import Column, background, rows

UP, TOOK, UNMAPPED = "vitals_target_up", "vitals_scrape_duration_seconds", "vitals_unmapped_families"
FAILURES, BAD, DROPPED = (f"vitals_scrape_{what}_total" for what in ("failures", "bad_lines", "dropped_samples"))
NOT_SCRAPED = "Prometheus hears nothing of the exporter"


def exporter_and_targets() -> dashboard.Dashboard:
    """Return the dashboard."""
    return board(
        "llm-vitals-targets",
        "Exporter and targets",
        "Whether every server and the exporter itself are read, and what does not fit.",
        [
            ("", 8, [(_table(), 24)]),
            ("", 8, [(_timeline(), 12), (_failures(), 12)]),
            ("", 8, [(_duration(), 8), (_size(), 8), (_lost(), 8)]),
            ("Names that change over an engine's versions", 8, [(_unmapped(), 8), (_aliases(), 16)]),
            ("The exporter", 8, [(_exporter_up(), 8), (_cpu(), 8), (_memory(), 8)]),
        ],
    )


def _table() -> table.Panel:
    failing = f"max by (target, backend, reason) (increase({q.series(FAILURES)}[{q.RATE}])) > 0"
    reason = f"topk by (target) (1, {failing})\nand on (target) {q.series(UP)} == 0"
    last = f"time() - max by (target, backend) ({q.series('vitals_probe_last_success_timestamp_seconds')})"
    own = f'label_replace(max by (version) (vitals_build_info), "target", "{q.JOB}", "", "")'
    exprs = [
        f'{q.target_state()}\nor label_replace(min(up{{job="{q.JOB}"}}), "target", "{q.JOB}", "", "")',
        f"max by (target, backend, version, url) ({q.series('vitals_target_info')})\nor {own}",
        reason,
        q.largest(TOOK, "target, backend"),
        last,
    ]
    columns = [
        Column("Value #A", "State", 90, more=background(p.states(fleet.STATES))),
        Column("target", "Server", more=(fleet.links(),)),
        Column("reason", "Failing with", 140),
        Column("backend", "Engine", 90),
        Column("version", "Version", 110),
        Column("url", "Read at"),
        Column("Value #D", "Reading took", 120, "s"),
        Column("Value #E", "Last good probe", 130, "s"),
    ]
    return rows(
        Text(
            "Servers and exporter",
            "What the exporter last found at each server, and the exporter itself; what is wrong on top. DOWN: the last"
            " reading failed, with the reason beside it; a click on the server leads to the exporter's page, which says"
            f" more. no data: it was reported in the last {q.RECENT}, and now is not.",
            "all green.",
        ),
        exprs,
        columns,
        sort="State",
    )


def _timeline() -> statetimeline.Panel:
    return p.timeline(
        Text(
            "Up and down",
            "Whether the last reading of each server was good. A gap: the exporter itself was not scraped.",
            "one green bar each.",
        ),
        Query(q.largest(UP, "target"), "{{target}}"),
        {"1": ("up", p.GREEN), "0": ("DOWN", p.RED)},
        NOT_SCRAPED,
    )


def _failures() -> timeseries.Panel:
    return p.stacked(
        Text(
            "Failed readings by reason",
            "How many readings of a server failed between two points of the graph. connect: nothing listens there."
            " timeout: it is too slow, or the network drops. auth: the key is missing or wrong. no_llm_metrics,"
            " not_metrics, empty: something else answers there.",
            "none.",
        ),
        "none",
        "no reading failed",
        [Query(f"sum by (target, reason) (increase({q.series(FAILURES)}[{q.RATE}])) > 0", "{{target}} {{reason}}")],
    ).decimals(1)


def _duration() -> timeseries.Panel:
    return p.graph(
        Text(
            "Time to read a server",
            "How long the last reading of each server took, for those that took longest.",
            "well below the scrape timeout; a vLLM answers within some 10 ms, and later while its API process is busy.",
        ),
        "s",
        NOT_SCRAPED,
        [Query(q.those_with_most(q.largest(TOOK, "target"), TOOK), "{{target}}")],
    )


def _size() -> timeseries.Panel:
    size = "vitals_scrape_size_bytes"
    return p.graph(
        Text(
            "Size of a server's page",
            "Bytes of the last page read, decompressed, for the largest.",
            "tens of kB for a vLLM, growing with models and engines.",
        ),
        "bytes",
        NOT_SCRAPED,
        [Query(q.those_with_most(q.largest(size, "target"), size), "{{target}}")],
    )


def _lost() -> timeseries.Panel:
    return p.graph(
        Text(
            "Lines and samples left out",
            "Lines of the servers' pages that could not be read, and samples withheld because Prometheus would store"
            " nonsense, by reason. The rest of such a page is used.",
            "none.",
        ),
        "none",
        "nothing was left out",
        [
            Query(f"{q.increase(BAD, 'target')} > 0", "{{target}} bad lines"),
            Query(f"sum by (target, reason) (increase({q.series(DROPPED)}[{q.RATE}])) > 0", "{{target}} {{reason}}"),
        ],
    ).decimals(1)


def _unmapped() -> timeseries.Panel:
    return p.graph(
        Text(
            "Unknown families (drift)",
            "Families on a server's page that this version of llm-vitals does not know, as after an upgrade of the"
            " engine; the exporter's page of the server lists them, here are those with most.",
            "0. Above: upgrade llm-vitals, or report the names.",
        ),
        "none",
        "no server with metrics of its own",
        [Query(q.those_with_most(q.largest(UNMAPPED, "target"), UNMAPPED), "{{target}}")],
    ).axis_soft_max(5)


def _aliases() -> table.Panel:
    return rows(
        Text(
            "Names in use",
            "Which of the engine's names feeds a family that has had more than one over the engine's versions.",
            "after an upgrade still a row for each family that was there before.",
        ),
        [f"group by (target, family, source) ({q.series('vitals_family_source_info')})"],
        [Column("target", "Server", 160), Column("family", "Family"), Column("source", "Engine's name")],
        sort="Server",
    )


def _exporter_up() -> statetimeline.Panel:
    return p.timeline(
        Text(
            "Exporter",
            "Whether Prometheus reads the exporter, and whether its last reading of the configuration was good: a"
            " bad one"
            " is refused, and the old one stays.",
            "two green bars.",
        ),
        Query(
            f'label_replace(min(up{{job="{q.JOB}"}}), "what", "scraped", "", "")'
            '\nor label_replace(min(vitals_config_last_reload_successful), "what", "configuration", "", "")',
            "{{what}}",
        ),
        {"1": ("good", p.GREEN), "0": ("bad", p.RED)},
        NOT_SCRAPED,
    )


def _cpu() -> timeseries.Panel:
    return p.graph(
        Text(
            "Exporter's CPU",
            "CPU seconds a second that the exporter takes: 100 % is one core.",
            "a few per cent with a few servers; it grows with servers and scrapes.",
        ),
        "percentunit",
        NOT_SCRAPED,
        [Query(f'sum by (instance) (rate(process_cpu_seconds_total{{job="{q.JOB}"}}[{q.RATE}]))', "{{instance}}")],
    ).fill_opacity(10)


def _memory() -> timeseries.Panel:
    return p.graph(
        Text("Exporter's memory", "Resident memory of the exporter.", "flat, some tens of MB."),
        "bytes",
        NOT_SCRAPED,
        [Query(f'sum by (instance) (process_resident_memory_bytes{{job="{q.JOB}"}})', "{{instance}}")],
    ).fill_opacity(10)
