"""The targets and the exporter: down, flapping, without LLM metrics, drifting; and the exporter itself."""

from __future__ import annotations

from prometheus.build.rule import Alert, Group
from prometheus.build.settings import Settings

_BY = "target, backend"

_NO_METRICS = "empty|not_metrics|no_llm_metrics|not_llm_server"
"""Outcomes of a target that answers, but not with what was asked for."""


def group(s: Settings) -> Group:
    """Return the rules of targets and exporter."""
    answers = f'increase(vitals_scrape_failures_total{{reason=~"{_NO_METRICS}"}}[{s.no_metrics_window}])'
    exporters = "count by (job) (vitals_build_info)"
    down = f"max by ({_BY}) (vitals_target_up) == 0"
    return Group(
        "targets",
        (),
        (
            Alert(
                "LLMTargetDown",
                "critical",
                s.down_for,
                f"{down}\nunless on (target) (sum by (target) ({answers}) > 0)",
                "{{ .Labels.target }} is down",
                f"{{{{ .Labels.target }}}} ({{{{ .Labels.backend }}}}) could not be read for {s.down_for} (up ="
                " {{ .Value }}); the exporter's page /debug/{{ .Labels.target }} says why.",
                main=True,
            ),
            Alert(
                "LLMTargetWithoutMetrics",
                "warning",
                s.no_metrics_for,
                f"sum by ({_BY}) ({answers}) > 0\nand {down}",
                "{{ .Labels.target }} answers, but has no LLM metrics",
                "{{ .Labels.target }} ({{ .Labels.backend }}) answered"
                f' {{{{ printf "%.0f" .Value }}}} times in {s.no_metrics_window} without the metrics of an LLM server.',
            ),
            Alert(
                "LLMTargetFlapping",
                "warning",
                "0m",
                f"max by ({_BY}) (changes(vitals_target_up[{s.flap_window}])) >= {s.flaps:g}",
                "{{ .Labels.target }} keeps going down and coming back",
                "{{ .Labels.target }} ({{ .Labels.backend }}) changed between up and down {{ .Value }} times within"
                f" {s.flap_window}.",
            ),
            Alert(
                "LLMUnmappedSeries",
                "info",
                s.unmapped_for,
                f"max by ({_BY}) (vitals_unmapped_families) > 0",
                "{{ .Labels.target }} reports metrics that llm-vitals does not know",
                "{{ .Value }} metric families of {{ .Labels.target }} ({{ .Labels.backend }}) are unknown to this"
                " version of llm-vitals, as after an upgrade of the engine; /debug/{{ .Labels.target }} lists them.",
            ),
            Alert(
                "LLMExporterDown",
                "critical",
                s.exporter_for,
                # Seen within the hour and now gone: whatever its job is called, and also if its target was removed, but
                # not if the job has as many as it had, as where a pod has another address after each rollout.
                f'max by (job, instance) (up{{job="{s.job}"}}) == 0'
                "\nor max by (job, instance) (last_over_time(vitals_build_info[1h])"
                " unless on (job, instance) vitals_build_info) * 0"
                f"\nunless on (job) ({exporters} >= max_over_time({exporters}[1h:]))",
                "llm-vitals at {{ .Labels.instance }} is down",
                "Prometheus has had no scrape of llm-vitals at {{ .Labels.instance }} (job {{ .Labels.job }}, up ="
                f" {{{{ .Value }}}}) for {s.exporter_for}: nothing is known of any LLM server.",
                main=True,
            ),
        ),
    )
