"""What a prober asks of a scripted Ollama: prompts of two sizes and the repeated one, and what they tell together."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from exporter.probe.result import Reason
from tests.ollama_fakes import TARGET, Clock, Rig, answer, done, expiring, line


def counting(clock: Clock) -> Any:
    """Return an answer to any prompt whose server counts a token in every four characters, and takes 1 ms for each."""

    async def generate(request: httpx.Request) -> httpx.Response:
        tokens = len(json.loads(request.content)["prompt"]) // 4
        counts = done(prompt_eval_count=tokens, prompt_eval_duration=tokens * 10**6)
        pieces = [(0.1 + tokens / 1000, line("a")), *((0.02, line("b")) for _ in range(3)), (0.0, counts)]
        return await answer(clock, pieces)(request)

    return generate


async def test_prompts_reach_their_sizes_by_the_servers_count_and_begin_with_a_nonce() -> None:
    rig = Rig(TARGET, m=expiring(3000))
    rig.ollama.generate = counting(rig.clock)
    for _ in range(2):
        await rig.prober.turn()
    prompts = [body["prompt"] for body in rig.ollama.asked]
    assert len({prompt[:8] for prompt in prompts}) == len(set(prompts)) == len(prompts) - 2  # two were repeated
    assert rig.prober.last["m", "small"].prompt_tokens == pytest.approx(200, rel=0.2)
    assert rig.prober.last["m", "large"].prompt_tokens == pytest.approx(2000, rel=0.05)


async def test_a_turn_asks_small_then_large_then_the_large_one_again() -> None:
    rig = Rig(TARGET, m=expiring(3000))
    rig.ollama.generate = counting(rig.clock)
    await rig.prober.turn()
    warm_up, small, large, cached = (body["prompt"] for body in rig.ollama.asked)
    assert len(warm_up) == pytest.approx(len(small), rel=0.2)
    assert len(large) > 8 * len(small)
    assert cached == large
    assert {body["options"]["num_predict"] for body in rig.ollama.asked} == {32}
    assert {kind for _, kind in rig.prober.last} == {"small", "large", "cached"}


async def test_the_slope_between_the_sizes_is_what_a_token_costs() -> None:
    rig = Rig(TARGET, m=expiring(3000))
    rig.ollama.generate = counting(rig.clock)
    await rig.prober.turn()
    assert rig.value("probe_prefill_seconds_per_token") == pytest.approx(0.001)
    assert rig.value("probe_prefill_fixed_seconds") == pytest.approx(0.1)
    assert rig.value("probe_cached_saving_seconds") == pytest.approx(0.0)


async def test_the_repeated_prompt_has_no_prefill_rate_where_the_server_does_not_tell_what_was_cached() -> None:
    rig = Rig(TARGET, m=expiring(3000))
    rig.ollama.generate = counting(rig.clock)
    await rig.prober.turn()
    assert rig.value("probe_prefill_tokens_per_second", prompt="large") == pytest.approx(1000)
    assert rig.value("probe_prefill_tokens_per_second", prompt="cached") is None


@pytest.mark.parametrize(("context", "tokens"), [(4096, 2000), (1024, 793), (300, None)])
async def test_a_large_prompt_fits_in_the_context_or_is_left_out(context: int, tokens: int | None) -> None:
    rig = Rig(TARGET, m=expiring(3000, context_length=context))
    rig.ollama.generate = counting(rig.clock)
    for _ in range(2):
        await rig.prober.turn()
    large = rig.prober.last.get(("m", "large"))
    assert (large and large.prompt_tokens) == (tokens and pytest.approx(tokens, rel=0.05))
    assert ("m", "cached") in rig.prober.last


async def test_a_repeated_prompt_is_not_compared_with_one_of_another_size() -> None:
    rig = Rig(TARGET, m=expiring(3000))
    warm = counting(rig.clock)
    counts = done(prompt_eval_count=2000, load_duration=5 * 10**9)
    loading = answer(rig.clock, [(5.0, line("a")), (0.02, line("b")), (0.0, counts)])

    async def reloading(request: httpx.Request) -> httpx.Response:
        """Load the model anew for the first large prompt, whose time is then no latency to compare with."""
        made: httpx.Response = await (loading if len(rig.ollama.asked) == 3 else warm)(request)
        return made

    rig.ollama.generate = reloading
    await rig.prober.turn()
    assert rig.prober.last["m", "large"].reloaded
    assert rig.prober.last["m", "cached"].ok
    assert rig.value("probe_cached_saving_seconds") is None
    assert rig.value("probe_prefill_seconds_per_token") is None


async def test_a_prompt_that_an_ollama_cut_to_half_of_its_context_is_found_out_and_teaches_nothing() -> None:
    rig = Rig(TARGET, m=expiring(3000))

    async def cutting(request: httpx.Request) -> httpx.Response:
        """Read a prompt in tokens of some 4.4 characters, as they usually are; of 2048 or more read 1026."""
        length = len(json.loads(request.content)["prompt"])
        tokens = round(length / (4.4 if length < 2000 else 4.2))
        counts = done(prompt_eval_count=tokens if tokens < 2048 else 1026)
        return await answer(rig.clock, [(0.1, line("a")), (0.02, line("b")), (0.0, counts)])(request)

    rig.ollama.generate = cutting
    for _ in range(2):
        await rig.prober.turn()
        assert rig.prober.last["m", "large"].reason is Reason.TRUNCATED_PROMPT
    assert max(len(body["prompt"]) for body in rig.ollama.asked) == pytest.approx(2000 * 4.4, rel=0.02)
