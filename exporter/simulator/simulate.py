"""Simulated servers with traffic and nothing else, to be read as if they were real ones."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal

from exporter.simulator import episodes, stage
from exporter.simulator.clock import RealClock

log = logging.getLogger(__name__)


def add_arguments(
    parser: argparse.ArgumentParser, vllm: str = "127.0.0.1:8000", ollama: str = "127.0.0.1:11434"
) -> None:
    """Add the options of `run`."""
    stage.add_arguments(parser, vllm, ollama)
    names = [episode.name for episode in episodes.EPISODES]
    parser.add_argument(
        "--episode", choices=[*names, "none"], help="repeat this one (default: all in turn; none: no traffic)"
    )


async def play(made: stage.Stage, args: argparse.Namespace) -> None:
    """Play the episodes asked for until cancelled; with none of them, wait."""
    if args.episode == "none":
        await asyncio.Event().wait()
    await episodes.play(made, episodes.choose(args.episode), announce)


def announce(episode: episodes.Episode) -> None:
    """Log what the boards will show now."""
    log.info("episode %s (%.0f simulated seconds): %s", episode.name, episode.seconds, episode.shows)


async def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code: 0, 1 if an address is taken, 2 for bad options."""
    try:
        made = stage.make(args, RealClock(args.speed))
    except ValueError as error:
        log.error("%s", error)
        return 2
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await made.start()
    except OSError as error:
        log.error("cannot listen: %s; choose another address with --vllm and --ollama", error)
        return 1
    for actor in made.actors:
        log.info("simulated %s on %s", actor.kind, actor.server.url)
    playing = asyncio.create_task(play(made, args), name="episodes")
    waiting = asyncio.create_task(stop.wait(), name="wait for the end")
    # Whichever ends first ends the program: episodes that failed must not go unseen.
    await asyncio.wait({playing, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    playing.cancel()
    failed = (await asyncio.gather(playing, return_exceptions=True))[0]
    await made.stop()
    if isinstance(failed, Exception):
        raise failed
    return 0
