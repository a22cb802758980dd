"""`llm-vitals probe`: what it finds out, prints and returns, against simulated servers and fakes on localhost."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from aiohttp import web

from exporter.config import ConfigError, load_one
from exporter.probe.command import Options, probe
from exporter.probe.report import Report
from exporter.probe.result import ProbeResult
from exporter.settings import Target
from exporter.simulator.clock import RealClock
from exporter.simulator.ollama import OllamaServer
from exporter.simulator.vllm import VllmServer
from tests.ollama_fakes import done, line, serve
from tests.peers import free_port
from tests.simulated import GEMMA, GPU, OLLAMA, VLLM

STEADY = replace(VLLM, device=replace(GPU, bandwidth=1e15, flops=1e17, overhead=0.01))
SLOW = replace(OLLAMA, device=replace(OLLAMA.device, overhead=0.01))  # 10 ms a token, so that none share a read
QUICK = Options(times=2, max_tokens=4)


@dataclass
class Printed:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def run(url: str, options: Options, err: io.StringIO | None = None) -> Printed:
    out, err = io.StringIO(), err or io.StringIO()
    code = await probe(Target("a", url), options, out, err)
    return Printed(code, out.getvalue(), err.getvalue())


async def test_a_vllm_is_found_out_and_measured_into_a_table_with_a_verdict() -> None:
    server = VllmServer(STEADY, RealClock())
    await server.start()
    try:
        printed = await run(server.url, QUICK)
    finally:
        await server.stop()
    assert (printed.code, printed.err) == (0, "")
    assert f"tiny on vllm at {server.url}; 2 probes a size" in printed.out
    lines = {line.split("  ")[0]: line for line in printed.out.splitlines()}
    for title in ("TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "TPOT", "decode tokens/s"):
        assert lines[title].count("ms") == (0 if "tokens" in title else 2)
    assert lines["prompt"].split() == ["prompt", "small", "large"]
    assert "is the slow half" in printed.out.splitlines()[-1]


async def test_an_ollama_is_measured_with_its_phases_and_the_model_it_has_in_memory() -> None:
    server = OllamaServer(SLOW, RealClock())
    await server.start()
    try:
        nothing = await run(server.url, QUICK)
        await server.send([1, 2, 3], 4)
        printed = await run(server.url, replace(QUICK, as_json=True))
    finally:
        await server.stop()
    assert (nothing.code, nothing.out) == (1, "")
    assert "no model is in memory" in nothing.err
    assert "--model" in nothing.err
    found = printed.json
    assert (found["engine"], found["model"]) == ("ollama", GEMMA.name)
    assert found["prompts"]["small"]["prompt_tokens"] == pytest.approx(200, rel=0.15)
    assert found["prompts"]["large"]["prompt_tokens"] == pytest.approx(2000, rel=0.15)
    assert found["prompts"]["large"]["prefill_seconds"] > 0
    assert found["slow_half"] in ("prefill", "decode")


async def test_a_model_that_is_named_is_loaded_because_a_person_asked() -> None:
    server = OllamaServer(SLOW, RealClock())
    await server.start()
    try:
        printed = await run(server.url, replace(QUICK, model="gemma3-chat"))
    finally:
        await server.stop()
    assert printed.err == ""
    assert "gemma3-chat:latest on ollama" in printed.out


async def test_a_server_without_metrics_is_known_by_the_owner_of_its_models() -> None:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "owned_by": "llamacpp"}]})

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        count = len(body["prompt"]) // 4
        text = [json.dumps({"choices": [{"text": word}]}) for word in "abcd"]
        usage = json.dumps({"choices": [], "usage": {"prompt_tokens": count, "completion_tokens": 4}})
        return web.Response(text="".join(f"data: {data}\n\n" for data in (*text, usage, "[DONE]")))

    async with serve({"/v1/models": models, "/v1/completions": complete}) as target:
        printed = await run(target.url, replace(QUICK, as_json=True))
    assert printed.json["engine"] == "llama.cpp"
    assert printed.json["coalesced"] is True
    assert printed.json["prompts"]["small"]["itl_p50_seconds"] is None
    assert printed.json["slow_half"] is None
    assert printed.json["verdict"].endswith("cannot be told: the answers came in large pieces.")


async def test_a_failing_server_is_one_line_with_the_reason_and_exit_code_1() -> None:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "owned_by": "vllm"}]})

    async def busy(request: web.Request) -> web.Response:
        return web.json_response({"error": "server busy"}, status=503)

    async with serve({"/v1/models": models, "/v1/completions": busy}) as target:
        printed = await run(target.url, QUICK)
    assert (printed.code, printed.out) == (1, "")
    assert printed.err.count("\n") == 1
    assert "overload" in printed.err


async def test_nothing_there_is_exit_code_1() -> None:
    printed = await run(f"http://127.0.0.1:{await free_port()}", QUICK)
    assert (printed.code, printed.out) == (1, "")
    assert "nothing listens on" in printed.err


async def test_a_progress_bar_is_for_terminals_and_goes_away() -> None:
    server = VllmServer(STEADY, RealClock())
    await server.start()
    try:
        printed = await run(server.url, QUICK, Terminal())
    finally:
        await server.stop()
    assert "5/5" in printed.err
    assert printed.err.endswith("\r\x1b[K")


def result(ttft: float, tpot: float, tokens: int) -> ProbeResult:
    return ProbeResult(0.0, 1.0, False, ttft=ttft, tpot=tpot, gaps=(tpot, tpot), prompt_tokens=tokens, output_tokens=3)


@pytest.mark.parametrize(("ttft", "tpot", "slow"), [(8.0, 0.02, "prefill"), (0.5, 0.02, "decode")])
def test_the_verdict_compares_a_long_prompt_with_two_hundred_tokens_of_answer(
    ttft: float, tpot: float, slow: str
) -> None:
    report = Report("u", "e", "m", {"small": [result(0.1, tpot, 200)], "large": [result(ttft, tpot, 2000)]})
    half, sentence = report.verdict()
    assert half == slow
    assert sentence.startswith(f"{slow.capitalize()} is the slow half: a prompt of 2,000 tokens takes ")
    assert "200 tokens of answer 3.98 s to decode" in sentence


def test_quantiles_are_over_all_probes_of_a_size() -> None:
    report = Report("u", "e", "m", {"small": [result(float(number), 0.01, 200) for number in range(1, 6)]})
    figures = report.figures("small")
    assert (figures["ttft_p50_seconds"], figures["ttft_p99_seconds"]) == (3.0, 5.0)
    assert figures["prefill_tokens_per_second"] is None


def test_the_target_is_a_url_with_the_key_of_the_environment_or_one_of_the_configuration(tmp_path: Any) -> None:
    target = load_one("http://h:8000/v1", None, {"VLLM_API_KEY": "k"})
    assert (target.url, target.name) == ("http://h:8000", "h:8000")
    assert target.bearer_token is not None
    file = tmp_path / "vitals.yml"
    file.write_text("targets: [{name: box, url: 'http://h:1', backend: ollama}]")
    assert load_one("box", file, {}).backend == "ollama"
    assert load_one("http://h:1", file, {}).name == "box"
    with pytest.raises(ConfigError, match="put http:// first"):
        load_one("h:8000", None, {})


@pytest.mark.parametrize(("load", "code"), [(lambda asked: 2e9 if asked == 2 else 1e6, 0), (lambda asked: 2e9, 1)])
async def test_a_probe_that_loaded_the_model_is_no_measurement(load: Any, code: int) -> None:
    asked = 0

    async def models(request: web.Request) -> web.Response:
        rows = [{"name": "m", "digest": "d", "expires_at": "2319-01-01T00:00:00Z"}]
        return web.json_response({"models": rows})

    async def generate(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        if not (prompt := (await request.json())["prompt"]):
            return web.json_response({"done": True})
        asked += 1
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("a"))
        await response.write(line("b") + done(prompt_eval_count=len(prompt) // 4, load_duration=int(load(asked))))
        return response

    async def version(request: web.Request) -> web.Response:
        return web.json_response({"version": "0.12.0"})

    async with serve({"/api/ps": models, "/api/generate": generate, "/api/version": version}) as target:
        printed = await run(target.url, replace(QUICK, as_json=True))
    assert printed.code == code
    if code:
        assert "loaded the model anew" in printed.err
    else:
        # The second probe, the small one after the warm-up, was a load, and a turn counts as a whole.
        assert printed.json["probes"] == {"small": 1, "large": 1}
