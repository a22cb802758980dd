"""Which models of a scripted Ollama are probed, and what is left of their stay and their figures."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.ollama_fakes import SERVER_START, Rig, expiring, probed


async def test_nothing_loaded_is_nothing_asked() -> None:
    rig = Rig()
    await rig.prober.turn()
    assert rig.ollama.asked == []


async def test_a_model_that_is_not_loaded_is_loaded_only_where_the_configuration_says_so() -> None:
    for load, asked in ((False, []), (True, ["a:latest"] * 2)):
        rig = Rig(probed(models=("a",), load=load, kinds=("small",)))
        await rig.prober.turn()
        assert rig.models_asked() == asked
        assert not any("keep_alive" in body for body in rig.ollama.asked)
        assert rig.prober.skipped == ({} if load else {"a:latest": "not in memory"})


@pytest.mark.parametrize("left", [299.2, 60.0, 20.5])
async def test_the_models_own_expiry_is_kept_by_the_servers_clock(left: float) -> None:
    rig = Rig(m=expiring(left))
    rig.ollama.date = SERVER_START + timedelta(days=1)  # its clock is a day ahead of ours
    rig.ollama.models["m"] |= {"expires_at": (rig.ollama.date + timedelta(seconds=left)).isoformat()}
    await rig.prober.turn()
    # A first probe is taken to last a second; the server's time is known to half a second.
    assert float(rig.ollama.asked[0]["keep_alive"].removesuffix("s")) == pytest.approx(left - 1, abs=0.51)


async def test_a_model_that_stays_for_ever_stays_for_ever() -> None:
    rig = Rig(m=expiring(250 * 365 * 86400.0))
    await rig.prober.turn()
    assert rig.ollama.asked[0]["keep_alive"] == -1


@pytest.mark.parametrize("row", [expiring(19.9), expiring(-60), {"size": 1}, {"expires_at": "soon"}])
async def test_a_model_about_to_leave_or_of_unknown_expiry_is_left_alone(row: dict[str, Any]) -> None:
    rig = Rig(m=row)
    await rig.prober.turn()
    assert rig.ollama.asked == []
    assert rig.prober.last == {}
    assert set(rig.prober.skipped) == {"m"}


async def test_only_configured_models_are_probed_with_or_without_latest() -> None:
    models = {"a:latest": expiring(300), "b:7b": expiring(300), "c": expiring(300)}
    rig = Rig(probed(models=("a", "b:7b"), kinds=("small",)), **models)
    await rig.prober.turn()
    assert set(rig.models_asked()) == {"a:latest", "b:7b"}


async def test_a_model_for_embeddings_is_not_asked_for_text() -> None:
    rig = Rig(m=expiring(300))
    rig.ollama.capabilities = ["embedding"]
    await rig.prober.turn()
    assert rig.ollama.asked == []
    assert rig.value("probes_total") is None
    assert rig.prober.skipped == {"m": "it makes no text"}


async def test_a_model_unloaded_during_the_probe_before_is_not_loaded_again() -> None:
    rig = Rig(a=expiring(300), b=expiring(300))
    good = rig.ollama.generate

    async def unload(request: httpx.Request) -> httpx.Response:
        rig.ollama.models.pop("b", None)
        return await good(request)

    rig.ollama.generate = unload
    await rig.prober.turn()
    assert set(rig.models_asked()) == {"a"}


async def test_several_models_are_probed_one_at_a_time() -> None:
    rig = Rig(a=expiring(300), b=expiring(300))
    await rig.prober.turn()
    assert rig.models_asked() == ["a", "a", "b", "b"]
    assert rig.ollama.most_in_flight == 1


async def test_a_model_that_left_memory_takes_its_gauges_along_but_not_its_history() -> None:
    rig = Rig(m=expiring(300))
    await rig.prober.turn()
    assert rig.value("probe_decode_tokens_per_second", prompt="small") == pytest.approx(50)
    assert rig.value("probe_phase_seconds", prompt="small", phase="prefill") == pytest.approx(0.1)
    del rig.ollama.models["m"]
    await rig.prober.turn()
    assert rig.value("probe_decode_tokens_per_second", prompt="small") is None
    assert rig.value("probe_phase_seconds", prompt="small", phase="prefill") is None
    assert rig.value("probe_time_to_first_token_seconds_count", prompt="small") == 1
    assert rig.prober.last == {}


async def test_a_probe_that_was_refused_is_not_taken_to_have_left_its_keep_alive_behind() -> None:
    rig = Rig(m=expiring(300))
    good = rig.ollama.generate
    rig.clock.now += 50.0
    await rig.prober.turn()
    left_behind = float(rig.ollama.asked[-1]["keep_alive"].removesuffix("s"))

    async def busy(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, json={"error": "server busy, please try again"})

    rig.clock.now += 60.0
    rig.ollama.generate = busy
    await rig.prober.turn()

    async def repaired(request: httpx.Request) -> httpx.Response:
        made = httpx.Response(200, json={"done": True, "done_reason": "load"})
        return await good(request) if "prompt" in rig.ollama.asked[-1] else made

    rig.ollama.generate = repaired
    ended = rig.clock.now + 5.0 - 100.0
    rig.clock.now += 10.0
    rig.ollama.models["m"] |= expiring(ended + left_behind)  # what a user's request took that named none
    await rig.prober.turn()
    repair, probe = rig.ollama.asked[-2:]
    assert "prompt" not in repair
    assert float(repair["keep_alive"].removesuffix("s")) == pytest.approx(295.0, abs=1.0)
    assert "prompt" in probe
