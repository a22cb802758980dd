"""The command `llm-vitals demo`: simulated servers with traffic and the exporter that reads them, in one process."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from dataclasses import replace

from exporter.config import Config, Listen, ProbeSettings, Target, parse_listen
from exporter.serve import serve
from exporter.simulator import simulate, stage
from exporter.simulator.clock import RealClock
from exporter.simulator.ollama import OllamaServer
from exporter.simulator.vllm import VllmServer

log = logging.getLogger(__name__)

_PROBES = ProbeSettings(interval=15.0, max_share=0.2)
"""Probes come often here: a newcomer wants to see them, and nobody is disturbed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `run` (besides `listen`, an exporter.config.Listen or None, which the caller adds)."""
    simulate.add_arguments(parser, "127.0.0.1:0", "127.0.0.1:0")


async def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; return the exit code: 0, 1 if an address is taken, 2 for bad options."""
    try:
        made = stage.make(args, RealClock(args.speed))
    except ValueError as error:
        log.error("%s", error)
        return 2
    try:
        await made.start()
    except OSError as error:
        log.error("cannot listen: %s; choose another address with --vllm and --ollama", error)
        return 1
    try:
        return await _with_exporter(made, args)
    finally:
        await made.stop()


async def _with_exporter(made: stage.Stage, args: argparse.Namespace) -> int:
    listen = args.listen or parse_listen("127.0.0.1:10434")
    targets = tuple(_target(actor, args.speed) for actor in made.actors)
    config = Config(listen, targets)
    sys.stdout.write(_welcome(made, listen))
    sys.stdout.flush()
    playing = asyncio.create_task(simulate.play(made, args), name="episodes")
    serving = asyncio.create_task(serve(config, lambda: config, enable_lifecycle=False), name="exporter")
    try:
        # Whichever ends first ends the program: episodes that failed must not go unseen.
        await asyncio.wait({playing, serving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        playing.cancel()
        serving.cancel()
    played, code = await asyncio.gather(playing, serving, return_exceptions=True)
    for result in (played, code):
        if isinstance(result, Exception):
            raise result
    return code if isinstance(code, int) else 0


def _target(actor: stage.Actor, speed: float) -> Target:
    """Return a server as a target, with what it runs on; in a faster simulation memory is that much faster too."""
    server = actor.server
    target = Target(name=f"demo-{actor.kind}", url=server.url, backend=actor.kind, probe=_PROBES)
    if not isinstance(server, VllmServer | OllamaServer):
        return target
    target = replace(target, memory_bandwidth_gb_s=server.settings.device.bandwidth * speed / 1e9)
    if isinstance(server, OllamaServer):  # It tells about its models itself; what its users let expire is loaded anew.
        models = tuple(model.name for model in server.settings.models)
        return replace(target, probe=replace(_PROBES, models=models, load=True))
    model = server.settings.model
    shape = {
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
    }
    return replace(target, weight_bytes=model.weight_bytes, model_config=json.dumps(shape))


def _welcome(made: stage.Stage, listen: Listen) -> str:
    host = listen.host if listen.host not in ("", "0.0.0.0", "::") else "127.0.0.1"  # noqa: S104 - shown, not bound
    base = f"http://{f'[{host}]' if ':' in host else host}:{listen.port}"
    servers = "".join(f"  simulated {actor.kind:<7} {actor.server.url}\n" for actor in made.actors)
    return (
        f"No GPU needed: everything here is simulated.\n{servers}"
        f"  exporter          {base}/\n"
        f"  metrics           {base}/metrics\n"
        "For the Grafana boards: docker compose --profile demo up.  End with Ctrl-C.\n"
    )
