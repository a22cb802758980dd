"""`llm-vitals check`: asks each target once and says in one line what it found and what to do."""

from __future__ import annotations

import asyncio

from exporter import words
from exporter.config import Config, Target
from exporter.detect import make_reader
from exporter.model import Snapshot
from exporter.relay.scrape import new_session


async def check(config: Config) -> int:
    """Print a line for each target; return 0 if all of them answered well, else 1."""
    session = new_session()
    async with session:
        readers = [make_reader(target, session) for target in config.targets]
        try:
            snapshots = await asyncio.gather(
                *(reader.read(target.timeout) for reader, target in zip(readers, config.targets, strict=True))
            )
        finally:
            await asyncio.gather(*(reader.close() for reader in readers))
    if config.discovered:
        print("no target is configured; looked at the usual places:")
    for target, snapshot in zip(config.targets, snapshots, strict=True):
        print(line(target, snapshot))
    good = [snapshot.up for snapshot in snapshots]
    return 0 if (any(good) if config.discovered else all(good)) else 1


def line(target: Target, snapshot: Snapshot) -> str:
    """Return one line: ok or FAIL, the target, what was found, and the remedy."""
    if not snapshot.up:
        return f"FAIL {target.name} ({target.url}): {snapshot.outcome}: {snapshot.detail}"
    samples = list(snapshot.readings.samples()) if snapshot.readings else []
    models = sorted({value for sample in samples for name, value in sample.labels if name == "model"})
    found = " ".join(part for part in (snapshot.backend, snapshot.version) if part)
    about = f", model {', '.join(models)}" if models else ", no model is loaded" if snapshot.backend == "ollama" else ""
    notes = f"; {snapshot.report.bad_line_count} bad lines" if snapshot.report.bad_line_count else ""
    if snapshot.report.unknown:
        notes += f"; families this version does not know: {', '.join(snapshot.report.unknown)}"
    return words.printable(f"ok   {target.name} ({target.url}): {found}{about}; {len(samples)} series{notes}")
