"""The official clients of OpenAI and Ollama against the simulated servers; skipped where they are not installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulated import ollama, serving, vllm


async def everything(stream: Any) -> list[Any]:
    return [item async for item in stream]


async def test_the_openai_client_reads_a_vllms_models_answers_streams_and_errors() -> None:
    openai = pytest.importorskip("openai", reason="the official client is not installed")
    messages = [{"role": "user", "content": "Name a river."}]
    async with serving(vllm()) as (server, ours):
        run = ours.clock.run
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            assert [model.id for model in (await run(client.models.list())).data] == ["tiny"]
            extra = {"extra_body": {"ignore_eos": True}, "max_tokens": 12}
            chat = await run(client.chat.completions.create(model="tiny", messages=messages, **extra))
            assert (chat.choices[0].finish_reason, chat.usage.completion_tokens) == ("length", 12)
            opening = client.completions.create(
                model="tiny", prompt="Once", stream=True, stream_options={"include_usage": True}, **extra
            )
            chunks = await run(everything(await run(opening)))
            assert len("".join(choice.text for chunk in chunks for choice in chunk.choices).split()) == 12
            assert chunks[-1].usage.completion_tokens == 12
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                await run(client.completions.create(model="nope", prompt="x"))
            with pytest.raises(openai.BadRequestError, match="maximum context length"):
                await run(client.completions.create(model="tiny", prompt="word " * 3000))


async def test_the_openai_client_reads_an_ollama() -> None:
    openai = pytest.importorskip("openai", reason="the official client is not installed")
    async with serving(ollama()) as (server, ours):
        run = ours.clock.run
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            messages = [{"role": "user", "content": "Name a river."}]
            opening = client.chat.completions.create(model="gemma3-chat", messages=messages, max_tokens=7, stream=True)
            chunks = await run(everything(await run(opening)))
            assert len("".join(chunk.choices[0].delta.content or "" for chunk in chunks).split()) == 7
            with pytest.raises(openai.NotFoundError, match="model 'nope' not found"):
                await run(client.chat.completions.create(model="nope", messages=messages))


async def test_the_ollama_client_reads_an_ollamas_lists_answers_streams_and_errors() -> None:
    library = pytest.importorskip("ollama", reason="the official client is not installed")
    async with serving(ollama()) as (server, ours):
        run = ours.clock.run
        async with library.AsyncClient(host=server.url) as client:
            assert [model.model for model in (await run(client.list())).models] == [
                "gemma3:270m", "gemma3-chat:latest", "gemma3-think:latest",
            ]  # fmt: skip
            answer = await run(client.generate("gemma3:270m", "Once", options={"num_predict": 9}))
            assert (answer.eval_count, answer.done_reason, len(answer.response.split())) == (9, "length", 9)
            messages = [{"role": "user", "content": "Name a river."}]
            opening = client.chat("gemma3-think", messages, options={"num_predict": 40}, stream=True)
            parts = await run(everything(await run(opening)))
            assert sum(bool(part.message.thinking) for part in parts) == 22
            assert sum(bool(part.message.content) for part in parts) == 16
            assert parts[-1].done
            loaded = (await run(client.ps())).models
            assert [model.context_length for model in loaded] == [4096, 4096]
            assert (await run(client.show("gemma3:270m"))).modelinfo["general.architecture"] == "gemma3"
            with pytest.raises(library.ResponseError, match="model 'nope' not found"):
                await run(client.generate("nope", "x"))
