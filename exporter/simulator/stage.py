"""The servers of a demonstration, their users and the clock they share, made from a command line's options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from exporter.config import Listen, parse_listen
from exporter.simulator.clock import Clock
from exporter.simulator.ollama import OllamaServer
from exporter.simulator.ollama_models import OllamaSettings
from exporter.simulator.server import Server
from exporter.simulator.traffic import Traffic, Users
from exporter.simulator.vllm import VllmServer, VllmSettings


@dataclass(frozen=True, slots=True)
class Actor:
    """One server and its users."""

    kind: str
    server: Server
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Stage:
    """The actors and the clock they share."""

    actors: tuple[Actor, ...]
    clock: Clock

    async def start(self) -> None:
        """Start all servers; OSError if a port is taken, and then none is left running."""
        try:
            for actor in self.actors:
                await actor.server.start()
        except OSError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all servers."""
        for actor in self.actors:
            await actor.server.stop()


def add_arguments(parser: argparse.ArgumentParser, vllm: str, ollama: str) -> None:
    """Add the options that `make` reads; `vllm` and `ollama` are the default addresses."""
    for kind, address in (("vllm", vllm), ("ollama", ollama)):
        parser.add_argument(
            f"--{kind}",
            type=_listen,
            default=parse_listen(address),
            metavar="ADDR:PORT",
            help=f"where the simulated {kind} listens (default {address}); 'off' leaves it out",
        )
    parser.add_argument("--vllm-version", default="0.32.0", help="whose metrics to show (0.8.5, 0.8.5-v0; %(default)s)")
    parser.add_argument(
        "--speed",
        type=_speed,
        default=1.0,
        help="simulated seconds a second; about 100 keep up on one core (default 1)",
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same users (default 0)")


def make(args: argparse.Namespace, clock: Clock) -> Stage:
    """Make the servers asked for; ValueError if there is none or the version is none.

    The vLLM has an 8-billion-parameter model on a 24 GB card, so that KV blocks run out; the Ollama a
    quantized one on a desktop's card.
    """
    actors = []
    if args.vllm is not None:
        settings = VllmSettings(version=args.vllm_version, enable_per_request_metrics=True, seed=args.seed)
        vllm = VllmServer(settings, clock, args.vllm.host or "0.0.0.0", args.vllm.port, keep=200)  # noqa: S104 - asked for
        actors.append(_actor("vllm", vllm, clock, args.seed, settings.max_model_len // 4))
    if args.ollama is not None:
        own = OllamaSettings(seed=args.seed)
        ollama = OllamaServer(own, clock, args.ollama.host or "0.0.0.0", args.ollama.port, keep=200)  # noqa: S104 - asked for
        actors.append(_actor("ollama", ollama, clock, args.seed, own.context_length // 2))
    if not actors:
        raise ValueError("both servers are off: leave out one of --vllm off and --ollama off")
    return Stage(tuple(actors), clock)


def _actor(kind: str, server: Server, clock: Clock, seed: int, longest_prompt: int) -> Actor:
    return Actor(kind, server, Traffic(server.send, Users(seed, longest_prompt), clock))


def _listen(text: str) -> Listen | None:
    if text == "off":
        return None
    try:
        return parse_listen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.01 <= speed <= 1000:
        raise argparse.ArgumentTypeError(f"expected a number in 0.01..1000, got {text!r}")
    return speed
