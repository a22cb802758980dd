from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from exporter.catalogue import BY_NAME, FAMILIES, Kind
from exporter.probe.instruments import BUCKETS, Instruments
from exporter.probe.result import Comparison, ProbeResult, Reason, compare

GOOD = ProbeResult(
    at=1234.0,
    duration=1.0,
    warmup=False,
    ttft=0.5,
    gaps=(0.02, 0.03),
    tpot=0.025,
    connect=0.1,
    phases={"connect": 0.1, "queue": 0.2, "load": 0.0, "prefill": 0.2, "decode": 0.05},
    load=0.001,
    prefill_rate=600.0,
    decode_rate=40.0,
)
LABELS = {"target": "box", "backend": "ollama", "model": "m"}


class Page:
    """What a registry shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.instruments = Instruments(self.registry)

    def observe(self, result: ProbeResult, prompt: str = "small") -> None:
        self.instruments.observe("box", "ollama", "m", prompt, result)

    def compare(self, comparison: Comparison) -> None:
        self.instruments.compare("box", "ollama", "m", comparison)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"vitals_{name}", {**LABELS, **labels})

    def fed(self) -> set[str]:
        """Return the histograms that hold a value."""
        samples = [sample for family in self.registry.collect() for sample in family.samples]
        return {
            sample.name.removesuffix("_count") for sample in samples if sample.name.endswith("_count") and sample.value
        }


def test_the_instruments_are_the_measured_rows_of_the_catalogue_word_for_word() -> None:
    page = Page()
    page.observe(replace(GOOD, answer_ttft=0.6))
    page.compare(Comparison(0.001, 0.05, 0.2))
    page.instruments.spend("box", "ollama", 0.01)
    text = generate_latest(page.registry).decode()
    for family in page.registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        row = BY_NAME[name]
        assert row.kind is Kind.MEASURED
        assert (family.type, family.documentation) == (row.type, row.help)
        for sample in family.samples:
            assert sample.name in row.sample_names
            assert set(sample.labels) - {"le"} == set(row.all_labels)
    fed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    # The one other measured figure is worked out from a probe and what else the server did meanwhile.
    worked_out = {"vitals_probe_alone_decode_tokens_per_second"}
    assert {row.name for row in FAMILIES if row.kind is Kind.MEASURED} == fed | worked_out


def test_buckets_grow_by_a_third_from_a_millisecond_to_minutes() -> None:
    assert len(BUCKETS) == 43
    assert max(upper / lower for lower, upper in pairwise(BUCKETS)) <= 1.35
    assert BUCKETS[0] == 0.001
    assert BUCKETS[-1] > 120
    assert {0.001, 0.01, 0.1, 1.0, 10.0, 100.0} < set(BUCKETS)


def test_a_good_probe_feeds_the_latencies_and_sets_the_gauges() -> None:
    page = Page()
    page.observe(GOOD)
    assert page.value("probes_total") == 1
    assert page.value("probe_time_to_first_token_seconds_sum", prompt="small") == 0.5
    assert page.value("probe_inter_token_latency_seconds_count") == 2
    assert page.value("probe_inter_token_latency_seconds_sum") == pytest.approx(0.05)
    assert page.value("probe_time_per_output_token_seconds_sum") == 0.025
    assert page.value("probe_phase_seconds", prompt="small", phase="queue") == 0.2
    assert page.value("probe_prefill_tokens_per_second", prompt="small") == 600.0
    assert page.value("probe_decode_tokens_per_second", prompt="small") == 40.0
    assert page.value("probe_last_success_timestamp_seconds") == 1234.0
    assert page.value("probe_cold_total") == 0
    assert page.value("probe_load_seconds_count") == 0


def test_a_failed_probe_adds_to_no_latency() -> None:
    page = Page()
    page.observe(ProbeResult(1.0, 1.0, False, Reason.TRUNCATED_STREAM, "cut"))
    assert page.value("probe_failures_total", reason="truncated_stream") == 1
    assert page.value("probes_total") == 1
    assert not page.fed()
    assert page.value("probe_last_success_timestamp_seconds") is None


def test_a_first_token_that_never_came_counts_in_ttft_with_the_time_waited() -> None:
    page = Page()
    page.observe(ProbeResult(1.0, 31.0, False, Reason.TIMEOUT_FIRST_TOKEN, "no token", waited=30.0))
    assert page.value("probe_time_to_first_token_seconds_sum", prompt="small") == 30.0
    assert page.value("probe_failures_total", reason="timeout_first_token") == 1


@pytest.mark.parametrize("waited", [None, 30.0])
def test_a_warm_up_adds_to_no_latency_but_is_counted(waited: float | None) -> None:
    page = Page()
    reason = None if waited is None else Reason.TIMEOUT_FIRST_TOKEN
    page.observe(ProbeResult(1.0, 1.0, True, reason, ttft=0.5, gaps=(0.1,), tpot=0.1, waited=waited))
    assert (page.value("probes_total"), page.value("probe_cold_total")) == (1, 1)
    assert not page.fed()


def test_a_reload_counts_as_cold_and_feeds_only_the_load_time() -> None:
    page = Page()
    page.observe(ProbeResult(1.0, 4.0, False, ttft=3.0, gaps=(0.1,), load=2.5))
    assert page.value("probe_cold_total") == 1
    assert page.value("probe_load_seconds_sum") == 2.5
    assert page.fed() == {"vitals_probe_load_seconds"}


def test_all_reasons_and_loads_start_at_zero() -> None:
    page = Page()
    page.instruments.prepare("box", "ollama", "m")
    assert {page.value("probe_failures_total", reason=reason) for reason in Reason} == {0.0}
    assert page.value("probes_total") == 0
    assert page.value("probe_load_seconds_count") == 0


def test_a_server_that_tells_no_loads_shows_none_rather_than_zero() -> None:
    page = Page()
    page.instruments.prepare("box", "vllm", "m")
    assert page.value("probe_load_seconds_count", backend="vllm") is None


def test_what_the_next_probe_cannot_measure_does_not_stay_as_it_was() -> None:
    page = Page()
    page.observe(GOOD)
    page.observe(ProbeResult(1.0, 1.0, False, ttft=0.5))
    assert page.value("probe_decode_tokens_per_second", prompt="small") is None
    assert page.value("probe_phase_seconds", prompt="small", phase="queue") is None


def test_dropping_a_models_gauges_leaves_its_history_and_other_models() -> None:
    page = Page()
    page.observe(GOOD)
    page.instruments.observe("box", "ollama", "other", "small", GOOD)
    page.instruments.drop_gauges("box", "m")
    assert page.value("probe_phase_seconds", prompt="small", phase="decode") is None
    assert page.value("probe_prefill_tokens_per_second", prompt="small") is None
    assert page.value("probe_decode_tokens_per_second", prompt="small") is None
    assert page.value("probe_time_to_first_token_seconds_count", prompt="small") == 1
    assert page.value("probes_total") == 1
    assert page.value("probe_decode_tokens_per_second", prompt="small", model="other") == 40.0


def test_forgetting_a_target_leaves_nothing_of_it_and_all_of_the_others() -> None:
    page = Page()
    page.observe(GOOD)
    page.observe(ProbeResult(1.0, 4.0, False, load=2.5))
    page.compare(Comparison(0.001, 0.05, 0.2))
    page.instruments.spend("box", "ollama", 0.01)
    page.instruments.observe("other", "ollama", "m", "small", GOOD)
    page.instruments.forget("box")
    assert {sample.labels["target"] for family in page.registry.collect() for sample in family.samples} == {"other"}


def test_prompts_of_different_kinds_have_gauges_of_their_own() -> None:
    page = Page()
    page.observe(GOOD, "small")
    page.observe(replace(GOOD, prefill_rate=900.0), "large")
    assert page.value("probe_prefill_tokens_per_second", prompt="small") == 600.0
    assert page.value("probe_prefill_tokens_per_second", prompt="large") == 900.0


def test_the_first_token_of_the_answer_and_the_connection_are_figures_of_their_own() -> None:
    page = Page()
    page.observe(replace(GOOD, answer_ttft=0.9))
    assert page.value("probe_time_to_first_token_seconds_sum", prompt="small") == 0.5
    assert page.value("probe_time_to_first_answer_token_seconds_sum", prompt="small") == 0.9
    assert page.value("probe_connect_seconds") == 0.1


def test_a_coalesced_answer_is_counted() -> None:
    page = Page()
    page.observe(GOOD)
    page.observe(replace(GOOD, coalesced=True, gaps=(), tpot=None))
    assert page.value("probe_coalesced_total") == 1
    assert page.value("probe_inter_token_latency_seconds_count") == 2


def test_the_line_through_two_sizes_gives_seconds_per_token_and_a_fixed_cost() -> None:
    small, large = replace(GOOD, ttft=0.3, prompt_tokens=200), replace(GOOD, ttft=2.1, prompt_tokens=2000)
    result = compare({"small": small, "large": large})
    assert result.seconds_per_token == pytest.approx(0.001)
    assert result.fixed == pytest.approx(0.1)
    assert result.saving is None


def test_the_line_goes_by_uncached_tokens() -> None:
    small = replace(GOOD, ttft=0.3, prompt_tokens=210, cached_tokens=10)
    large = replace(GOOD, ttft=2.1, prompt_tokens=2010, cached_tokens=10)
    assert compare({"small": small, "large": large}).fixed == pytest.approx(0.1)


@pytest.mark.parametrize(("ttft", "tokens"), [(0.3, 2000), (0.2, 2000), (2.1, None), (2.1, 200)])
def test_a_line_that_does_not_rise_or_without_counts_is_no_result(ttft: float, tokens: int | None) -> None:
    small, large = replace(GOOD, ttft=0.3, prompt_tokens=200), replace(GOOD, ttft=ttft, prompt_tokens=tokens)
    assert compare({"small": small, "large": large}) == Comparison()


def test_a_repeated_prompt_shows_what_the_cache_saved() -> None:
    large, cached = replace(GOOD, ttft=2.1), replace(GOOD, ttft=0.1)
    assert compare({"large": large, "cached": cached}).saving == pytest.approx(2.0)
    assert compare({"cached": cached}) == Comparison()


def test_a_comparison_that_is_not_there_any_more_goes() -> None:
    page = Page()
    page.compare(Comparison(0.001, 0.1, 2.0))
    assert page.value("probe_prefill_seconds_per_token") == 0.001
    assert page.value("probe_prefill_fixed_seconds") == 0.1
    assert page.value("probe_cached_saving_seconds") == 2.0
    page.compare(Comparison())
    assert page.value("probe_prefill_seconds_per_token") is None
    assert page.value("probe_cached_saving_seconds") is None
