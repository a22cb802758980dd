"""What the simulated vLLM costs at real time: CPU seconds a second with 50 streams in flight, by HTTP and without."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from exporter.simulator.clock import RealClock
from exporter.simulator.engine import Limits
from exporter.simulator.hardware import A10, H100, LLAMA_3_1_8B, Device
from exporter.simulator.vllm import VllmServer, VllmSettings

SETTLE = 30.0
"""Seconds within which all streams must have begun."""

# A client in a process of its own, so that its work is not counted: it reads streams and drops them.
CLIENT = """
import asyncio, json, sys, aiohttp
async def one(session, url, index):
    body = {"prompt": f"{index} word " * 100, "max_tokens": 8000, "ignore_eos": True, "stream": True}
    async with session.post(url, json=body) as response:
        async for _ in response.content.iter_any():
            pass
async def main(url, count):
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(one(session, url, index) for index in range(count)), return_exceptions=True)
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench simulator", description=__doc__)
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args(argv)
    print(f"{args.streams} streams in flight at real time, {args.seconds:g} s each; CPU seconds per second:")
    for device in (A10, H100):
        for http in (False, True):
            tokens, cpu = asyncio.run(measure(device, args.streams, args.seconds, http))
            print(
                f"  {device.name:<9} {'HTTP streams' if http else 'engine only':<13} {tokens:7.0f} tokens/s   {cpu:.3f}"
            )
    return 0


async def measure(device: Device, streams: int, seconds: float, http: bool) -> tuple[float, float]:
    """Return tokens/s and CPU seconds per second of this process."""
    settings = VllmSettings(
        device=replace(device, memory=80e9), model=LLAMA_3_1_8B, limits=Limits(max_num_seqs=streams), seed=1
    )
    server = VllmServer(settings, RealClock())
    await server.start()
    client: asyncio.subprocess.Process | None = None
    if http:
        url = f"{server.url}/v1/completions"
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, url, str(streams))
    else:
        for index in range(streams):
            server.driver.submit(list(range(1000 * index, 1000 * index + 200)), 8000)
    try:
        async with asyncio.timeout(SETTLE):
            while len(server.driver.engine.running) < streams:  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.1)
        before, cpu, began = made(server), time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        elapsed = time.monotonic() - began
        return (made(server) - before) / elapsed, (time.process_time() - cpu) / elapsed
    finally:
        if client is not None:
            client.kill()
            await client.wait()
        await server.stop()


def made(server: VllmServer) -> int:
    return sum(record.output_tokens for record in server.ledger.records)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
