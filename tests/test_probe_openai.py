"""Probing servers with OpenAI's API: which models, when not, and with which keys; a simulated vLLM and fakes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from exporter.backends.ollama_api import open_client
from exporter.probe.hosts.openai import LOWEST_PRIORITY, OpenAIHost, Standing
from exporter.probe.instruments import Instruments
from exporter.probe.result import Reason
from exporter.probe.schedule import Prober
from exporter.probe.stream import sender
from exporter.settings import ProbeSettings, Target
from tests.ollama_fakes import Clock
from tests.simulated import serving, vllm

SMALL = ProbeSettings(kinds=("small",), max_tokens=3)
TARGET = Target("a", "http://server.test:8000", "vllm", probe=SMALL)


class Fake:
    """A server for httpx.MockTransport: /v1/models from `rows`; refuses the keys of requests that are in `refuses`."""

    def __init__(self, *rows: dict[str, Any], refuses: tuple[str, ...] = ()) -> None:
        self.rows = rows
        self.refuses = refuses
        self.asked: list[dict[str, Any]] = []
        self.answer: Callable[[], httpx.Response] = self._good
        self.standing = Standing()
        self.registry = CollectorRegistry()

    def prober(self, target: Target = TARGET, backend: str = "vllm") -> Prober:
        client = httpx.AsyncClient(transport=httpx.MockTransport(self._handle))

        async def standing() -> Standing:
            return self.standing

        host = OpenAIHost(target, client, backend, standing)
        return Prober(target, host, Instruments(self.registry), sender(client, Clock()))

    def models_asked(self) -> set[str]:
        return {body["model"] for body in self.asked}

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"object": "list", "data": list(self.rows)})
        body = json.loads(request.content)
        self.asked.append(body)
        for key in self.refuses:
            if key in body:
                message = f"Got {key} {body[key]}, but this server does not take it."
                return httpx.Response(400, json={"error": {"message": message}})
        return self.answer()

    def _good(self) -> httpx.Response:
        text = json.dumps({"choices": [{"index": 0, "text": "a"}]})
        usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 200, "completion_tokens": 3}})

        async def body() -> AsyncIterator[bytes]:
            yield f"data: {text}\n\ndata: {usage}\n\ndata: [DONE]\n\n".encode()

        return httpx.Response(200, content=body())


def row(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "root": name, "parent": None, "max_model_len": 4096, **more}


async def test_a_vllm_is_asked_for_a_full_answer_behind_all_others() -> None:
    fake = Fake(row("m"))
    await fake.prober().turn()
    body = fake.asked[0]
    assert body["ignore_eos"] is True
    assert (body["min_tokens"], body["max_tokens"]) == (3, 3)
    assert body["priority"] == LOWEST_PRIORITY > 0
    assert "keep_alive" not in body


@pytest.mark.parametrize("name", ["", "a\nb", "a\x1b[2J", "x" * 600])
async def test_a_name_that_can_be_no_label_is_not_probed(name: str) -> None:
    fake = Fake(row(name), row("m"))
    await fake.prober().turn()
    assert fake.models_asked() == {"m"}


async def test_another_engine_is_not_asked_with_vllms_priority() -> None:
    fake = Fake(row("m"))
    await fake.prober(backend="llama.cpp").turn()
    assert "priority" not in fake.asked[0]


@pytest.mark.parametrize("refuses", [("priority",), ("priority", "ignore_eos", "min_tokens")])
async def test_a_key_that_a_server_refuses_is_left_out_from_then_on_and_is_no_failure(refuses: tuple[str, ...]) -> None:
    fake = Fake(row("m"), refuses=refuses)
    prober = fake.prober()
    await prober.turn()
    await prober.turn()
    assert prober.last["m", "small"].ok
    assert not set(refuses) & set(fake.asked[-1])
    assert len(fake.asked) == 3 + len(refuses)  # a warm-up and two probes
    labels = {"target": "a", "backend": "vllm", "model": "m"}
    assert fake.registry.get_sample_value("vitals_probes_total", labels) == 3


async def test_another_refusal_is_a_failure_at_once() -> None:
    fake = Fake(row("m"))
    fake.answer = lambda: httpx.Response(400, json={"error": {"message": "no"}})
    prober = fake.prober()
    await prober.turn()
    assert prober.last["m", "small"].reason is Reason.HTTP_4XX
    assert len(fake.asked) == 1


async def test_adapters_and_further_names_of_a_model_are_not_probed_unless_they_are_named() -> None:
    rows = (row("m"), row("alias", root="m"), row("adapter", root="/lora", parent="m"), row("other"))
    for models, expected in (((), {"m", "other"}), (("adapter",), {"adapter"})):
        fake = Fake(*rows)
        await fake.prober(replace(TARGET, probe=replace(SMALL, models=models))).turn()
        assert fake.models_asked() == expected


async def test_a_configured_model_that_the_server_does_not_have_shows_as_a_failure() -> None:
    fake = Fake(row("m"))
    fake.answer = lambda: httpx.Response(404, json={"error": {"message": "The model `x` does not exist."}})
    prober = fake.prober(replace(TARGET, probe=replace(SMALL, models=("x",))))
    await prober.turn()
    assert prober.last["x", "small"].reason is Reason.MODEL_NOT_FOUND


@pytest.mark.parametrize("told", [{"max_model_len": 1000}, {"max_model_len": None, "meta": {"n_ctx": 1000}}])
async def test_a_large_prompt_fits_in_the_context_that_vllm_or_llama_cpp_tells(told: dict[str, Any]) -> None:
    fake = Fake(row("m", **told))
    await fake.prober(replace(TARGET, probe=replace(SMALL, kinds=("small", "large")))).turn()
    small, large = (len(body["prompt"]) for body in fake.asked[-2:])
    assert large / small == pytest.approx((1000 - 3) * 0.8 / 200, rel=0.05)


async def test_a_sleeping_engine_is_not_asked_and_is_warmed_up_after() -> None:
    fake = Fake(row("m"))
    prober = fake.prober()
    await prober.turn()
    asked = len(fake.asked)
    fake.standing = Standing(asleep=True)
    await prober.turn()
    assert len(fake.asked) == asked
    assert prober.skipped == {"m": "the engine sleeps"}
    fake.standing = Standing()
    await prober.turn()
    labels = {"target": "a", "backend": "vllm", "model": "m"}
    assert fake.registry.get_sample_value("vitals_probe_cold_total", labels) == 2


async def test_a_server_that_was_started_anew_is_warmed_up_again() -> None:
    fake = Fake(row("m"))
    prober = fake.prober()
    await prober.turn()
    fake.standing = Standing(run="another")
    await prober.turn()
    labels = {"target": "a", "backend": "vllm", "model": "m"}
    assert fake.registry.get_sample_value("vitals_probe_cold_total", labels) == 2


@pytest.mark.parametrize("dialect", ["auto", "openai_chat"])
async def test_what_is_measured_of_a_simulated_vllm_is_what_it_did(dialect: str) -> None:
    server = vllm()
    async with serving(server) as (_, api):
        target = Target("a", server.url, "vllm", probe=ProbeSettings(dialect=dialect, max_tokens=16))
        async with open_client(target) as client:
            host = OpenAIHost(target, client, "vllm")
            registry = CollectorRegistry()
            send = sender(client, api.clock.now)
            prober = Prober(target, host, Instruments(registry), send, clock=api.clock.now)
            await api.clock.run(prober.turn())
    records = [record for record in server.ledger.finished if record.output_tokens == 16]
    measured = [prober.last["tiny", kind] for kind in ("small", "large", "cached")]
    assert len(records) == 4
    for record, result in zip(records[1:], measured, strict=True):
        assert result.error == ""
        assert result.ttft == pytest.approx(record.ttft, abs=1e-9)
        assert result.gaps == pytest.approx(record.gaps, abs=1e-9)
        assert result.tpot == pytest.approx(record.tpot, abs=1e-9)
        assert result.prompt_tokens == record.prompt_tokens
    assert [record.cached_tokens > 0 for record in records] == [False, False, False, True]
    assert measured[1].prompt_tokens == pytest.approx(1600, rel=0.05)  # what fits in a context of 2,048
