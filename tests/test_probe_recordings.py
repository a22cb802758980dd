"""Every recorded stream of a real Ollama, vLLM and llama.cpp server gives the figures that are in its bytes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from exporter.probe.result import Reason
from tests.replay import STREAMS, play_file


@dataclass(frozen=True, slots=True)
class Told:
    """What a recording holds: seconds to the first text and from there to the last, reads with text, tokens."""

    ttft: float
    span: float
    reads: int
    output: int | None
    prompt: int | None
    load: float | None = None
    prefill: float | None = None
    decode: float | None = None
    cached: int | None = None


GOOD = {
    "llama-server-chat": Told(0.081129, 0.298722, 24, 24, 27, None, 0.069086, 0.298732, 0),
    "llama-server-chat-continuous-usage": Told(0.471377, 0.328266, 24, 24, 304, None, 0.465258, 0.330293, 0),
    "llama-server-completions": Told(0.025149, 0.647609, 24, 24, 5, None, 0.020984, 0.647617, 1),
    "llama-server-completions-usage": Told(0.472659, 0.350801, 24, 24, 282, None, 0.470682, 0.350832, 0),
    "llama-server-completions-warmup": Told(0.040461, 0.303410, 24, 24, 5, None, 0.039120, 0.303521, 0),
    # llama.cpp answers for any model's name with the one it has.
    "llama-server-unknown-model": Told(0.021416, 0.300599, 24, 24, 2, None, 0.013301, 0.300568, 1),
    # A token that is part of a character has no text: the reads are fewer than the tokens.
    "vllm-0.32.0-chat": Told(0.012896, 0.081227, 21, None, None),
    "vllm-0.32.0-chat-continuous-usage": Told(0.043372, 0.078045, 22, 24, 612),
    "vllm-0.32.0-completions": Told(0.012096, 0.138245, 23, None, None),
    "vllm-0.32.0-completions-usage": Told(0.056708, 0.102027, 18, 24, 601),
    "vllm-0.32.0-completions-warmup": Told(0.031500, 0.138033, 20, None, None),
    "ollama-gen-cold-stream": Told(2.921874, 0.438598, 16, 16, 9, 2.813021, 0.103665, 0.438924),
    "ollama-200tok-miss-stream": Told(0.336689, 1.016426, 16, 16, 197, 0.000951, 0.323556, 1.016432),
    "ollama-200tok-hit-stream": Told(0.047840, 1.279399, 16, 16, 197, 0.001281, 0.039301, 1.281589),
    "ollama-2000tok-miss-stream": Told(3.530275, 0.280041, 16, 16, 1988, 0.001110, 3.474172, 0.279976),
    "ollama-2000tok-hit-stream": Told(0.058025, 0.304882, 16, 16, 1988, 0.000884, 0.021927, 0.309460),
    "ollama-2000tok-partial-hit-stream": Told(0.089127, 0.274914, 16, 16, 1996, 0.001240, 0.055371, 0.275213),
    "ollama-numctx256-prompt400-stream": Told(3.850084, 0.991008, 16, 16, 131, 2.793688, 1.042958, 0.991644),
    "ollama-keepalive0-with-prompt": Told(0.088534, 0.542239, 16, 16, 16, 0.000910, 0.080480, 0.540523),
    "ollama-chat-stream": Told(1.815215, 13.456475, 24, 24, 17, 0.102966, 1.639358, 13.451406),
    # Two of the tokens around the thoughts have no text.
    "ollama-chat-think-absent": Told(0.039316, 0.454967, 23, 24, 21, 0.000871, 0.030183, 0.454795),
    "ollama-chat-think-true": Told(0.118573, 0.427314, 23, 24, 21, 0.069789, 0.045181, 0.427247),
    "ollama-conc3-warm-req0": Told(5.694644, 0.737288, 24, 24, 157, 0.007267, 1.154617, 0.739429),
    "ollama-conc3-warm-req1": Told(2.786475, 1.735957, 24, 24, 157, 0.001385, 2.767918, 1.739541),
    "ollama-conc3-warm-req2": Told(6.708077, 0.375420, 24, 24, 157, 0.001097, 0.261313, 0.379750),
    "ollama-np2-conc3-req0": Told(4.557869, 2.898760, 24, 24, 157, 0.001001, 4.556088, 2.886608),
    "ollama-np2-conc3-req1": Told(5.052847, 2.395191, 24, 24, 157, 0.005068, 3.180119, 2.381788),
    "ollama-np2-conc3-req2": Told(10.552225, 4.320160, 24, 24, 157, 0.000929, 3.109553, 4.316637),
    "ollama-maxqueue1-cold5-req0": Told(2.627300, 1.298083, 24, 24, 67, 1.360434, 0.188291, 1.298301),
    # 80 tokens that hardly repeat themselves did not trip the guard against repetition.
    "ollama-repeat-one": Told(0.244190, 1.372572, 80, 80, 122, 0.005612, 0.204549, 1.372201),
    "ollama-np1-stream": Told(0.508435, 0.0, 1, 1, 38, 0.001035, 0.503366, 0.000001),
    "ollama-np16-stream": Told(0.386802, 0.904563, 16, 16, 39, 0.009070, 0.370922, 0.907320),
    "ollama-np64-stream": Told(0.081748, 0.961474, 64, 64, 39, 0.000794, 0.073204, 0.962965),
    # Four tokens a character; a stop word that was held back.
    "ollama-emoji-stream": Told(0.194253, 0.583159, 10, 40, 48, 0.002465, 0.110121, 0.630874),
    "ollama-stop-partial": Told(0.310518, 0.145507, 6, 24, 30, 0.000815, 0.078179, 0.375180),
    "ollama-v1-chat-nousage": Told(0.023029, 0.133405, 8, None, None),
    "ollama-v1-chat-think": Told(0.032242, 0.135435, 8, 8, 21),
    "ollama-v1-chat-usage": Told(0.027198, 0.153459, 8, 8, 17),
    "ollama-v1-completions-usage": Told(0.031110, 0.141259, 8, 8, 4),
}

BAD = {
    "llama-server-prompt-too-long": (Reason.HTTP_4XX, "exceeds the available context size"),
    "vllm-0.32.0-prompt-too-long": (Reason.HTTP_4XX, "maximum context length is 2048"),
    "vllm-0.32.0-unknown-model": (Reason.MODEL_NOT_FOUND, "`nope` does not exist"),
    # A whole answer where a stream was asked for.
    "llama-server-completions-plain": (Reason.PROTOCOL, "no server-sent event"),
    "vllm-0.32.0-completions-plain": (Reason.PROTOCOL, "no server-sent event"),
    "ollama-numctx256-prompt400-truncate-false": (Reason.HTTP_4XX, "exceeds the available context size"),
    "ollama-child-sigkill-midstream": (Reason.ERROR_IN_STREAM, "unexpected EOF"),
    "ollama-server-sigterm-midstream": (Reason.TRUNCATED_STREAM, "broke off"),
}

THOUGHTS_ONLY = {"ollama-chat-think-absent", "ollama-chat-think-true", "ollama-v1-chat-think"}


def test_every_recording_has_its_values_here() -> None:
    assert {path.stem for path in STREAMS.glob("*.ndjson")} == GOOD.keys() | BAD.keys()


@pytest.mark.parametrize("name", GOOD)
async def test_a_recorded_stream_has_its_figures(name: str) -> None:
    told, result = GOOD[name], await play_file(name)
    assert result.error == ""
    assert result.ttft == pytest.approx(told.ttft, abs=2e-6)
    assert len(result.gaps) == told.reads - 1
    assert sum(result.gaps) == pytest.approx(told.span, abs=2e-6)
    assert not result.coalesced
    assert (result.prompt_tokens, result.output_tokens, result.cached_tokens) == (
        told.prompt,
        told.output,
        told.cached,
    )
    assert result.tpot == (
        pytest.approx(told.span / (told.output - 1), abs=1e-6) if told.output and told.output > 1 else None
    )
    assert result.load == (None if told.load is None else pytest.approx(told.load, abs=1e-6))
    assert result.cold is (told.load is not None and told.load > 0.5)
    assert result.answer_ttft is None


@pytest.mark.parametrize("name", GOOD)
async def test_a_recorded_streams_phases_and_rates_are_the_servers_and_add_up(name: str) -> None:
    told, result = GOOD[name], await play_file(name)
    if told.prefill is None or told.prompt is None:
        assert (result.phases, result.prefill_rate) == ({}, None)
        return
    computed = told.prompt - (told.cached or 0)
    assert result.prefill_rate == pytest.approx(computed / told.prefill, rel=1e-4)
    assert result.phases["prefill"] == pytest.approx(told.prefill, abs=1e-6)
    assert result.phases["queue"] == pytest.approx(told.ttft - (told.load or 0) - told.prefill, abs=3e-6)
    assert ("load" in result.phases) is (told.load is not None)
    before_decode = sum(result.phases.values()) - result.phases["connect"] - result.phases["decode"]
    assert before_decode == pytest.approx(told.ttft, abs=3e-6)
    assert result.phases["decode"] >= told.span - 2e-6
    if told.output and told.output > 1 and told.decode:
        assert result.decode_rate == pytest.approx((told.output - 1) / told.decode, rel=1e-4)
    else:
        assert result.decode_rate is None


@pytest.mark.parametrize("name", BAD)
async def test_a_recorded_failure_has_its_reason_and_no_figure(name: str) -> None:
    result = await play_file(name)
    reason, words = BAD[name]
    assert result.reason is reason
    assert words in result.error
    assert (result.ttft, result.gaps, result.tpot, result.waited) == (None, (), None, None)


async def test_a_prompt_that_was_cut_silently_is_seen_by_the_servers_count() -> None:
    result = await play_file("ollama-numctx256-prompt400-stream", least_tokens=200)
    assert result.reason is Reason.TRUNCATED_PROMPT
    assert "131 tokens" in result.error


@pytest.mark.parametrize("name", sorted(THOUGHTS_ONLY))
async def test_thoughts_are_text_although_no_answer_follows(name: str) -> None:
    assert (await play_file(name)).ttft == pytest.approx(GOOD[name].ttft, abs=2e-6)
