"""Simulated users: when they come, what they send, and the episodes the boards show."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import statistics
from itertools import pairwise

import pytest

from exporter.simulator import episodes, simulate, stage
from exporter.simulator.clock import ManualClock
from exporter.simulator.episodes import Episode
from exporter.simulator.lengths import AZURE_CODE, AZURE_CONVERSATION, SHAREGPT, Lengths, LogNormal
from exporter.simulator.server import Server
from exporter.simulator.stage import Stage
from exporter.simulator.traffic import Load, Traffic, Users
from exporter.simulator.vllm import VllmServer

# Lengths that make a simulated minute cheap to compute.
SHORT = Lengths("short", LogNormal(20, 0.5, 100), LogNormal(10, 0.5, 50))


@pytest.mark.parametrize(
    ("lengths", "prompt", "output"),
    [(SHAREGPT, 161, 338), (AZURE_CONVERSATION, 1155, 211), (AZURE_CODE, 2048, 28)],
)
def test_lengths_have_the_published_means(lengths: Lengths, prompt: float, output: float) -> None:
    rng = random.Random(1)
    for fitted, mean in ((lengths.prompt, prompt), (lengths.output, output)):
        drawn = [fitted.draw(rng) for _ in range(20_000)]
        assert statistics.mean(drawn) == pytest.approx(mean, rel=0.2)
        assert min(drawn) >= 1
        assert max(drawn) <= fitted.longest


@pytest.mark.parametrize("burstiness", [1.0, 2.0, 4.0])
def test_arrivals_have_their_rate_and_burstiness(burstiness: float) -> None:
    users, load = Users(1, 1000), Load(5.0, burstiness=burstiness)
    gaps = [users.gap(load) for _ in range(20_000)]
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.1)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(burstiness, rel=0.1)


def test_all_conversations_begin_with_the_same_system_prompt_and_grow() -> None:
    users, load = Users(1, 1000), Load(1.0, SHORT, follow_up=1.0, system_prompt=30)
    first, _ = users.prompt(load)
    other, _ = users.prompt(load)
    assert first[:30] == other[:30]
    assert first[30:] != other[30 : len(first)]
    users.answered(first, [1, 2, 3])
    second, _ = users.prompt(load)
    assert second[: len(first) + 3] == [*first, 1, 2, 3]
    assert len(second) > len(first) + 3


def test_a_conversation_that_has_become_too_long_is_given_up() -> None:
    users, load = Users(1, 200), Load(1.0, SHORT, follow_up=1.0, system_prompt=10)
    for _ in range(100):
        prompt, _ = users.prompt(load)
        assert len(prompt) <= 200
        users.answered(prompt, [1] * 50)


async def arrivals(seed: int, seconds: float) -> list[tuple[float, int]]:
    """Return (time, prompt length) of what traffic sends to somebody who answers at once."""
    clock, sent = ManualClock(), []

    async def send(prompt: list[int], most: int, stop: int | None) -> list[int] | None:
        assert stop is not None
        assert most >= stop
        sent.append((clock.now(), len(prompt)))
        return [7] * stop

    traffic = Traffic(send, Users(seed, 500), clock)
    traffic.load = Load(2.0, SHORT)
    task = asyncio.create_task(traffic.run())
    await clock.advance(seconds)
    traffic.load = None
    count = len(sent)
    await clock.advance(seconds)
    assert len(sent) == count
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return sent


async def test_the_same_seed_sends_the_same_requests_at_the_same_times() -> None:
    first, second, third = [await arrivals(seed, 60.0) for seed in (1, 1, 2)]
    assert first == second != third
    assert 80 < len(first) < 160
    assert all(later[0] >= earlier[0] for earlier, later in pairwise(first))


def make(*options: str) -> Stage:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser, "127.0.0.1:0", "127.0.0.1:0")
    return stage.make(parser.parse_args(options), ManualClock())


async def play(name: str, seconds: float) -> tuple[Server, Server]:
    """Play an episode for so many simulated seconds; return the two servers."""
    made = make("--seed", "3")
    await made.start()
    task = asyncio.create_task(episodes.play(made, episodes.choose(name), lambda episode: None))
    assert isinstance(made.clock, ManualClock)
    try:
        await made.clock.advance(seconds)
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.stop()
    return made.actors[0].server, made.actors[1].server


async def test_exhausted_blocks_make_requests_wait_and_be_preempted() -> None:
    vllm, _ = await play("kv-exhausted", 80.0)
    records = list(vllm.ledger.records)
    assert sum(record.preemptions for record in records) > 5
    assert max(record.queue for record in records if record.scheduled is not None) > 3.0


async def test_a_huge_prompt_shows_in_the_itl_of_the_streams_around_it() -> None:
    vllm, _ = await play("huge-prompt", 58.0)
    (huge,) = [record for record in vllm.ledger.records if record.prompt_tokens == 12_000]
    assert huge.first_token is not None
    around = [
        max(record.gaps)
        for record in vllm.ledger.records
        if record.updates and record.updates[0] < huge.arrival and record.updates[-1] > huge.first_token
    ]
    assert around
    assert min(around) > 0.4
    assert huge.prefill > 2.0


async def test_killed_servers_are_away_and_come_back_empty() -> None:
    vllm, _ = await play("killed", 100.0)
    assert isinstance(vllm, VllmServer)
    arrivals = [0.0, *(record.arrival for record in vllm.ledger.records)]
    assert max(later - earlier for earlier, later in pairwise(arrivals)) > vllm.settings.load_seconds
    assert all(record.cached_tokens <= 160 for record in list(vllm.ledger.records)[:2])


async def test_a_cold_start_makes_ollamas_next_request_wait_for_a_load() -> None:
    made = make("--vllm", "off")
    (actor,) = made.actors
    assert isinstance(made.clock, ManualClock)
    await made.start()
    prompt = [1, 2, 3]
    waits = []
    for cold in (True, False, True):
        if cold:
            await actor.server.cool()
        began = made.clock.now()
        assert await made.clock.run(actor.server.send(prompt, 5)) is not None
        waits.append(made.clock.now() - began)
    await made.stop()
    assert waits[1] < 0.5 < 3.0 < waits[2] == pytest.approx(waits[0], rel=0.01)


def test_every_episode_has_a_load_for_both_servers() -> None:
    for episode in episodes.EPISODES:
        assert isinstance(episode, Episode)
        assert set(episode.loads) == {"vllm", "ollama"}
    assert [episode.name for episode in episodes.choose(None)] == [
        "calm", "busy", "huge-prompt", "kv-exhausted", "recovered", "speculative", "killed", "cold-start",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no episode is called 'x'; there are calm, busy"):
        episodes.choose("x")


async def test_a_taken_port_is_told_in_one_line_and_ends_with_1(caplog: pytest.LogCaptureFixture) -> None:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser, "127.0.0.1:0", "127.0.0.1:0")
    made = make("--ollama", "off")
    await made.start()
    port = made.actors[0].server.port
    with caplog.at_level(logging.ERROR):
        assert await simulate.run(parser.parse_args(["--ollama", f"127.0.0.1:{port}"])) == 1
    await made.stop()
    assert "choose another address with --vllm and --ollama" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--speed", "0"], "expected a number in 0.01..1000, got '0'"),
        (["--speed", "fast"], "expected a number in 0.01..1000, got 'fast'"),
        (["--vllm", "8000"], "expected ADDR:PORT"),
        (["--episode", "party"], "invalid choice: 'party'"),
    ],
)
def test_a_bad_option_is_refused(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make(*options)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vllm", "off", "--ollama", "off"], "both servers are off"),
        (["--vllm-version", "new"], "expected a version"),
    ],  # of digits and dots
)
def test_options_that_make_no_server_are_refused(options: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(*options)


def test_one_server_alone_can_be_simulated() -> None:
    assert [actor.kind for actor in make("--ollama", "off").actors] == ["vllm"]
