"""The recorded and generated pages that other tests read are what vLLM serves."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from exporter.catalogue import FAMILIES

FIXTURES = Path(__file__).parent / "fixtures"
VLLM = FIXTURES / "vllm"
PAGES = sorted(VLLM.glob("*.prom"))
GENERATED = [page for page in PAGES if "real" not in page.stem]
CASES: list[dict[str, Any]] = yaml.safe_load((FIXTURES / "pages" / "cases.yml").read_text(encoding="utf-8"))

ROWS = list(csv.DictReader((VLLM / "vllm_metrics.csv").read_text(encoding="utf-8").splitlines()))
ALL_OF_CACHE_CONFIG = "(every CacheConfig field)"
LABELS_OF_THE_SETTING = {"pid", "WorkerId", "ReplicaId", "SessionName"}


def stem(page: Path) -> str:
    return page.stem


def families(page: Path) -> Iterable[Metric]:
    """Parse a page with the parser of its format."""
    text = page.read_text(encoding="utf-8")
    if text.endswith("# EOF\n"):
        parsed: Iterable[Metric] = parse_openmetrics(text)  # type: ignore[no-untyped-call]  # not annotated there
        return parsed
    return parse_text(text)


def of_vllm(page: Path) -> Iterator[tuple[str, str, list[Sample]]]:
    """Return the vLLM families of a page as the table names them: name, type, samples."""
    for family in families(page):
        name = re.sub(r"^(ray_)?vllm[:_]", "vllm:", family.name)
        if name.startswith("vllm:") and not name.endswith("_created"):
            samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield name + ("_total" if family.type == "counter" else ""), family.type, samples


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def rows(page: Path, name: str) -> list[dict[str, str]]:
    """Return the table's rows for a family in the page's version and engine core."""
    found = re.search(r"\d+\.\d+\.\d+", page.stem)
    version = number(found[0]) if found else (0, 7, 3)
    core = "V0" if "v0" in page.stem else "V1"
    return [
        row | {"version": ".".join(map(str, version))}
        for row in ROWS
        if row["metric"] == name
        and row["notes"].startswith(core)
        and number(row["first_version_seen"]) <= version <= number(row["last_version_seen"])
    ]


def at_the_time(row: dict[str, str], what: str) -> str:
    """Return a column of the row as it was in the row's version: the notes tell of earlier values."""
    changes = re.findall(rf"{what} changed in ([\d.]+) \(was: ([^)]*(?:\([^)]*\))?)\)", row["notes"])
    earlier = [(number(version), was) for version, was in changes if number(row["version"]) < number(version)]
    return min(earlier)[1] if earlier else row[what]


@pytest.mark.parametrize("page", GENERATED, ids=stem)
def test_every_family_is_one_of_its_version_with_its_type_and_labels(page: Path) -> None:
    for name, kind, samples in of_vllm(page):
        candidates = rows(page, name)
        assert len(candidates) == 1, f"{name} has {len(candidates)} rows"
        row = candidates[0]
        assert kind == row["type"], name
        for sample in samples:
            labels = set(sample.labels) - LABELS_OF_THE_SETTING - {"le"}
            if row["labels"].startswith(ALL_OF_CACHE_CONFIG):
                assert {"block_size", "num_gpu_blocks", "gpu_memory_utilization"} <= labels
            else:
                assert labels == set(at_the_time(row, "labels").split()), name


@pytest.mark.parametrize("page", [page for page in GENERATED if "custom-buckets" not in page.stem], ids=stem)
def test_bucket_bounds_are_those_of_the_version(page: Path) -> None:
    for name, kind, samples in of_vllm(page):
        if kind != "histogram":
            continue
        written = at_the_time(rows(page, name)[0], "buckets")
        seen = {float(sample.labels["le"]) for sample in samples if "le" in sample.labels} - {inf}
        if not re.search("series|config", written) and samples:
            assert seen == set(map(float, written.split())), name


@pytest.mark.parametrize("page", PAGES, ids=stem)
def test_histograms_are_consistent(page: Path) -> None:
    for family in families(page):
        if family.type != "histogram":
            continue
        buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
        counts = {}
        for sample in family.samples:
            labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
            if sample.name.endswith("_bucket"):
                buckets[labels].append((float(sample.labels["le"]), sample.value))
            elif sample.name.endswith("_count"):
                counts[labels] = sample.value
        assert counts.keys() == buckets.keys()
        for labels, pairs in buckets.items():
            values = [value for _, value in sorted(pairs)]
            assert values == sorted(values)
            assert values[-1] == counts[labels]


@pytest.mark.parametrize("page", PAGES, ids=stem)
def test_no_series_occurs_twice(page: Path) -> None:
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    series = [line.rpartition(" ")[0] for line in lines]
    assert len(series) == len(set(series))


@pytest.mark.parametrize(
    ("page", "there", "gone"),
    [
        ("0.6.0-v0", "vllm:request_params_best_of", "vllm:request_queue_time_seconds"),
        ("0.6.6-v0", "vllm:time_in_queue_requests", "vllm:request_params_best_of"),
        ("0.7.3-v0", "vllm:tokens_total", "vllm:avg_prompt_throughput_toks_per_s"),
        ("0.7.3-v1", "vllm:gpu_prefix_cache_hits_total", "vllm:num_preemptions_total"),
        ("0.8.5-v0", "vllm:gpu_cache_usage_perc", "vllm:num_requests_swapped"),
        ("0.9.1-v1", "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"),
        ("0.10.2-v1", "vllm:gpu_cache_usage_perc", "vllm:request_time_per_output_token_seconds"),
        ("0.10.2-v1", "vllm:kv_cache_usage_perc", "vllm:engine_sleep_state"),
        ("0.10.2-v1", "vllm:time_per_output_token_seconds", "vllm:mm_cache_hits_total"),
        ("0.11.0-v1", "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        ("0.11.0-v1-show-hidden", "vllm:gpu_prefix_cache_hits_total", "vllm:engine_sleep_state"),
        ("0.11.2", "vllm:time_per_output_token_seconds", "vllm:gpu_cache_usage_perc"),
        ("0.12.0", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        ("0.16.0", "vllm:prompt_tokens_cached_total", "vllm:num_requests_waiting_by_reason"),
        ("0.20.0", "vllm:num_requests_waiting_by_reason", "vllm:prompt_tokens_recomputed_total"),
        ("0.24.0", "vllm:spec_decode_num_drafts_total", "vllm:request_num_preemptions"),
        ("0.32.0-rust-frontend", "vllm:admission_rejections_total", "vllm:gpu_cache_usage_perc"),
        ("ray-0.12.0", "vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total"),
    ],
)
def test_a_rename_shows_on_the_pages_before_and_after_it(page: str, there: str, gone: str) -> None:
    names = {name for name, _, _ in of_vllm(VLLM / f"{page}.prom")}
    assert there in names
    assert gone not in names


def test_the_generator_writes_the_pages_that_are_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fixtures.vllm.make_pages", str(tmp_path)]
    subprocess.run(command, check=True, cwd=Path(__file__).parent.parent)
    written = {page.name: page.read_text(encoding="utf-8") for page in tmp_path.glob("*.prom")}
    assert written == {page.name: page.read_text(encoding="utf-8") for page in GENERATED}


def test_no_two_cases_have_one_name() -> None:
    names = [case["name"] for case in CASES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_a_case_expects_series_of_the_catalogue(case: dict[str, Any]) -> None:
    expect = case["expect"]
    assert case.keys() == {"name", "source", "body", "expect"}
    assert expect.keys() <= {"outcome", "bad_lines", "dropped", "samples"}
    assert expect["outcome"] in {"ok", "empty", "not_metrics", "no_llm_metrics"}
    assert expect["outcome"] == "ok" or expect.keys() == {"outcome"}
    labels_of = {name: family.labels for family in FAMILIES for name in family.sample_names}
    text = "".join(f"{series} {value}\n" for series, value in expect.get("samples", {}).items())
    samples = [sample for family in parse_text(text) for sample in family.samples]
    assert len(samples) == len(expect.get("samples", {}))
    for sample in samples:
        further = ("le",) if sample.name.endswith("_bucket") else ()
        assert tuple(sample.labels) == labels_of[sample.name] + further
