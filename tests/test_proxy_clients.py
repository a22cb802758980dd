"""The official clients of Ollama and OpenAI work through the proxy as they do without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from exporter.simulator.clock import ManualClock
from tests.proxying import proxied, values
from tests.simulated import ollama, serving

MESSAGES = [{"role": "user", "content": "Name a river."}]


@asynccontextmanager
async def front() -> AsyncIterator[tuple[str, ManualClock, Any]]:
    """Yield the URL of a proxy in front of a simulated Ollama."""
    async with serving(ollama()) as (server, ours), proxied(server.url, clock=ours.clock.now) as proxy:
        yield f"http://{proxy.where}", ours.clock, proxy


async def everything(stream: Any) -> list[Any]:
    return [item async for item in stream]


async def test_the_ollama_client_lists_generates_chats_streams_and_fails_as_it_should() -> None:
    library = pytest.importorskip("ollama", reason="the official client is not installed")
    async with front() as (url, clock, proxy), library.AsyncClient(host=url) as client:
        run = clock.run
        assert (await run(client.list())).models[0].model == "gemma3:270m"
        answer = await run(client.generate("gemma3:270m", "Once", options={"num_predict": 9}))
        assert (answer.eval_count, answer.done_reason, len(answer.response.split())) == (9, "length", 9)
        opening = client.chat("gemma3-chat", MESSAGES, options={"num_predict": 12}, stream=True)
        parts = await run(everything(await run(opening)))
        assert sum(bool(part.message.content) for part in parts) == 12
        assert parts[-1].done
        assert (await run(client.show("gemma3:270m"))).modelinfo["general.architecture"] == "gemma3"
        assert len((await run(client.ps())).models) == 2
        with pytest.raises(library.ResponseError, match="model 'nope' not found"):
            await run(client.generate("nope", "x"))
        assert values(proxy, "generation_tokens_total") == {"gemma3:270m": 9, "gemma3-chat:latest": 12, "other": 0}
        assert values(proxy, "requests_finished_total")["other error"] == 1


async def test_the_openai_client_lists_completes_chats_streams_and_fails_as_it_should() -> None:
    openai = pytest.importorskip("openai", reason="the official client is not installed")
    async with (
        front() as (url, clock, proxy),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        run = clock.run
        assert (await run(client.models.list())).data[0].id == "gemma3:270m"
        chat = await run(client.chat.completions.create(model="gemma3-chat", messages=MESSAGES, max_tokens=7))
        assert (chat.choices[0].finish_reason, chat.usage.completion_tokens) == ("length", 7)
        opening = client.completions.create(
            model="gemma3:270m", prompt="Once", max_tokens=11, stream=True, stream_options={"include_usage": True}
        )
        chunks = await run(everything(await run(opening)))
        assert len("".join(choice.text for chunk in chunks for choice in chunk.choices).split()) == 11
        assert chunks[-1].usage.completion_tokens == 11
        with pytest.raises(openai.NotFoundError, match="model 'nope' not found"):
            await run(client.chat.completions.create(model="nope", messages=MESSAGES))
        assert values(proxy, "generation_tokens_total") == {"gemma3-chat:latest": 7, "gemma3:270m": 11, "other": 0}
