"""Probes in the running exporter: whom it probes, and what its pages say of it."""

from __future__ import annotations

import json

from aiohttp import web

from exporter.config import DEFAULT_LISTEN, Config, ProbeSettings, Target
from tests.peers import PAGE, Engine, Ollama, serving
from tests.running import Running, running

SLEEPING = PAGE.replace('sleep_state="awake"} 1.0', 'sleep_state="awake"} 0.0')
PROBE = ProbeSettings(interval=0.01, max_share=1.0, kinds=("small",), max_tokens=2)


class Vllm(Engine):
    """A vLLM with one model, whose completions are `status` or two tokens."""

    def __init__(self, text: str = PAGE) -> None:
        super().__init__(text)
        self.refusal = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "root": "m", "max_model_len": 2048}]})
        if request.path != "/v1/completions":
            return await super().answer(request)
        self.asked[request.path] = self.asked.get(request.path, 0) + 1
        if self.refusal:
            return web.json_response({"error": {"message": self.refusal}}, status=503)
        response = web.StreamResponse()
        await response.prepare(request)
        for event in ({"choices": [{"text": "a"}]}, {"choices": [], "usage": {"completion_tokens": 2}}):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


async def probes(exporter: Running, name: str = "vitals_probe_time_to_first_token_seconds_count") -> None:
    await exporter.until(lambda found: any(sample.name == name and sample.value for sample in found))


def config(engine: Engine, probe: ProbeSettings = PROBE) -> Config:
    return Config(DEFAULT_LISTEN, (Target("a", engine.url, "vllm", probe=probe),))


async def test_a_vllm_is_probed_beside_what_it_says_itself() -> None:
    async with serving(Vllm()) as engine, running(config(engine)) as exporter:
        await probes(exporter)
        assert (await exporter.series("vitals_probes_total", model="m"))["a"] >= 2
        assert (await exporter.series("vitals_probe_cold_total", model="m"))["a"] == 1
        assert "vitals_time_to_first_token_seconds_count" in await exporter.names("a")
        await exporter.until(lambda found: any(sample.name == "vitals_probe_share_ratio" for sample in found))


async def test_a_vllm_is_not_probed_where_the_configuration_says_no() -> None:
    async with serving(Vllm()) as engine, running(config(engine, ProbeSettings(enabled=False))) as exporter:
        await exporter.tried()
        assert exporter.app.states["a"].prober is None


async def test_a_sleeping_vllm_is_left_asleep_until_it_wakes() -> None:
    assert SLEEPING != PAGE
    async with serving(Vllm(SLEEPING)) as engine, running(config(engine)) as exporter:
        await exporter.tried()
        while "the engine sleeps" not in (await exporter.get("/debug/a"))[2]:
            pass
        assert "/v1/completions" not in engine.asked
        engine.text = PAGE
        await probes(exporter)


async def test_the_last_failures_text_is_on_the_debug_page_and_its_reason_is_counted() -> None:
    engine = Vllm()
    engine.refusal = "the queue is full <of it>"
    async with serving(engine), running(config(engine)) as exporter:
        await probes(exporter, "vitals_probe_failures_total")
        _, _, html = await exporter.get("/debug/a")
        assert (await exporter.series("vitals_probe_failures_total", reason="overload"))["a"] >= 1
    assert "overload: HTTP 503 the queue is full &lt;of it&gt;" in html


async def test_another_engine_at_the_same_place_is_probed_as_what_it_is_now() -> None:
    place = Ollama()
    place.metrics = PAGE
    async with serving(place), running(Config(DEFAULT_LISTEN, (Target("a", place.url, probe=PROBE),))) as exporter:
        await exporter.until(lambda found: any(sample.labels.get("backend") == "vllm" for sample in found))
        place.metrics = ""
        await exporter.until(lambda found: place.asked.get("/api/generate", 0) > 0)
        await probes(exporter)
