"""The simulated vLLM's page against that of a running real one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import aiohttp
import pytest

from tests.real.conftest import Vllm
from tests.simulated import VLLM, serving
from tests.simulated import vllm as simulated
from tests.test_simulator_page import COMPLETION, differences, shape

pytestmark = pytest.mark.timeout(900)


async def test_a_running_vllms_page_has_the_same_families_labels_types_and_buckets(vllm: Vllm) -> None:
    async with aiohttp.ClientSession(vllm.url) as session:
        model = (await (await session.get("/v1/models")).json())["data"][0]
        async with session.post("/v1/completions", json=COMPLETION | {"model": model["id"]}) as answer:
            assert answer.status == 200
        theirs = await (await session.get("/metrics")).text()
    async with serving(simulated(replace(VLLM, max_model_len=model["max_model_len"]))) as (_, client):
        await client.post("/v1/completions", COMPLETION)
        ours = (await client.get("/metrics")).body.decode()
    # Which paths have been asked for differs from server to server.
    pages = [{k: v for k, v in shape(page).items() if not k[0].startswith("http_")} for page in (ours, theirs)]
    assert differences(defaultdict(set, pages[0]), defaultdict(set, pages[1])) == []
