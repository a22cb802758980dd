"""Runs the exporter until SIGTERM or SIGINT, and reads the configuration again on SIGHUP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web
from yarl import URL

from exporter.app import App
from exporter.config import Config
from exporter.web import make_web

log = logging.getLogger(__name__)

GRACE = 1.0
"""Seconds that requests in flight get to end after SIGTERM; aiohttp waits twice as long for one that hangs."""

CLOSING = 2.0
"""Seconds for readings and probes to notice that they were cancelled; everything is over within five."""


THREADS = 256
"""Threads at most, above all for look-ups of names: one that hangs keeps its thread for up to a minute, long after who
asked has given up, and a reading of an Ollama asks three times.  With Python's few, all others would soon wait."""


async def serve(config: Config, reload: Callable[[], Config], enable_lifecycle: bool) -> int:
    """Serve until a signal ends it; return the exit code: 0, or 1 if the address cannot be listened on."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS, "work"))
    stop, hang_up = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hang_up.set)
    app = App(config, reload)
    runner = web.AppRunner(make_web(app, enable_lifecycle), access_log=None, shutdown_timeout=GRACE)
    await runner.setup()
    listen = config.listen
    try:
        await web.TCPSite(runner, listen.host or None, listen.port).start()
    except OSError as error:
        log.error("cannot listen on %s:%s: %s; choose another with --listen", listen.host, listen.port, error.strerror)
        await runner.cleanup()
        return 1
    await app.start()
    # The port that the system chose, where the one asked for is 0.
    host, port = runner.addresses[0][:2]
    log.info("serving on %s ; metrics on /metrics", URL.build(scheme="http", host=host, port=port, path="/"))
    reloading = asyncio.create_task(_reload_on(hang_up, app), name="reload on SIGHUP")
    waiting = asyncio.create_task(stop.wait(), name="wait for the end")
    # Whichever ends first ends the program: a failed reload task must not go unseen.
    await asyncio.wait({reloading, waiting}, return_when=asyncio.FIRST_COMPLETED)
    log.info("ending")
    waiting.cancel()
    reloading.cancel()
    failed = (await asyncio.gather(reloading, return_exceptions=True))[0]
    await runner.cleanup()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSING):
            await app.close()
    if isinstance(failed, Exception):
        raise failed
    return 0


async def _reload_on(hang_up: asyncio.Event, app: App) -> None:
    while True:
        await hang_up.wait()
        hang_up.clear()
        await app.reload()
