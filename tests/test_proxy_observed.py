"""What the proxy makes of bytes: names, APIs, packings and counts; and what it never keeps."""

from __future__ import annotations

import asyncio
import gc
import json
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.proxy.exchange import Embedding
from exporter.proxy.keys import TopValues
from tests.peers import Talk, talking
from tests.proxying import (
    END,
    GENERATE,
    STREAM,
    ask,
    connect,
    done,
    on_connection,
    post,
    proxied,
    token,
    until,
    values,
)


def http(body: bytes, kind: str = "application/json", *fields: str) -> bytes:
    head = ["HTTP/1.1 200 OK", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(head).encode() + body


def replying(answer: bytes) -> Talk:
    """Answer every request, which ends in a brace, and close."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}\n")
        writer.write(answer)

    return on_connection(talk)


@pytest.mark.parametrize(
    ("asked", "label"),
    [("m", "m"), ("big", "big:latest"), ("big:latest", "big:latest"), ("M", "other"), ("../../etc", "other"),
     ("x" * 5000, "other"), (7, "other"), (None, "other"), (["m"], "other")],
)  # fmt: skip
async def test_only_a_name_that_the_server_lists_becomes_a_label(asked: object, label: str) -> None:
    answer = STREAM + token() + done() + END
    body = json.dumps({"prompt": {"model": "m"}, "model": asked, "x": [{"model": "m"}]}).encode() + b"\n"
    async with talking(replying(answer)) as url, proxied(url) as proxy:
        assert await ask(proxy, post("/api/generate", body)) == answer
        assert values(proxy, "generation_tokens_total") == {label: 1.0}


async def test_a_model_that_is_new_on_the_server_gets_its_name_soon() -> None:
    names = [b'{"data":[]}', b'{"data":[{"id":"m"}]}']

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\n\r\n" if len(names) == 2 else b"\n")
        if asked.startswith(b"GET"):
            writer.write(http(names.pop(0) if len(names) > 1 else names[0]))
        else:
            writer.write(STREAM + token() + done() + END)

    async with talking(talk) as url, proxied(url) as proxy:
        labels: set[str] = set()
        async with asyncio.timeout(10):
            while "m" not in labels:
                await ask(proxy, post("/api/generate", b'{"model":"m"}\n'))
                labels |= values(proxy, "generation_tokens_total").keys()
    assert labels == {"other", "m"}


GONE = b'{"model":"m","prompt":"sekret one"}\n'
RESPONSES = (
    b'event: response.created\ndata: {"type":"response.created","response":{"status":"in_progress"}}\n\n'
    b'data: {"type":"response.output_text.delta","delta":"sekret"}\n\n'
    b'data: {"type":"response.output_text.delta","delta":" two"}\n\n'
    b'data: {"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":11,'
    b'"output_tokens":5,"input_tokens_details":{"cached_tokens":4}}}}\n\n'
)
WHOLE = b"""{
  "object": "response", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"},
  "output": [], "usage": {"input_tokens": 11, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}}
}"""


@pytest.mark.parametrize(
    ("answer", "reason", "pieces"),
    [(http(RESPONSES, "text/event-stream"), "stop", 2), (http(WHOLE), "length", 0)],
)
async def test_the_responses_api_is_read_streamed_or_not(answer: bytes, reason: str, pieces: int) -> None:
    async with talking(replying(answer)) as url, proxied(url) as proxy:
        assert await ask(proxy, post("/v1/responses", GONE)) == answer
        assert values(proxy, "requests_finished_total")[f"m {reason}"] == 1
        assert values(proxy, "prompt_tokens_total") == {"m": 11}
        assert values(proxy, "cached_prompt_tokens_total") == {"m": 4}
        assert values(proxy, "generation_tokens_total") == {"m": 5}
        assert values(proxy, "time_to_first_token_seconds").get("m _count", 0) == bool(pieces)


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings", "/v1/embeddings"])
async def test_of_embeddings_there_is_the_duration_and_nothing_else(path: str) -> None:
    async with talking(replying(http(b'{"embeddings":[[0.5]],"model":"m"}'))) as url, proxied(url) as proxy:
        await ask(proxy, post(path, GONE))
        assert values(proxy, "request_duration_seconds")["m _count"] == 1
        assert values(proxy, "requests_finished_total")["m stop"] == 0
        assert values(proxy, "generation_tokens_total") == {"m": 0}


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", http(b"[0.5]")[:-1]], ids=["failed", "broken off"]
)
async def test_of_embeddings_that_failed_there_is_nothing(answer: bytes) -> None:
    async with talking(replying(answer)) as url, proxied(url) as proxy:
        assert await ask(proxy, post("/v1/embeddings", GONE)) == answer
        assert [sample for sample in proxy.samples() if sample.value] == []


@pytest.mark.parametrize(
    "request_",
    [
        post("/api/chat", GONE).replace(b"POST", b"PUT"),
        post("/api/show", GONE),
        post("/api/pull", GONE),
        post("/v1/audio", GONE),
    ],
)
async def test_what_is_not_for_a_model_is_not_counted(request_: bytes) -> None:
    async with talking(replying(http(b"{}"))) as url, proxied(url) as proxy:
        await ask(proxy, request_)
        assert [sample for sample in proxy.samples() if sample.value] == []


async def test_tokens_are_counted_by_their_pieces_where_the_server_sends_no_count() -> None:
    stream = b"".join(b'data: {"choices":[{"delta":{"content":"a%d"}}]}\n\n' % index for index in range(7))
    stream += b'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
    async with talking(replying(http(stream, "text/event-stream"))) as url, proxied(url) as proxy:
        await ask(proxy, post("/v1/chat/completions", GONE))
        assert values(proxy, "generation_tokens_total") == {"m": 7}
        assert values(proxy, "prompt_tokens_total") == {}
        assert values(proxy, "requests_finished_total")["m stop"] == 1


async def test_a_packed_stream_is_read_and_an_unknown_packing_only_passes() -> None:
    stream = b'{"response":"a","done":false}\n{"response":"","done":true,"done_reason":"length","eval_count":3}\n'
    packed = zlib.compress(stream, wbits=31)
    for coding, body, reason, tokens in (("gzip", packed, "length", 3), ("br", b"\x8b\x00", "stop", 3)):
        answer = http(body, "application/x-ndjson", f"Content-Encoding: {coding}")
        async with talking(replying(answer)) as url, proxied(url) as proxy:
            assert await ask(proxy, post("/api/generate", GONE)) == answer
            assert values(proxy, "requests_finished_total")[f"m {reason}"] == 1
            assert values(proxy, "generation_tokens_total") == {"m": tokens if coding == "gzip" else 0}


def kept() -> list[object]:
    """Return what watches requests and is not gone."""
    gc.collect()
    return [held for held in gc.get_objects() if isinstance(held, Embedding)]


async def test_nothing_that_users_write_or_read_is_kept_logged_or_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    async with talking(replying(http(RESPONSES, "text/event-stream"))) as url, proxied(url) as proxy:
        request = post("/v1/responses", GONE, "Authorization: Bearer sekret-key", "Cookie: sekret=1")
        await ask(proxy, request)
        _, writer = await connect(proxy)
        writer.write(request[:-5])
        writer.close()
        await until(lambda: not proxy.busy)
        told = caplog.text + "".join(proxy.blocks("ollama").values())
        assert kept() == []
    assert "sekret" not in told


async def test_a_proxy_that_was_ended_keeps_nothing_of_what_was_under_way() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'x"}')
        writer.write(STREAM + token())
        await reader.read()

    async with talking(on_connection(talk)) as url, proxied(url) as proxy:
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        await reader.readexactly(len(STREAM + token()))
        await proxy.close(0.0)
        assert kept() == []
        writer.close()


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(alphabet='a\\"{}[],:é漢', max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=6), st.lists(st.integers(0, 300), max_size=8))
def test_values_at_the_top_of_an_object_are_found_however_it_is_cut(body: dict[str, Any], at: list[int]) -> None:
    body = {"a": 1, **body}
    data = json.dumps(body, ensure_ascii=False).encode()
    found = TopValues(*body)
    edges = [0, *sorted(min(edge, len(data)) for edge in at), len(data)]
    for start, end in pairwise(edges):
        found.feed(data[start:end])
    wanted = {key: value for key, value in body.items() if not isinstance(value, dict | list)}
    assert found.found == wanted


def test_of_an_object_with_thousands_of_values_only_the_first_are_looked_at() -> None:
    for members, found in ((500, {"model": "m"}), (5000, {})):
        values = TopValues("model")
        values.feed(b"{" + b'"a":1,' * members + b'"model":"m"}')
        assert values.found == found


@pytest.mark.parametrize(("context", "ratio"), [(4000.0, (1000 / 4 + 1) / 4000), (10.0, 1.0)])
async def test_the_context_in_use_is_estimated_from_all_of_the_request_and_never_more_than_there_is(
    context: float, ratio: float
) -> None:
    body = b'{"model":"m","prompt":"' + b"x" * 974 + b'"}\n'
    assert len(body) == 1000
    request = post("/api/generate", body)
    got = bytearray()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(got) < len(request):
            got.extend(await reader.read(1000))
        writer.write(STREAM + token())
        await reader.read()

    async with talking(on_connection(talk)) as url, proxied(url, {"m": context}) as proxy, asyncio.timeout(10):
        reader, writer = await connect(proxy)
        writer.write(request[:-500])
        await until(lambda: len(got) == len(request) - 500)
        writer.write(request[-500:])
        await reader.readexactly(len(STREAM + token()))
        assert values(proxy, "kv_cache_usage_ratio") == {"m": pytest.approx(ratio)}
        writer.close()


async def test_names_stay_known_while_the_server_does_not_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.proxy.names.SPACING", 0.001)
    asked = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        request = await reader.read(2**16)
        if not request.startswith(b"GET"):
            writer.write(STREAM + token() + done() + END)
            return
        writer.write(http(b'{"data":[{"id":"m"}]}') if asked == 0 else b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
        asked += 1

    async with talking(talk) as url, proxied(url) as proxy:
        for times in (3, 5):  # Each time two places are looked at, in vain.
            await ask(proxy, post("/api/generate", b'{"model":"q"}'))
            await until(lambda times=times: asked >= times)  # type: ignore[misc]  # of the default
        await ask(proxy, post("/api/generate", b'{"model":"m"}'))
        assert values(proxy, "generation_tokens_total") == {"m": 1.0, "other": 2.0}


@pytest.mark.parametrize(
    "target", ["/api/generate?a=/b", "http://a:1/api/generate", "http://a:1/api/generate?a=http://b/"]
)
async def test_an_endpoint_is_known_by_its_path_in_whatever_form(target: str) -> None:
    async with talking(replying(STREAM + token() + done() + END)) as url, proxied(url) as proxy:
        await ask(proxy, post(target, GONE))
        assert values(proxy, "requests_finished_total")["m stop"] == 1
