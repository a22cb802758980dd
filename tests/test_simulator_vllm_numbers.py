"""The numbers on the simulated vLLM's /metrics against what its requests really lived through."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from exporter.simulator.engine import Limits
from tests.simulated import VLLM, serving, vllm
from tests.test_simulator_vllm import PAYLOAD


async def test_the_histograms_hold_exactly_the_truth() -> None:
    async with serving(vllm()) as (server, client):
        asks = [
            PAYLOAD | {"prompt": f"{index} " + "word " * 40 * index, "max_tokens": 10 * index} for index in (1, 2, 3)
        ]
        await client.clock.run(asyncio.gather(*(client.fetch("POST", "/v1/completions", ask) for ask in asks)))
        records = server.ledger.finished
        page = await client.metrics()
    truth: dict[str, list[float]] = {
        "time_to_first_token_seconds": [record.ttft for record in records],
        "inter_token_latency_seconds": [gap for record in records for gap in record.gaps],
        "request_time_per_output_token_seconds": [record.tpot for record in records],
        "e2e_request_latency_seconds": [record.e2e for record in records],
        "request_queue_time_seconds": [record.queue for record in records],
        "request_prefill_time_seconds": [record.prefill for record in records],
        "request_decode_time_seconds": [record.decode for record in records],
        "request_inference_time_seconds": [record.prefill + record.decode for record in records],
        "request_generation_tokens": [10, 20, 30],
        "request_prompt_tokens": [record.prompt_tokens for record in records],
    }
    for name, values in truth.items():
        assert page[f"vllm:{name}_count"] == len(values), name
        assert page[f"vllm:{name}_sum"] == pytest.approx(sum(values)), name
    assert page["vllm:generation_tokens_total"] == 60
    assert page["vllm:prompt_tokens_total"] == sum(record.prompt_tokens for record in records)
    assert page["vllm:request_success_total{finished_reason=length}"] == 3
    assert page["vllm:iteration_tokens_total_sum"] == 60 + sum(record.prompt_tokens for record in records)
    assert page["http_requests_total{handler=/v1/completions,method=POST,status=2xx}"] == 3


async def test_gauges_show_running_and_waiting_requests_and_the_share_of_blocks() -> None:
    settings = replace(VLLM, limits=Limits(max_num_seqs=2))
    async with serving(vllm(settings)) as (server, client):
        asks = [
            asyncio.create_task(client.fetch("POST", "/v1/completions", PAYLOAD | {"prompt": f"{index} and on"}))
            for index in range(5)
        ]
        while len(server.ledger.records) < 5:
            await client.clock.advance(0.0)
        await client.clock.advance(0.1)
        text = server.metrics.render().decode()
        assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 2.0' in text
        assert 'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 3.0' in text
        assert f'vllm:kv_cache_usage_perc{{engine="0",model_name="tiny"}} {1 - 4093 / 4095}' in text
        await client.clock.run(asyncio.gather(*asks))
        page = await client.metrics()
        assert page["vllm:num_requests_running"] == page["vllm:kv_cache_usage_perc"] == 0.0


async def test_exhausted_blocks_show_as_waiting_requests_and_preemptions() -> None:
    # What was recorded: 20 blocks of 128 tokens, prompts of 300 and answers of 400, 40 at once.
    settings = replace(VLLM, num_gpu_blocks=20)
    async with serving(vllm(settings)) as (server, client):
        asks = [
            PAYLOAD | {"prompt": [1000 * index + token for token in range(300)], "max_tokens": 400}
            for index in range(40)
        ]
        waiting = asyncio.gather(*(client.fetch("POST", "/v1/completions", ask) for ask in asks))
        while len(server.ledger.records) < 40:
            await client.clock.advance(0.0)
        await client.clock.advance(30.0)
        middle = server.metrics.render().decode()
        await client.clock.run(waiting)
        page = await client.metrics()
    usage = float(middle.partition('vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} ')[2].split()[0])
    assert usage * 19 == pytest.approx(round(usage * 19))  # one block of the 20 is never handed out
    assert usage > 0.75
    preemptions = sum(record.preemptions for record in server.ledger.records)
    assert preemptions > 10
    assert page["vllm:num_preemptions_total"] == page["vllm:request_num_preemptions_sum"] == preemptions
    assert page["vllm:prefix_cache_queries_total"] == 40 * 300  # an admission after a preemption is not counted
    assert page["vllm:generation_tokens_total"] == 40 * 400


async def test_a_repeated_prompt_counts_as_cached() -> None:
    async with serving(vllm()) as (_, client):
        ask = PAYLOAD | {"prompt": list(range(1000))}
        first = await client.post("/v1/completions", ask)
        again = await client.post("/v1/completions", ask)
        page = await client.metrics()
    assert first.json["usage"]["prompt_tokens_details"] is None
    assert again.json["usage"]["prompt_tokens_details"] == {"cached_tokens": 896}
    assert page["vllm:prefix_cache_hits_total"] == page["vllm:prompt_tokens_cached_total"] == 896
    assert page["vllm:prefix_cache_queries_total"] == page["vllm:prompt_tokens_total"] == 2000
    assert page["vllm:prompt_tokens_by_source_total{source=local_compute}"] == 1104


async def test_with_speculative_decoding_one_observation_covers_a_step_of_several_tokens() -> None:
    settings = replace(VLLM, limits=Limits(num_speculative_tokens=3, acceptance=1.0))
    async with serving(vllm(settings)) as (_, client):
        await client.post("/v1/completions", PAYLOAD | {"max_tokens": 40})
        page = await client.metrics()
    assert page["vllm:inter_token_latency_seconds_count"] == 10
    assert page["vllm:generation_tokens_total"] == 40
    assert page["vllm:spec_decode_num_draft_tokens_total"] == page["vllm:spec_decode_num_accepted_tokens_total"] == 29
    positions = [page[f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{position={place}}}"] for place in range(3)]
    assert positions == [10, 10, 9]
