"""A client that leaves is passed on at once, at whatever stage, and counted for what it was."""

from __future__ import annotations

import asyncio

import pytest

from tests.peers import talking
from tests.proxying import (
    END,
    GENERATE,
    STAGES,
    STREAM,
    chunk,
    connect,
    done,
    dying,
    finished,
    on_connection,
    proxied,
    reset,
    token,
    until,
    values,
    watched,
)


@pytest.mark.parametrize("how", ["closes", "resets", "half-closes"])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_client_that_leaves_cancels_the_server_at_once(stage: str, how: str) -> None:
    async with watched(*STAGES[stage]) as (server, proxy):
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        await server.answered.wait()
        await reader.readexactly(len(b"".join(STAGES[stage])))
        {"closes": writer.close, "resets": lambda: reset(writer), "half-closes": writer.write_eof}[how]()
        await server.left.wait()
        assert (server.how is not None) == (how == "resets")
        await until(lambda: finished(proxy) == {"client_gone": 1.0})
        writer.close()
        await until(lambda: not proxy.busy)


async def test_a_client_that_leaves_in_the_middle_of_its_upload_is_passed_on_and_is_no_request() -> None:
    async with watched(until_body=False) as (server, proxy):
        _, writer = await connect(proxy)
        writer.write(GENERATE[:-3])
        await server.answered.wait()
        writer.close()
        await server.left.wait()
        await until(lambda: not proxy.busy)
        assert finished(proxy) == {"client_gone": 1.0}
        assert values(proxy, "requests_running").get("other", 0.0) == 0.0


async def test_a_client_that_leaves_before_it_asks_is_nothing() -> None:
    async with watched() as (_, proxy):
        for data in (b"", b"POST /api/generate HTT"):
            _, writer = await connect(proxy)
            writer.write(data)
            await writer.drain()
            writer.close()
        await until(lambda: not proxy.busy)
        assert finished(proxy) == {}


async def test_a_client_that_leaves_after_the_last_line_has_its_answer() -> None:
    async with watched(STREAM, token(), token(), done(eval_count=2)) as (server, proxy):
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        await reader.readuntil(b"eval_count")
        writer.close()
        await server.left.wait()
        await until(lambda: finished(proxy) == {"stop": 1.0})


@pytest.mark.parametrize("last", [END, chunk(b'{"error":"cancelled"}\n') + END])
async def test_an_answer_that_ends_because_its_client_left_is_no_error(last: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'x"}')
        writer.write(STREAM + token())
        await reader.read()
        writer.write(last)

    async with talking(on_connection(talk)) as url, proxied(url) as proxy:
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        await reader.readexactly(len(STREAM + token()))
        writer.close()
        await until(lambda: finished(proxy) == {"client_gone": 1.0})


async def test_a_client_that_only_ceases_to_send_has_its_answer_counted() -> None:
    answer = STREAM + token() + done(eval_count=1) + END
    async with talking(on_connection(dying((answer,), asyncio.StreamWriter.close))) as url, proxied(url) as proxy:
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        writer.write_eof()
        async with asyncio.timeout(10):
            assert await reader.read() == answer
        writer.close()
        assert finished(proxy) == {"stop": 1.0}
