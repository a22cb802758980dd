"""`llm-vitals check`: a line for each target, and an exit code for scripts."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.peers import Engine, Ollama, free_port, serving
from tests.program import ASK_NOBODY, config, run, started


async def test_check_says_in_a_line_for_each_target_what_it_found(tmp_path: Path) -> None:
    port = await free_port()
    async with (
        serving(Engine()) as engine,
        serving(Ollama()) as ollama,
        serving(Engine()) as locked,
        serving(Engine()) as web,
    ):
        locked.status = 401
        web.text = "<!doctype html>"
        file = config(
            tmp_path,
            {"name": "engine", "url": engine.url},
            {"name": "ollama", "url": ollama.url},
            {"name": "refused", "url": f"http://127.0.0.1:{port}"},
            {"name": "locked", "url": locked.url},
            {"name": "web", "url": web.url},
        )
        code, out, err = await run("check", "--config", file)
    assert (code, err) == (1, "")
    lines = dict(line.split(" (", 1) for line in out.splitlines())
    assert list(lines) == ["ok   engine", "ok   ollama", "FAIL refused", "FAIL locked", "FAIL web"]
    series = re.fullmatch(
        re.escape(engine.url) + r"\): vllm 0\.32\.0, model [\w/.-]+; (\d+) series", lines["ok   engine"]
    )
    assert series
    assert int(series[1]) > 100
    assert lines["ok   ollama"].startswith(f"{ollama.url}): ollama 0.12.3, model m; ")
    assert lines["FAIL refused"].startswith(
        f"http://127.0.0.1:{port}): connect: no connection to 127.0.0.1:{port} (Conn"
    )
    assert lines["FAIL locked"].startswith(f"{locked.url}): auth: HTTP 401 from ")
    assert lines["FAIL web"].startswith(
        f"{web.url}): not_llm_server: answers, but not an LLM server that llm-vitals knows"
    )


async def test_check_is_exit_code_0_when_all_is_well() -> None:
    async with serving(Engine()) as engine, serving(Ollama()) as ollama:
        code, out, _ = await run("check", environ={"VLLM_URL": engine.url, "OLLAMA_URL": ollama.url})
    assert (code, [line.split()[:2] for line in out.splitlines()]) == (0, [["ok", "vllm"], ["ok", "ollama"]])


async def test_what_a_server_calls_its_models_does_not_steer_the_terminal() -> None:
    async with serving(Engine('vllm:num_requests_running{model_name="a\x1b[2Jb"} 1\n')) as engine:
        _, out, _ = await run("check", environ={"VLLM_URL": engine.url})
    assert out.startswith("ok   vllm ")
    assert "model a\ufffd[2Jb" in out


async def test_check_ends_although_the_look_up_of_a_name_hangs(tmp_path: Path) -> None:
    file = config(tmp_path, {"name": "a", "url": "http://llm.test", "backend": "vllm", "timeout": "100ms"})
    async with started("check", "--config", file, command=ASK_NOBODY) as process, asyncio.timeout(20):
        out, _ = await process.communicate()
    assert process.returncode == 1
    assert out.startswith(b"FAIL a (http://llm.test): timeout: ")
