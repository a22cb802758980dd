"""Through the proxy every byte arrives as it was sent: recordings, and messages of any kind, cut anywhere."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import FIXTURES
from tests.peers import talking
from tests.proxying import (
    END,
    ask,
    check,
    chunk,
    finished,
    on_connection,
    proxied,
    recorded,
    values,
)

RECORDINGS: list[dict[str, Any]] = [
    json.loads(line) for line in (FIXTURES / "proxy" / "ollama.ndjson").read_text(encoding="utf-8").splitlines()
]


def cut(data: bytes, *at: int) -> list[bytes]:
    edges = [0, *sorted({position for position in at if 0 < position < len(data)}), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def on_the_wire(recording: dict[str, Any]) -> tuple[bytes, list[bytes]]:
    """Return a recording's request, and its answer as the network reads that brought it."""
    head, _, body = recording["request"].encode().partition(b"\n\n")
    request = head.replace(b"\n", b"\r\n") + b"\r\n\r\n" + body
    head, _, body = recording["response"].encode().partition(b"\n\n")
    pieces = [head.replace(b"\n", b"\r\n") + b"\r\n\r\n"]
    if b"chunked" in head:
        pieces += [chunk(line) for line in body.splitlines(keepends=True)]
        pieces += [] if recording["error"] else [END]
    else:
        pieces.append(body)
    return request, pieces


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording["name"])
async def test_a_recorded_exchange_passes_byte_by_byte(recording: dict[str, Any]) -> None:
    request, answer = on_the_wire(recording)
    await check([request], answer)


borders = st.lists(st.integers(0, 600), max_size=12)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(RECORDINGS), borders, borders)
def test_a_recorded_exchange_passes_however_the_network_cuts_it(
    recording: dict[str, Any], asked: list[int], answered: list[int]
) -> None:
    request, answer = on_the_wire(recording)
    asyncio.run(check(cut(request, *asked), cut(b"".join(answer), *answered)))


texts = st.one_of(st.binary(max_size=300), st.text(alphabet='aé漢🜁\\"\n\u0000', max_size=60).map(str.encode))
names = st.from_regex(rb"X-[A-Za-z0-9-]{1,20}", fullmatch=True)
field_lines = st.builds(
    lambda name, space, value: name + b":" + space + value + b"\r\n",
    names, st.sampled_from([b"", b" ", b"\t "]), st.from_regex(rb"[!-~\x80-\xff]{0,30}", fullmatch=True),
)  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Return the field that tells a body's length, and the body: fixed, or chunked with extensions and trailers."""
    if draw(st.booleans()):
        body = draw(texts)
        return b"CONTENT-length: %d\r\n" % len(body), body
    parts = [part for part in draw(st.lists(texts, max_size=5)) if part]
    extensions = st.sampled_from([b"", b";a=b", b' ; q="x"'])
    framed = b"".join(b"%X%b\r\n%b\r\n" % (len(part), draw(extensions), part) for part in parts)
    trailers = b"".join(draw(st.lists(field_lines, max_size=2)))
    return b"transfer-Encoding: chunked\r\n", framed + b"0\r\n" + trailers + b"\r\n"


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([b"POST", b"PUT", b"PATCH", b"DELETE", b"PROPFIND"]),
    st.from_regex(rb"/(api/chat|v1/completions|[!-\"$-~]{0,30})", fullmatch=True),
    st.lists(field_lines, max_size=5), bodies(), st.integers(200, 599), st.lists(field_lines, max_size=5), bodies(),
    borders, borders,
)  # fmt: skip
def test_any_message_passes_byte_by_byte(
    method: bytes, target: bytes, fields: list[bytes], body: tuple[bytes, bytes], status: int,
    answer_fields: list[bytes], answer_body: tuple[bytes, bytes], asked: list[int], answered: list[int],
) -> None:  # fmt: skip
    request = b"%b %b HTTP/1.1\r\nHost: a\r\n" % (method, target) + b"".join(fields) + body[0] + b"\r\n" + body[1]
    answer = b"HTTP/1.1 %d Odd  reason\r\n" % status + b"".join(answer_fields) + answer_body[0] + b"\r\n"
    if status not in (204, 304):
        answer += answer_body[1]
    asyncio.run(check(cut(request, *asked), cut(answer, *answered)))


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /api/tags?a=%2f&b=ü#x HTTP/1.1", "GET //a/../b HTTP/1.1", "OPTIONS * HTTP/1.1", "get /a HTTP/1.1",
        "GET http://localhost:11434/api/ps HTTP/1.1", "HEAD / HTTP/1.1", "GET / HTTP/1.0",
    ],
)  # fmt: skip
async def test_a_request_line_passes_as_it_is(request_line: str) -> None:
    request = f"{request_line}\r\nHost: gpu.example:11435\r\naCCept:*/*\r\nA: 1\r\nA:  2 \r\n\r\n".encode()
    await check([request], [b"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nset-cookie: b\r\nContent-Length: 0\r\n\r\n"])


def told(recording: dict[str, Any]) -> tuple[str, int]:
    """Return how a recorded answer says that it ended, and its tokens: the server's count, else its pieces of text."""
    head, _, body = recording["response"].partition("\n\n")
    status = int(head.split()[1])
    if status != 200:
        return ("overload" if status == 503 else "error"), 0
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line and line != "data: [DONE]"]
    rows = [json.loads(line) for line in lines]
    reason, count, pieces = "error", None, 0
    for row in rows:
        choice: dict[str, Any] = next(iter(row.get("choices", [])), {})
        message = choice.get("delta") or row.get("message") or {}
        pieces += any((row.get("response"), choice.get("text"), message.get("content"), message.get("reasoning"),
                       message.get("thinking"), row.get("thinking")))  # fmt: skip
        reason = row.get("done_reason") or choice.get("finish_reason") or reason
        count = row.get("eval_count") or (row.get("usage") or {}).get("completion_tokens") or count
        if "error" in row:
            reason = "error"
    return reason, pieces if count is None else count


GENERATED = [r for r in RECORDINGS if re.match(r"POST /(api/(generate|chat)|v1/(chat/)?completions) ", r["request"])]


@pytest.mark.parametrize("recording", GENERATED, ids=lambda recording: recording["name"])
async def test_a_recorded_answer_is_counted_as_its_server_counts_it(recording: dict[str, Any]) -> None:
    request, answer = on_the_wire(recording)
    async with talking(on_connection(recorded(answer, bytearray(), len(request)))) as url, proxied(url) as proxy:
        await ask(proxy, request)
        reason, tokens = told(recording)
        assert finished(proxy) == ({} if reason == "load" else {reason: 1})
        assert sum(values(proxy, "generation_tokens_total").values()) == tokens
