"""`llm-vitals check --self`: what a container's health check is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests import program
from tests.peers import place, talking


async def ask(listen: str, **environ: str) -> tuple[int, str]:
    code, out, err = await program.run("check", "--self", "--listen", listen, environ=environ)
    assert err == ""
    assert out.count("\n") == 1
    return code, out


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "[::1]", "[::]"])
async def test_an_exporter_that_serves_is_well_wherever_it_listens(address: str) -> None:
    async with program.started("--listen", f"{address}:0") as process:
        port = (await program.url_of(process)).rpartition(":")[2]
        code, out = await ask(f"{address}:{port}")
    here = "[::1]" if ":" in address else "127.0.0.1"
    assert (code, out) == (0, f"ok   http://{here}:{port}/-/healthy\n")


async def test_the_address_may_come_from_the_environment_or_from_the_configuration(tmp_path: Path) -> None:
    async with program.started(*program.LISTEN) as process:
        listen = (await program.url_of(process)).removeprefix("http://")
        code, _, _ = await program.run("check", "--self", environ={"LLM_VITALS_LISTEN": listen})
        assert code == 0
        file = tmp_path / "vitals.yml"
        file.write_text(f"listen: {listen}\ntargets: [url: http://127.0.0.1:1]\n")
        code, _, _ = await program.run("check", "--self", environ={"LLM_VITALS_CONFIG": str(file)})
        assert code == 0
        assert (await program.run("check", "--self", environ={"LLM_VITALS_CONFIG": "/none"}))[0] == 2
        assert (await ask(listen, LLM_VITALS_CONFIG=str(file), LLM_VITALS_LISTEN="127.0.0.1:1"))[0] == 0


async def test_nobody_there_is_said_with_the_remedy() -> None:
    code, out = await ask("127.0.0.1:1")
    assert code == 1
    assert (
        out == "FAIL http://127.0.0.1:1/-/healthy: Connection refused; does the exporter run with another --listen?\n"
    )


@pytest.mark.parametrize(
    ("answer", "seen"), [(b"HTTP/1.0 503 No\r\n\r\n", "503"), (b"SSH-2.0-x\r\n", "no HTTP"), (b"", "no HTTP")]
)
async def test_another_program_on_the_port_is_not_taken_for_the_exporter(answer: bytes, seen: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async with talking(talk) as url:
        code, out = await ask(place(url))
    assert code == 1
    assert out.endswith(f"/-/healthy: {seen}; is it another program's port?\n")


async def test_an_exporter_that_hangs_is_not_well() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with talking(talk) as url:
        code, out = await ask(place(url))
    assert code == 1
    assert "no answer within 4 s; see the exporter's log" in out
