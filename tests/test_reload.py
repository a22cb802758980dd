"""A configuration that is read again: what stays, what goes, and what a mistake in it does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.config import DEFAULT_LISTEN, Config
from tests.peers import Engine, Ollama, serving, target
from tests.running import ConfigFile, running

SUCCESSFUL = "vitals_config_last_reload_successful"
SUCCESS_TIME = "vitals_config_last_reload_success_timestamp_seconds"


@pytest.fixture
def file(tmp_path: Path) -> ConfigFile:
    return ConfigFile(tmp_path)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with serving(Engine()) as engine:
        yield engine


def vllm(name: str, engine: Engine, **more: Any) -> dict[str, Any]:
    return {"name": name, "url": engine.url, "backend": "vllm", "probe": {"enabled": False}, **more}


def ollama(name: str, engine: Engine, **more: Any) -> dict[str, Any]:
    return {"name": name, "url": engine.url, "backend": "ollama", "probe": {"interval": "1s"}, **more}


async def test_targets_come_and_go(file: ConfigFile, engine: Engine) -> None:
    async with running(file.write(vllm("a", engine), vllm("b", engine)), file.load) as exporter:
        assert await exporter.series("vitals_target_up") == {"a": 1, "b": 1}
        file.write(vllm("b", engine), vllm("c", engine))
        assert await exporter.post("/-/reload") == (200, "The configuration was read again.\n")
        assert await exporter.series("vitals_target_up") == {"b": 1, "c": 1}
        assert await exporter.names("a") == set()


async def test_a_target_that_did_not_change_keeps_its_counters_and_one_that_did_does_not(
    file: ConfigFile, engine: Engine
) -> None:
    engine.status = 500
    async with running(file.write(vllm("same", engine), vllm("other", engine)), file.load) as exporter:
        await exporter.tried()
        before = await exporter.series("vitals_scrape_failures_total", reason="http_status")
        assert before == {"same": 2, "other": 2}
        file.write(vllm("other", engine, timeout="3s"), vllm("same", engine))
        await exporter.post("/-/reload")
        await exporter.tried()
        after = await exporter.series("vitals_scrape_failures_total", reason="http_status")
    assert after["same"] >= 4
    assert after["other"] < after["same"]


async def test_a_mistake_is_refused_with_every_problem_and_the_old_configuration_stays(
    file: ConfigFile, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(file.write(vllm("a", engine)), file.load) as exporter:
        first_time = await exporter.series(SUCCESS_TIME)
        assert await exporter.series(SUCCESSFUL) == {"": 1}
        file.path.write_text("targets: [{name: b, url: x, timeout: 3}]")
        status, text = await exporter.post("/-/reload")
        assert status == 400
        problems = text.splitlines()
        assert [problem.partition(":")[0] for problem in problems] == ["targets[0].url", "targets[0].timeout"]
        assert await exporter.series(SUCCESSFUL) == {"": 0}
        assert await exporter.series(SUCCESS_TIME) == first_time
        assert await exporter.series("vitals_target_up") == {"a": 1}
        logged = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert logged == [f"configuration refused, the old one stays: {problem}" for problem in problems]
        file.write(vllm("b", engine))
        assert (await exporter.post("/-/reload"))[0] == 200
        assert await exporter.series(SUCCESSFUL) == {"": 1}
        assert (await exporter.series(SUCCESS_TIME))[""] > first_time[""]
        assert await exporter.series("vitals_target_up") == {"b": 1}


async def test_a_file_that_is_gone_is_a_mistake_too(file: ConfigFile, engine: Engine) -> None:
    async with running(file.write(vllm("a", engine)), file.load) as exporter:
        file.path.unlink()
        status, text = await exporter.post("/-/reload")
        assert status == 400
        assert str(file.path) in text
        assert await exporter.series("vitals_target_up") == {"a": 1}


async def test_reloading_over_http_must_have_been_allowed(file: ConfigFile, engine: Engine) -> None:
    async with running(file.write(vllm("a", engine)), file.load, lifecycle=False) as exporter:
        file.write(vllm("b", engine))
        status, text = await exporter.post("/-/reload")
        assert (status, "--enable-lifecycle" in text) == (403, True)
        assert await exporter.series("vitals_target_up") == {"a": 1}
        assert (await exporter.get("/-/reload"))[0] == 405


async def test_a_new_target_makes_the_exporter_unready_until_it_was_tried(file: ConfigFile, engine: Engine) -> None:
    async with serving(Engine()) as other, running(file.write(vllm("a", engine)), file.load) as exporter:
        await exporter.tried()
        other.hold = asyncio.Event()
        file.write(vllm("a", engine), vllm("b", other))
        await exporter.post("/-/reload")
        assert (await exporter.get("/-/ready"))[0] == 503
        other.hold.set()
        await exporter.tried()


async def test_another_address_to_listen_on_is_said_to_need_a_restart(
    file: ConfigFile, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(file.write(vllm("a", engine)), file.load) as exporter:
        for listen in (":1", "127.0.0.1:10434"):
            file.path.write_text(f"listen: {listen}\n{yaml.safe_dump({'targets': [vllm('a', engine)]})}")
            assert (await exporter.post("/-/reload"))[0] == 200
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == ["listen has changed: that takes effect when llm-vitals is started again"]


async def test_of_two_reloads_at_once_the_later_one_counts(file: ConfigFile, engine: Engine) -> None:
    began, go_on = threading.Event(), threading.Event()

    def load() -> Config:
        config = file.load()
        began.set()
        assert go_on.wait(5)
        return config

    async with running(file.write(vllm("a", engine)), load) as exporter:
        first = asyncio.create_task(exporter.post("/-/reload"))
        await asyncio.to_thread(began.wait, 5)
        file.write(vllm("b", engine))
        began.clear()
        second = asyncio.create_task(exporter.post("/-/reload"))
        await asyncio.to_thread(began.wait, 0.2)  # The second is not read as long as the first is under way.
        assert not began.is_set()
        go_on.set()
        assert [status for status, _ in await asyncio.gather(first, second)] == [200, 200]
        assert await exporter.series("vitals_target_up") == {"b": 1}


async def test_a_reading_in_flight_of_a_target_that_goes_is_given_up_and_not_told_as_down(
    file: ConfigFile, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(Engine()) as other,
        running(file.write(vllm("b", other)), file.load) as exporter,
        asyncio.timeout(5),
    ):
        await exporter.tried()
        other.hold = asyncio.Event()
        other.arrived.clear()
        scrape = asyncio.create_task(exporter.metrics())
        await other.arrived.wait()
        file.write(vllm("a", engine))
        assert (await exporter.post("/-/reload"))[0] == 200
        assert not [sample for sample in await scrape if sample.labels.get("target") == "b"]
        assert caplog.messages == []
        assert await exporter.series("vitals_target_up") == {"a": 1}


async def test_probe_series_stay_with_their_target_and_go_with_it(file: ConfigFile, engine: Engine) -> None:
    async with serving(Ollama()) as peer:
        targets = {name: ollama(name, peer) for name in ("same", "changed", "gone")}
        async with running(file.write(*targets.values()), file.load) as exporter:
            found = await exporter.until(
                lambda samples: (
                    {s.labels["target"] for s in samples if s.name == "vitals_probe_phase_seconds"} == targets.keys()
                )
            )
            before = {s.labels["target"]: s.value for s in found if s.name == "vitals_probes_total"}
            changed = vllm("changed", engine)
            file.write(targets["same"], changed)
            await exporter.post("/-/reload")
            after = await exporter.series("vitals_probes_total")
            assert after.keys() == {"same"}
            assert after["same"] >= before["same"] >= 1
            for target in ("changed", "gone"):
                assert not {name for name in await exporter.names(target) if "probe" in name}


async def test_looking_for_servers_goes_on_once_however_often_the_configuration_is_read(engine: Engine) -> None:
    engine.status = 404
    config = Config(DEFAULT_LISTEN, (target(engine.url),), discovered=True)
    async with running(config) as exporter:
        for _ in range(3):
            await exporter.post("/-/reload")

        def looking() -> int:
            return sum(task.get_name().startswith("first look") for task in asyncio.all_tasks())

        async with asyncio.timeout(5):
            while looking() > 1:  # A task that was cancelled takes a moment to end.
                await exporter.get("/-/healthy")
        assert looking() == 1


async def test_reading_the_configuration_again_is_logged(
    file: ConfigFile, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "exporter")
    async with running(file.write(vllm("a", engine)), file.load) as exporter:
        await exporter.post("/-/reload")
    assert "configuration read again; targets now: a" in caplog.text
