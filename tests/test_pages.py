"""The pages for a person: what they show, and that nothing a server says becomes HTML."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from exporter.config import DEFAULT_LISTEN, Config, ProbeSettings
from tests.peers import BASIC, BEARER, PAGE, PREEMPTED, SECRETS, TWO_ENGINES, Engine, Ollama, free_port, serving, target
from tests.running import Running, running, watching


@pytest.fixture
async def exporter() -> AsyncIterator[Running]:
    """An exporter of three vLLMs, the third of two engines."""
    async with watching(PAGE, PREEMPTED, TWO_ENGINES) as exporter:
        yield exporter


async def test_the_landing_page_shows_each_server_and_its_numbers(exporter: Running) -> None:
    status, headers, html = await exporter.get("/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert headers["Content-Security-Policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "3 of 3 servers up" in html
    for name in ("t0", "t1", "t2"):
        assert f'<h2>{name} <span class="state">up</span></h2>' in html
        assert f'<a href="debug/{name}">details</a>' in html
    assert "vllm 0.32.0 at http://127.0.0.1:" in html
    for title in (
        "Time to first token",
        "Inter-token latency",
        "Requests running",
        "Requests waiting",
        "KV cache in use",
    ):
        assert html.count(f"<dt>{title}</dt>") == 3
    assert "<dd>0.0%<small>now</small></dd>" in html


async def test_a_server_that_is_down_shows_why_and_what_to_do() -> None:
    port = await free_port()
    config = Config(DEFAULT_LISTEN, (target(f"http://127.0.0.1:{port}", backend="auto"),))
    async with running(config) as exporter:
        _, _, html = await exporter.get("/")
    assert "0 of 1 server up" in html
    assert '<h2>a <span class="state">down</span></h2>' in html
    assert f"engine not known yet at http://127.0.0.1:{port}" in html
    assert "Connection refused" in html
    assert "<dl>" not in html


async def test_with_nothing_found_the_landing_page_says_how_to_name_a_server() -> None:
    config = Config(DEFAULT_LISTEN, (target(f"http://127.0.0.1:{await free_port()}"),), discovered=True)
    async with running(config) as exporter:
        _, _, html = await exporter.get("/")
    assert "No server was configured and none was found yet" in html
    assert "VLLM_URL=http://HOST:8000" in html
    assert '<span class="state">not found</span>' in html


async def test_the_landing_page_does_not_ask_the_servers_again_and_again() -> None:
    async with serving(Engine()) as engine:
        async with running(Config(DEFAULT_LISTEN, (target(engine.url),))) as exporter:
            await exporter.tried()
            for _ in range(5):
                await exporter.get("/")
        assert engine.asked["/metrics"] <= 2


async def test_the_debug_page_shows_the_last_reading_in_full(exporter: Running) -> None:
    status, _, html = await exporter.get("/debug/t2")
    assert status == 200
    for text in ("outcome", "all is well", "vllm 0.32.0", "HTTP status", "vllm:num_requests_running".partition(":")[2]):
        assert text in html
    assert "<h2>Families and the names that feed them</h2>" in html
    assert "<code>vitals_time_to_first_token_seconds</code>" in html
    assert "<h2>Families of the page that are not relayed</h2>" in html


async def test_the_debug_page_of_an_unknown_target_names_those_there_are(exporter: Running) -> None:
    status, headers, text = await exporter.get("/debug/%3Cscript%3E")
    assert (status, headers["Content-Type"]) == (404, "text/plain; charset=utf-8")
    assert text == "no such target; there are: t0, t1, t2\n"


async def test_the_debug_page_reads_the_target_anew() -> None:
    async with serving(Engine()) as engine:
        engine.status = 500
        async with running(Config(DEFAULT_LISTEN, (target(engine.url),))) as exporter:
            await exporter.tried()
            engine.status = 200
            _, _, html = await exporter.get("/debug/a")
    assert "all is well" in html


async def test_what_a_server_says_is_text_and_never_html() -> None:
    script = "<script>alert(1)</script>"
    text = f'vllm:num_requests_running{{model_name="{script}"}} 1\nvllm:num_requests_waiting{{{script}\n'
    async with serving(Engine(text)) as vllm, serving(Ollama()) as ollama:
        vllm.version = script
        targets = (target(vllm.url), target(ollama.url + "/<b>", name="b", backend="ollama"))
        async with running(Config(DEFAULT_LISTEN, targets)) as exporter:
            pages = [(await exporter.get(path))[2] for path in ("/", "/debug/a", "/debug/b")]
    assert "&lt;script&gt;" in pages[1]
    assert "&lt;b&gt;" in pages[0]
    for page in pages:
        assert "<script" not in page
        assert "<b>" not in page


async def test_no_page_and_no_series_holds_a_secret() -> None:
    async with serving(Engine()) as engine:
        engine.status = 401
        targets = (target(engine.url, name="a", **BEARER), target(engine.url, name="b", **BASIC))
        async with running(Config(DEFAULT_LISTEN, targets)) as exporter:
            pages = [(await exporter.get(path))[2] for path in ("/", "/metrics", "/debug/a", "/debug/b")]
    for page in pages:
        assert not any(secret in page for secret in SECRETS)


async def test_a_probed_ollama_shows_its_last_probe() -> None:
    async with serving(Ollama()) as ollama:
        ollama.hold = asyncio.Event()
        watched = target(ollama.url, backend="ollama", probe=ProbeSettings(interval=0.01))
        async with running(Config(DEFAULT_LISTEN, (watched,))) as exporter:
            await asyncio.wait_for(ollama.arrived.wait(), 20)
            _, _, html = await exporter.get("/")
            assert "waiting for the first probe of a loaded model" in html
            ollama.hold.set()
            await exporter.until(lambda found: any(s.name == "vitals_probe_phase_seconds" for s in found))
            _, _, html = await exporter.get("/")
            _, _, debug = await exporter.get("/debug/a")
    assert "median of the last probe" in html
    assert "<h2>Last probes</h2>" in debug
    assert "<td><code>prefill</code></td>" in debug
