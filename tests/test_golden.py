"""What is exported, judged by Prometheus's own linter."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from exporter.backends.table import PAGES
from exporter.config import DEFAULT_LISTEN, Config, ProbeSettings
from exporter.relay.normalize import normalize
from exporter.relay.render import exposition
from tests.conftest import ENGINE_PAGES
from tests.peers import PAGE, PREEMPTED, TWO_ENGINES, Engine, Ollama, serving, target
from tests.running import running

PROMTOOL = shutil.which("promtool")

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on PATH")


def lint(text: str) -> str:
    """Return what promtool has to say against an exposition."""
    assert PROMTOOL is not None
    command = [PROMTOOL, "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout + done.stderr + (f"exit code {done.returncode}" if done.returncode else "")


@pytest.mark.parametrize("path", ENGINE_PAGES, ids=lambda path: path.stem)
def test_a_versions_page_is_exported_as_prometheus_likes_it(path: Path) -> None:
    page = normalize(path.read_text(encoding="utf-8"), PAGES[path.parent.name], "t")
    blocks = page.readings.blocks() if page.readings else {}
    assert lint("".join(exposition([blocks], openmetrics=False))) == ""


async def test_the_whole_answer_for_many_targets_is_as_prometheus_likes_it() -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(serving(Engine(text))) for text in (PAGE, PREEMPTED, TWO_ENGINES)]
        ollama = await stack.enter_async_context(serving(Ollama()))
        targets = [target(engine.url, name=f"t{number}") for number, engine in enumerate(engines)]
        targets.append(target(ollama.url, name="ollama", backend="auto", probe=ProbeSettings(interval=0.01)))
        targets.append(target(f"{ollama.url}/nothing/here", name="down"))
        exporter = await stack.enter_async_context(running(Config(DEFAULT_LISTEN, tuple(targets))))
        await exporter.until(lambda found: any(s.name == "vitals_probe_phase_seconds" for s in found))
        _, _, text = await exporter.get("/metrics")
    assert await asyncio.to_thread(lint, text) == ""
