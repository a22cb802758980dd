"""The simulated vLLM's /metrics against real pages and older versions: families, labels, types, buckets."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from exporter.simulator import vllm_families
from exporter.simulator.engine import Limits
from exporter.simulator.exposition import Metric
from tests.simulated import VLLM, serving, vllm

Shape = dict[tuple[str, str], set[tuple[tuple[str, str], ...]]]

COMPLETION = {"model": "tiny", "prompt": "word " * 14, "max_tokens": 32, "ignore_eos": True}
VERSIONS = (
    "0.6.0-v0", "0.6.6-v0", "0.7.3-v0", "0.7.3-v1", "0.8.2-v1", "0.8.3-v1", "0.8.5-v0", "0.8.5-v1", "0.9.1-v1",
    "0.10.2-v0", "0.10.2-v1", "0.11.0-v1", "0.11.2", "0.12.0", "0.15.0", "0.16.0", "0.20.0", "0.24.0", "0.28.0",
)  # fmt: skip


def shape(page: str, labels_of_config: bool = True) -> Shape:
    """Return, by sample name and type, every series' labels; values that differ from server to server are blanked."""
    found: Shape = defaultdict(set)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = dict(sample.labels) | ({"model_name": ""} if "model_name" in sample.labels else {})
            if sample.name == "vllm:cache_config_info":
                labels = dict.fromkeys(labels, "") if labels_of_config else {}
            if sample.name == "python_info":
                labels = dict.fromkeys(labels, "")
            found[sample.name, family.type].add(tuple(sorted(labels.items())))
    return found


def differences(ours: Shape, theirs: Shape) -> list[str]:
    return [
        f"{name}: ours {sorted(ours[name] - theirs[name])[:3]}, theirs {sorted(theirs[name] - ours[name])[:3]}"
        for name in sorted({*ours, *theirs})
        if ours[name] != theirs[name]
    ]


def real(fixtures: Path, name: str) -> str:
    return (fixtures / "vllm" / f"0.32.0-real-{name}.prom").read_text()


async def test_a_fresh_servers_page_has_the_real_ones_families_labels_types_and_buckets(fixtures: Path) -> None:
    async with serving(vllm()) as (_, client):
        page = (await client.get("/metrics")).body.decode()
    assert differences(shape(page), shape(real(fixtures, "fresh-no-requests"))) == []


@pytest.mark.parametrize("name", ["idle-after-3-requests", "after-bench", "kv-exhausted", "after-preemptions-idle"])
async def test_after_the_same_kind_of_load_the_page_still_equals_the_real_ones(fixtures: Path, name: str) -> None:
    theirs = real(fixtures, name)
    async with serving(vllm()) as (_, client):
        for _ in range(3):
            await client.post("/v1/completions", COMPLETION)
        if "/v1/models" in theirs:
            await client.get("/v1/models")
        if "/tokenize" in theirs:
            await client.post("/tokenize", {"prompt": "word"})
        page = (await client.get("/metrics")).body.decode()
    assert differences(shape(page), shape(theirs)) == []


async def test_three_requests_of_14_and_32_tokens_give_the_real_ones_counts(fixtures: Path) -> None:
    theirs, counts = real(fixtures, "idle-after-3-requests"), {}
    async with serving(vllm()) as (_, client):
        for index in range(3):
            await client.post("/v1/completions", COMPLETION | {"prompt": list(range(100 * index, 100 * index + 14))})
        ours = (await client.get("/metrics")).body.decode()
    for which, page in (("ours", ours), ("theirs", theirs)):
        counts[which] = {
            line.partition("{")[0]: line.rpartition(" ")[2]
            for line in page.splitlines()
            if line.startswith("vllm:") and ("_total{" in line or "_count{" in line or "tokens_sum" in line)
            and "by_source" not in line and "estimated" not in line and "_success" not in line
        }  # fmt: skip
    assert counts["ours"] == counts["theirs"]


async def test_with_speculative_decoding_the_page_has_its_families(fixtures: Path) -> None:
    settings = replace(VLLM, limits=Limits(num_speculative_tokens=3))
    async with serving(vllm(settings)) as (_, client):
        await client.post("/v1/completions", COMPLETION)
        ours = shape((await client.get("/metrics")).body.decode())
    # The recorded server had two engines and two API servers: no `_created`, nothing of the process, engines 0 and 1.
    theirs = shape(real(fixtures, "dp2-two-api-servers-spec-decode"))
    first: Shape = defaultdict(set)
    for name, series in theirs.items():
        first[name] = {labels for labels in series if ("engine", "1") not in labels}
    for name in [
        name for name in ours if name[0].endswith("_created") or name[0].startswith(("python_", "process_", "http_"))
    ]:
        del ours[name]
    for name in [name for name in first if name[0].startswith("http_")]:
        del first[name]
    assert differences(ours, first) == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_older_versions_page_has_that_versions_families_labels_types_and_buckets(
    fixtures: Path, version: str
) -> None:
    path = fixtures / "vllm" / f"{version}.prom"
    if not path.exists():
        pytest.skip(f"there is no page of {version}")
    drafts = 3 if "spec_decode" in path.read_text() else 0
    settings = replace(VLLM, version=version.removesuffix("-v1"), limits=Limits(num_speculative_tokens=drafts))
    async with serving(vllm(settings)) as (_, client):
        await client.post("/v1/completions", COMPLETION)
        page = (await client.get("/metrics")).body.decode()
    ours, theirs = (
        {k: v for k, v in shape(text, False).items() if k[0].startswith("vllm:")} for text in (page, path.read_text())
    )
    assert differences(defaultdict(set, ours), defaultdict(set, theirs)) == []


async def test_the_older_core_names_its_families_without_samples_until_the_first_request() -> None:
    async with serving(vllm(replace(VLLM, version="0.8.5-v0"))) as (_, client):
        before = (await client.get("/metrics")).body.decode()
        await client.post("/v1/completions", COMPLETION)
        after = (await client.get("/metrics")).body.decode()
    assert "# TYPE vllm:num_requests_running gauge" in before
    assert 'vllm:num_requests_running{model_name="tiny"}' not in before
    assert 'vllm:num_requests_running{model_name="tiny"} 0.0' in after


@pytest.mark.parametrize(("version", "queried", "hit"), [("0.8.5", 7, 7), ("0.9.0", 1000, 896), ("0.9.2", 1000, 896)])
async def test_the_prefix_cache_counted_blocks_up_to_0_8_5_and_tokens_since(
    version: str, queried: int, hit: int
) -> None:
    async with serving(vllm(replace(VLLM, version=version))) as (_, client):
        for _ in range(2):
            await client.post("/v1/completions", COMPLETION | {"prompt": list(range(1000))})
        page = await client.metrics()
    assert page["vllm:gpu_prefix_cache_queries_total"] == 2 * queried
    assert page["vllm:gpu_prefix_cache_hits_total"] == hit
    assert page.get("vllm:prefix_cache_hits_total") == (hit if version == "0.9.2" else None)


def test_a_page_is_written_as_the_library_writes_it() -> None:
    registry, buckets = CollectorRegistry(), (0.1, 1, 10_000_000)
    counter, gauge, histogram, summary = (
        Counter("a:count", "A.", ["b", "a"], registry=registry),
        Gauge("a:gauge", "A.", ["b", "a"], registry=registry),
        Histogram("a:long_total", "A.", ["b", "a"], registry=registry, buckets=buckets),
        Summary("a:short", "A.", ["b", "a"], registry=registry),
    )
    ours = [
        Metric("a:count", "counter", "A.", None),
        Metric("a:gauge", "gauge", "A.", None),
        Metric("a:long_total", "histogram", "A.", None, buckets),
        Metric("a:short", "summary", "A.", None),
    ]
    for value in (0.1, 0.1000001, 3.0, 12_345_678.25, 1e-7):
        labels = {"b": 'x"\\y\n', "a": str(value > 1)}
        counter.labels(**labels).inc(value)
        gauge.labels(**labels).set(value)
        histogram.labels(**labels).observe(value)
        summary.labels(**labels).observe(value)
        children = [metric.labels(labels) for metric in ours]
        children[0].add(value)
        children[1].set(value)
        children[2].observe(value)
        children[3].observe(value)
    # Whether the library writes `_created` is set for the whole process, so those are compared with real pages only.
    expected = [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]
    assert "".join(metric.render() for metric in ours).splitlines() == expected


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a version such as 0\.32\.0, got 'latest'"):
        vllm_families.parse("latest")
