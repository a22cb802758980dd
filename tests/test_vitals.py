"""The five numbers of a target, from histograms whose answer is computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import pytest

from exporter.backends.vllm import VLLM
from exporter.model import Sample
from exporter.relay.normalize import normalize
from exporter.vitals import ITL, SPACING, TTFT, WINDOW, History, Latency, Quantile, quantile
from tests.peers import TWO_ENGINES

INF = math.inf
BUCKETS = {0.1: 10.0, 0.2: 20.0, 0.4: 60.0, 0.8: 100.0, INF: 100.0}


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        # Prometheus's histogram_quantile: lower + (upper - lower) * (rank - count below) / count within.
        (0.15, 0.1 + 0.1 * (15 - 10) / 10),
        (0.5, 0.2 + 0.2 * (50 - 20) / 40),
        (0.99, 0.4 + 0.4 * (99 - 60) / 40),
        # A rank that is just a bucket's count belongs to that bucket, at its upper bound.
        (0.2, 0.2),
        (0.6, 0.4),
        (1.0, 0.8),
    ],
)
def test_a_quantile_within_a_bucket_is_interpolated_as_prometheus_does(q: float, expected: float) -> None:
    found = quantile(q, BUCKETS)
    assert found is not None
    assert found.side == ""
    assert found.value == pytest.approx(expected)


def test_a_quantile_skips_buckets_in_which_nothing_was_observed() -> None:
    found = quantile(0.5, {0.1: 1.0, 0.2: 1.0, 0.4: 1.0, 0.8: 3.0, INF: 3.0})
    assert found == near(0.4 + 0.4 * 0.5 / 2)


@pytest.mark.parametrize(
    ("q", "buckets", "expected", "shown"),
    [
        (0.1, BUCKETS, Quantile(0.1, "<"), "< 100 ms"),
        (0.5, {0.01: 5.0, 2.5: 5.0, INF: 5.0}, Quantile(0.01, "<"), "< 10 ms"),
        (0.99, {0.01: 0.0, 2.5: 5.0, INF: 10.0}, Quantile(2.5, ">"), "> 2.5 s"),
    ],
)
def test_a_quantile_beyond_the_bounds_is_not_invented(
    q: float, buckets: Mapping[float, float], expected: Quantile, shown: str
) -> None:
    assert quantile(q, buckets) == expected
    assert str(expected) == shown


@pytest.mark.parametrize("buckets", [{}, {INF: 0.0}, {0.1: 0.0, INF: 0.0}, {INF: 5.0}])
def test_without_observations_or_bounds_there_is_no_quantile(buckets: Mapping[float, float]) -> None:
    assert quantile(0.5, buckets) is None


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0042, "4.2 ms"), (0.12345, "123 ms"), (1.0, "1 s"), (12.345, "12.3 s"), (0.0, "0 ms")]
)
def test_seconds_are_shown_in_the_unit_that_reads_best(seconds: float, shown: str) -> None:
    assert str(Quantile(seconds)) == shown


def near(value: float, side: str = "") -> Quantile:
    """Return the quantile but for rounding."""
    return Quantile(cast("float", pytest.approx(value)), side)


def histogram(buckets: Mapping[float, float], total: float, family: str = ITL, engine: str = "0") -> list[Sample]:
    labels = (("model", "m"), ("engine", engine))
    return [
        *(
            Sample(family, f"{family}_bucket", (*labels, ("le", "+Inf" if bound == INF else repr(bound))), repr(count))
            for bound, count in buckets.items()
        ),
        Sample(family, f"{family}_sum", labels, repr(total)),
        Sample(family, f"{family}_count", labels, repr(buckets[INF])),
    ]


def page(low: float, high: float, total: float, **more: str) -> list[Sample]:
    """Return a histogram with `low` observations up to 100 ms and `high` more up to 200 ms."""
    return histogram({0.1: low, 0.2: low + high, INF: low + high}, total, **more)


def test_a_latency_is_that_of_what_was_added_since_the_oldest_point() -> None:
    history = History()
    history.add(0.0, page(1000, 0, 10.0))
    history.add(20.0, page(1000, 5, 10.75))
    latency = history.vitals(30.0, page(1000, 10, 11.5)).itl
    assert latency is not None
    assert latency == Latency(near(0.15), near(0.199), latency.mean, 10.0, 30.0)
    assert latency.mean == pytest.approx(0.15)


def test_the_first_reading_has_no_latency_yet() -> None:
    history = History()
    history.add(0.0, page(5, 5, 1.0))
    assert history.vitals(0.0, page(5, 5, 1.0)).itl is None


def test_an_idle_server_has_no_latency() -> None:
    history = History()
    history.add(0.0, page(5, 5, 1.0))
    assert history.vitals(20.0, page(5, 5, 1.0)).itl is None


def test_a_restart_gives_no_latency_at_once_and_the_new_one_s_after_the_next_point() -> None:
    history = History()
    history.add(0.0, page(500, 500, 100.0))
    assert history.vitals(5.0, page(3, 1, 0.3)).itl is None
    assert history.due(SPACING)
    history.add(SPACING, page(4, 1, 0.4))
    latency = history.vitals(SPACING + 5, page(4, 11, 1.9)).itl
    assert latency is not None
    assert (latency.count, latency.window) == (10.0, 5.0)
    assert latency.mean == pytest.approx(0.15)


def test_a_restart_that_a_greater_sum_hides_shows_in_the_buckets() -> None:
    history = History()
    history.add(0.0, page(500, 0, 1.0))
    assert history.vitals(5.0, page(0, 600, 90.0)).itl is None


def test_other_bounds_after_an_upgrade_give_no_latency() -> None:
    history = History()
    history.add(0.0, page(5, 5, 1.0))
    assert history.vitals(5.0, histogram({0.3: 20.0, INF: 20.0}, 5.0)).itl is None


def test_points_are_spaced_and_forgotten_so_that_now_is_minutes() -> None:
    history = History()
    assert history.due(0.0)
    times = [step * SPACING for step in range(100)]
    for count, at in enumerate(times):
        assert history.due(at)
        history.add(at, page(0, count, 0.15 * count))
        assert not history.due(at + SPACING - 1)
    latency = history.vitals(times[-1], page(0, 99, 0.15 * 99)).itl
    assert latency is not None
    assert WINDOW - SPACING <= latency.window <= WINDOW + SPACING
    assert latency.count == latency.window / SPACING


def test_models_and_engines_are_taken_together() -> None:
    history = History()
    nothing = page(0, 0, 0.0)
    history.add(0.0, [*nothing, *page(0, 0, 0.0, engine="1")])
    latency = history.vitals(10.0, [*page(10, 0, 0.5), *page(0, 90, 13.5, engine="1")]).itl
    assert latency is not None
    assert latency.count == 100.0
    assert latency.mean == pytest.approx(0.14)
    assert latency.p50 == near(0.1 + 0.1 * 40 / 90)


def test_only_bounds_that_all_of_them_have_are_added_up() -> None:
    history = History()
    other = {0.1: 0.0, 0.15: 0.0, 0.2: 0.0, INF: 0.0}
    history.add(0.0, [*page(0, 0, 0.0), *histogram(other, 0.0, engine="1")])
    other = {0.1: 10.0, 0.15: 10.0, 0.2: 10.0, INF: 10.0}
    latency = history.vitals(10.0, [*page(0, 10, 1.5), *histogram(other, 0.5, engine="1")]).itl
    assert latency is not None
    assert latency.p99 == near(0.1 + 0.1 * 9.8 / 10)


def gauge(name: str, *values: float) -> list[Sample]:
    family = f"vitals_{name}"
    return [Sample(family, family, (("engine", str(rank)),), repr(value)) for rank, value in enumerate(values)]


def test_requests_are_added_up_and_the_fullest_cache_is_shown() -> None:
    samples = [
        *gauge("requests_running", 3, 4), *gauge("requests_waiting", 0, 2), *gauge("kv_cache_usage_ratio", 0.2, 0.9),
    ]  # fmt: skip
    vitals = History().vitals(0.0, samples)
    assert (vitals.running, vitals.waiting, vitals.kv_usage) == (7.0, 2.0, 0.9)


def test_what_is_not_reported_is_absent_not_zero() -> None:
    vitals = History().vitals(0.0, [])
    assert (vitals.ttft, vitals.itl, vitals.running, vitals.waiting, vitals.kv_usage) == (None,) * 5
    assert not vitals.asleep


@pytest.mark.parametrize(("engines", "asleep"), [((1.0, 1.0), True), ((1.0, 0.0), False), ((0.0,), False)])
def test_a_server_sleeps_when_all_its_engines_do(engines: tuple[float, ...], asleep: bool) -> None:
    assert History().vitals(0.0, gauge("engine_asleep", *engines)).asleep is asleep


def test_a_real_page_of_two_engines_gives_its_own_totals() -> None:
    read = normalize(TWO_ENGINES, VLLM, "t").readings
    assert read is not None
    samples = read.samples()
    history = History()
    history.add(0.0, [Sample(s.family, s.name, s.labels, "0") for s in samples])
    vitals = history.vitals(60.0, samples)
    for latency, family in ((vitals.ttft, TTFT), (vitals.itl, ITL)):
        assert latency is not None
        count = sum(s.value for s in samples if s.name == f"{family}_count")
        total = sum(s.value for s in samples if s.name == f"{family}_sum")
        assert latency.count == count
        assert latency.mean == pytest.approx(total / count)
        assert latency.p50.value <= latency.p99.value
