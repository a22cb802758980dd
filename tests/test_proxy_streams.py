"""What answers of every shape come to: each network read comes a second after the one before."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from exporter.proxy.observing import ObservingProxy
from tests.peers import talking
from tests.proxying import (
    END,
    STREAM,
    chunk,
    connect,
    done,
    finished,
    on_connection,
    post,
    proxied,
    token,
    until,
    values,
)
from tests.proxying import (
    GENERATE as REQUEST,
)

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
GENERATE, OLLAMA_CHAT = "/api/generate", "/api/chat"


def sse(row: object) -> bytes:
    return b"data: " + json.dumps(row).encode() + b"\n\n"


def line(**row: object) -> bytes:
    return json.dumps({"model": "m", "done": False, **row}).encode() + b"\n"


def delta(index: int = 0, finish: str | None = None, **content: object) -> bytes:
    return sse({"choices": [{"index": index, "delta": content, "finish_reason": finish}]})


def call(**function: str) -> bytes:
    return delta(tool_calls=[{"index": 0, "function": function}])


def said(**message: object) -> bytes:
    return line(message={"role": "assistant", "content": "", **message})


ROLE = delta(role="assistant", content="")
STOP = delta(finish="stop")
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
ERROR = sse({"error": {"message": "the engine died", "code": 500}})
LAST = line(response="", done=True, done_reason="stop")


async def seen(
    path: str,
    reads: Sequence[bytes],
    fields: str = "",
    kind: str = "",
    after: Callable[[ObservingProxy], None] = lambda proxy: None,
    **asked: object,
) -> dict[str, object]:
    """Return how a request finished, its tokens, and count and sum of its latencies as far as there are any.

    `after` is called after each of the reads.
    """
    now = 0.0
    kind = kind or ("application/x-ndjson" if path.startswith("/api/") else "text/event-stream")
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{fields}Transfer-Encoding: chunked\r\n\r\n".encode()
    request = post(path, json.dumps({"images": ["A" * 300_000], **asked, "model": "m"}).encode())
    go = asyncio.Queue[bytes]()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(request)) == request
        writer.write(head)
        while piece := await go.get():
            writer.write(piece)

    async with talking(on_connection(talk)) as url, proxied(url, clock=lambda: now) as proxy, asyncio.timeout(10):
        reader, writer = await connect(proxy)
        writer.write(request)
        assert await reader.readexactly(len(head)) == head
        for read in reads:
            now += 1
            await go.put(chunk(read))
            assert await reader.readexactly(len(chunk(read))) == chunk(read)
            after(proxy)
        await go.put(END)
        assert await reader.readexactly(len(END)) == END
        writer.close()
        found: dict[str, object] = {"finished": [*finished(proxy)]}
        found["tokens"] = values(proxy, "generation_tokens_total").get("m", 0)
        for name, family in (("ttft", "time_to_first_token"), ("itl", "inter_token_latency"),
                             ("tpot", "time_per_output_token")):  # fmt: skip
            latency = values(proxy, f"{family}_seconds")
            if latency.get("m _count"):
                found[name] = (latency["m _count"], latency["m _sum"])
    return found


def stop(tokens: int, ttft: float, itl: tuple[int, float], tpot: float) -> dict[str, object]:
    return {"finished": ["stop"], "tokens": tokens, "ttft": (1, ttft), "itl": itl, "tpot": (1, tpot)}


A, B, C = (delta(content=text) for text in ("a", "é漢", "c"))


@pytest.mark.parametrize(
    ("path", "reads", "wanted"),
    [
        pytest.param(CHAT, [A, B, C, STOP + DONE], stop(3, 1, (2, 2), 1), id="plain"),
        pytest.param(CHAT, [ROLE, A, B, STOP, DONE], stop(2, 2, (1, 1), 1), id="a first event without text"),
        pytest.param(CHAT, [PING, ROLE, PING, A, PING, B, STOP + PING + DONE], stop(2, 4, (1, 2), 2), id="comments"),
        pytest.param(CHAT, [A[:9], A[9:], B[:-1], B[-1:] + C[:30], C[30:], STOP + DONE], stop(3, 2, (2, 3), 1.5),
                     id="events in several reads"),
        pytest.param(CHAT, [A, B + C, STOP + DONE], stop(3, 1, (2, 1), 0.5), id="several events in a read"),
        pytest.param(CHAT, [piece.replace(b"\n", b"\r\n") for piece in (A, B, STOP + DONE)], stop(2, 1, (1, 1), 1),
                     id="CR LF"),
        pytest.param(CHAT, [ROLE, delta(reasoning="hm"), delta(reasoning_content="hm"), A, STOP + DONE],
                     stop(3, 2, (2, 2), 1), id="thinking"),
        pytest.param(CHAT, [ROLE, call(name="f"), call(arguments='{"a":'), call(arguments="1}"),
                            delta(finish="tool_calls") + DONE], stop(3, 2, (2, 2), 1), id="the call of a tool"),
        pytest.param(COMPLETIONS, [sse({"choices": [{"text": text}]}) for text in "ab"] + [DONE],
                     stop(2, 1, (1, 1), 1), id="completions"),
        pytest.param(GENERATE, [line(response="a"), line(response="b"), LAST], stop(2, 1, (1, 1), 1), id="Ollama"),
        pytest.param(GENERATE, [line(thinking="a"), line(thinking="b", response="b"), LAST], stop(2, 1, (1, 1), 1),
                     id="Ollama thinking"),
        pytest.param(OLLAMA_CHAT, [said(thinking="hm"), said(tool_calls=[{"function": {"name": "f"}}]), LAST],
                     stop(2, 1, (1, 1), 1), id="Ollama calling a tool"),
    ],
)  # fmt: skip
async def test_each_piece_of_text_is_a_token_whatever_comes_with_it(
    path: str, reads: list[bytes], wanted: dict[str, object]
) -> None:
    assert await seen(path, reads, stream=True) == wanted


async def test_tokens_count_as_they_come_and_what_else_the_server_counted_at_the_end() -> None:
    tokens = []
    found = await seen(
        GENERATE,
        [line(response="a"), line(response="b") * 2, line(response="", done=True, done_reason="stop", eval_count=5)],
        after=lambda proxy: tokens.append(values(proxy, "generation_tokens_total")["m"]),
    )
    assert tokens == [1, 3, 3]
    assert found["tokens"] == 5


async def test_a_packed_stream_is_stamped_as_it_is_unpacked() -> None:
    packer = zlib.compressobj(wbits=31)
    reads = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in (A, B, C)]
    reads.append(packer.compress(STOP + DONE) + packer.flush())
    assert await seen(CHAT, reads, "Content-Encoding: gzip\r\n", stream=True) == stop(3, 1, (2, 2), 1)


@pytest.mark.parametrize("asked", [{"n": 2}, {"prompt": ["a", "b"]}], ids=["n", "prompts"])
@pytest.mark.parametrize(("path", "piece"), [(CHAT, {"delta": {"content": "a"}}), (COMPLETIONS, {"text": "a"})])
async def test_between_the_tokens_of_several_choices_there_is_no_latency(
    path: str, piece: dict[str, Any], asked: dict[str, Any]
) -> None:
    reads = [sse({"choices": [{"index": index, **piece}]}) for index in (0, 1, 0, 1)]
    # llama.cpp tells the counts of each choice apart.
    reads.append(sse({"choices": [], "timings": {"predicted_n": 2}}) + DONE)
    found = await seen(path, reads, stream=True, **asked)
    assert found == {"finished": ["stop"], "tokens": 4, "ttft": (1, 1)}
    assert await seen(CHAT, [A, B, STOP + DONE], stream=True, n=1) == stop(2, 1, (1, 1), 1)


FAILED = {"type": "response.failed", "response": {"status": "failed", "error": {"message": "the engine died"}}}


@pytest.mark.parametrize(
    ("path", "reads"),
    [
        (CHAT, [A, ERROR]),
        (CHAT, [A, ERROR, DONE]),  # as vLLM does
        (COMPLETIONS, [ERROR + DONE]),
        (RESPONSES, [sse(FAILED)]),
        (RESPONSES, [sse({"type": "error", "message": "the engine died"})]),
        (GENERATE, [line(response="a"), b'{"error":"the engine died"}\n']),
        (OLLAMA_CHAT, [said(content="a")]),
        (CHAT, [A, B]),
    ],
)
async def test_an_answer_with_an_error_is_one_that_failed_however_it_ends(path: str, reads: list[bytes]) -> None:
    found = await seen(path, reads, stream=True)
    assert found["finished"] == ["error"]
    assert "tpot" not in found


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"error": {"message": "the engine died"}}),
        (COMPLETIONS, {"object": "error", "message": "the engine died"}),
        (RESPONSES, FAILED["response"]),
        (GENERATE, {"error": "the engine died"}),
    ],
)
async def test_an_error_in_a_whole_answer_is_one_too(path: str, body: object) -> None:
    fields = "Content-Type: application/json\r\n"
    body = json.dumps(body, indent=1).encode()
    answer = f"HTTP/1.1 200 OK\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'"m"}\n')
        writer.write(answer)

    async with talking(on_connection(talk)) as url, proxied(url) as proxy, asyncio.timeout(10):
        reader, writer = await connect(proxy)
        writer.write(post(path, b'{"stream":false,"model":"m"}\n'))
        assert await reader.read() == answer
        writer.close()
        assert finished(proxy) == {"error": 1}


async def test_an_odd_line_does_not_make_an_answer_a_failed_one() -> None:
    assert await seen(CHAT, [A, b"odd: line\n\n", B, STOP + DONE], stream=True) == stop(2, 1, (1, 2), 2)


@pytest.mark.parametrize("reason", ["load", "unload"])
async def test_loading_and_unloading_a_model_is_no_request(reason: str) -> None:
    found = await seen(GENERATE, [line(response="", done=True, done_reason=reason)])
    assert found == {"finished": [], "tokens": 0}


@pytest.mark.parametrize(
    ("path", "asked", "streamed"),
    [(GENERATE, {}, True), (OLLAMA_CHAT, {}, True), (GENERATE, {"stream": False}, False), (CHAT, {}, False),
     (COMPLETIONS, {}, False), (RESPONSES, {}, False), (CHAT, {"stream": True}, True), (CHAT, {"stream": None}, False)],
)  # fmt: skip
async def test_whether_an_answer_of_another_type_is_a_stream_is_as_the_api_has_it(
    path: str, asked: dict[str, Any], streamed: bool
) -> None:
    pieces = {
        GENERATE: [line(response="a"), LAST], OLLAMA_CHAT: [said(content="a"), LAST],
        RESPONSES: [sse({"type": "response.output_text.delta", "delta": "a"})],
    }.get(path, [delta(content="a", finish="stop") + DONE])  # fmt: skip
    found = await seen(path, pieces, kind="text/plain", **asked)
    assert ("ttft" in found) is streamed


async def test_time_runs_from_the_last_byte_of_the_request() -> None:
    now = 0.0
    got = bytearray()
    go = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(got) < len(REQUEST):
            got.extend(await reader.read(1000))
        await go.wait()
        writer.write(STREAM + token() + done() + END)

    async with talking(on_connection(talk)) as url, proxied(url, clock=lambda: now) as proxy, asyncio.timeout(10):
        reader, writer = await connect(proxy)
        writer.write(REQUEST[:-5])
        await until(lambda: len(got) == len(REQUEST) - 5)
        now = 5.0
        writer.write(REQUEST[-5:])
        await until(lambda: len(got) == len(REQUEST))
        now = 7.0
        go.set()
        await reader.readuntil(END)
        writer.close()
        for family in ("time_to_first_token", "request_duration"):
            assert values(proxy, f"{family}_seconds")["m _sum"] == 2.0
