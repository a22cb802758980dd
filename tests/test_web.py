"""What the exporter's own HTTP side answers: formats, filters, health, and the pages for a person."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from exporter.catalogue import BY_NAME
from exporter.config import DEFAULT_LISTEN, Config
from exporter.web import budget, prefers_openmetrics
from tests.peers import PAGE, PREEMPTED, TWO_ENGINES, Engine, free_port, serving, target
from tests.running import Running, running, samples, watching

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# What Prometheus 3 sends.
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.fixture
async def exporter() -> AsyncIterator[Running]:
    """An exporter of three vLLMs, the third of two engines."""
    async with watching(PAGE, PREEMPTED, TWO_ENGINES) as exporter:
        yield exporter


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("10", 9.5), ("2.5", 2.0), ("1", 0.8), ("0.5", 0.4), ("0.001", 0.0008), ("1e9", 1e9 - 0.5),
        ("", 9.5), ("garbage", 9.5), ("0", 9.5), ("-3", 9.5), ("nan", 9.5), ("inf", 9.5), ("1e999", 9.5),
    ],
)  # fmt: skip
def test_the_time_to_read_is_the_scrapers_less_a_margin_or_prometheuss_default(header: str, expected: float) -> None:
    assert budget(header) == pytest.approx(expected)


@pytest.mark.parametrize("header", ["garbage", "0", "-1", "nan", "1e9", "0.001"])
async def test_a_scrape_with_an_odd_timeout_is_answered(exporter: Running, header: str) -> None:
    assert (await exporter.series("vitals_target_up", within=header)).keys() == {"t0", "t1", "t2"}


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; Version=1.0.0", True),
        ("text/plain;q=0.5,application/openmetrics-text;version=1.0.0;q=0.5", True),
        ("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.1", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-textual", False),
        ("text/html,*/*", False),
        ("*/*", False),
        ("", False),
        (";;,q=,,", False),
    ],
)
def test_openmetrics_is_for_who_prefers_it(accept: str, expected: bool) -> None:
    assert prefers_openmetrics(accept) is expected


async def test_text_is_what_everyone_else_gets(exporter: Running) -> None:
    status, headers, text = await exporter.get("/metrics", Accept="*/*")
    assert (status, headers["Content-Type"]) == (200, TEXT)
    assert "Accept" in headers["Vary"]
    assert "# EOF" not in text
    assert len([s for s in samples(text) if s.name == "vitals_requests_running"]) == 4


async def test_openmetrics_is_valid_and_says_the_same(exporter: Running) -> None:
    _, headers, openmetrics = await exporter.get("/metrics", Accept=PROMETHEUS)
    assert headers["Content-Type"] == OPENMETRICS
    assert openmetrics.endswith("\n# EOF\n")
    assert openmetrics.count("# EOF") == 1
    families = list(parse_openmetrics(openmetrics))  # type: ignore[no-untyped-call]  # not annotated there
    assert {family.name: family.type for family in families}.items() >= {
        "vitals_preemptions": "counter",
        "vitals_build": "info",
        "vitals_time_to_first_token_seconds": "histogram",
        "vitals_kv_cache_usage_ratio": "gauge",
    }.items()
    _, _, text = await exporter.get("/metrics", Accept="text/plain")
    ours = [
        {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for sample in found
            if sample.name.startswith("vitals_") and "duration" not in sample.name
        }
        for found in ([s for family in families for s in family.samples], samples(text))
    ]
    assert ours[0] == ours[1]
    assert len(ours[0]) > 600


async def test_everything_exported_is_in_the_catalogue_with_its_labels(exporter: Running) -> None:
    by_sample = {name: family for family in BY_NAME.values() for name in family.sample_names}
    for sample in await exporter.metrics():
        if sample.name.startswith(("process_", "python_")):
            continue
        family = by_sample[sample.name]
        assert set(sample.labels) - {"le"} <= set(family.all_labels)
        assert not family.per_target or {"target", "backend"} <= set(sample.labels)


async def test_compression_is_for_who_accepts_it(exporter: Running) -> None:
    async with aiohttp.ClientSession(auto_decompress=False) as client:
        async with client.get(f"{exporter.url}/metrics", headers={"Accept-Encoding": "gzip"}) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert response.headers["Content-Type"] == TEXT
            assert "Accept-Encoding" in response.headers["Vary"]
            packed = await response.read()
        assert samples(gzip.decompress(packed).decode())
        for refused in ("identity", "gzip;q=0, identity", "deflate", "gzipped"):
            async with client.get(f"{exporter.url}/metrics", headers={"Accept-Encoding": refused}) as response:
                assert "Content-Encoding" not in response.headers
                assert samples(await response.text())


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
async def test_names_restrict_what_is_answered(exporter: Running, accept: str) -> None:
    query = "name[]=vitals_target_up&name[]=vitals_request_queue_seconds_sum&name[]=process_cpu_seconds_total"
    _, _, text = await exporter.get(f"/metrics?{query}", Accept=accept)
    found = samples(text.removesuffix("# EOF\n"))
    assert {sample.name for sample in found} == {
        "vitals_target_up", "vitals_request_queue_seconds_sum", "process_cpu_seconds_total",
    }  # fmt: skip


async def test_a_family_of_names_brings_all_its_samples(exporter: Running) -> None:
    _, _, text = await exporter.get("/metrics?name[]=vitals_request_queue_seconds")
    names = {sample.name for sample in samples(text)}
    assert names == {f"vitals_request_queue_seconds_{part}" for part in ("bucket", "sum", "count")}


async def test_a_name_that_begins_as_another_does_not_bring_it(exporter: Running) -> None:
    _, _, text = await exporter.get("/metrics?name[]=vitals_requests_waiting")
    assert {sample.name for sample in samples(text)} == {"vitals_requests_waiting"}


async def test_a_name_brings_whole_lines_whatever_is_in_their_labels() -> None:
    model = "a\u2028b\x85c\x0bd\x1ce"
    async with watching(f'vllm:num_requests_waiting{{model_name="{model}"}} 3\n') as exporter:
        _, _, text = await exporter.get("/metrics?name[]=vitals_requests_waiting")
    series = f'vitals_requests_waiting{{target="t0",backend="vllm",model="{model}",engine="0"}} 3'
    assert text.split("\n")[2:] == [series, ""]


async def test_a_name_of_nothing_gives_an_empty_answer(exporter: Running) -> None:
    assert (await exporter.get("/metrics?name[]=nothing"))[2] == ""
    _, _, text = await exporter.get("/metrics?name[]=nothing", Accept="application/openmetrics-text")
    assert text == "# EOF\n"


@pytest.mark.parametrize("context", ["", "no", "-1", "0", "9" * 5000])
async def test_an_odd_context_is_the_usual_one(context: str) -> None:
    async with watching(PAGE) as exporter:
        status, _, text = await exporter.get(f"/-/explain?context={context}")
    assert status == 200
    assert json.loads(text)[0]["ceilings"]["context_tokens"] == 8000


async def test_healthy_is_answered_at_once_and_ready_when_every_target_was_tried() -> None:
    async with serving(Engine()) as engine:
        engine.hold = asyncio.Event()
        down = target(f"http://127.0.0.1:{await free_port()}", name="down")
        config = Config(DEFAULT_LISTEN, (target(engine.url, name="slow"), down))
        async with running(config) as exporter:
            assert (await exporter.get("/-/healthy"))[0] == 200
            assert (await exporter.get("/-/ready"))[0] == 503
            engine.hold.set()
            await exporter.tried()
